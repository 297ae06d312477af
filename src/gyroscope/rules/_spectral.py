"""The top of a covariance's spectrum, computed from the distances between rows: for SMEA, CAF and DnC."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gyroscope._linalg.spectrum import top_spread

Array = NDArray[Any]


class Spread(NamedTuple):
    """How far rows with given shares deviate from their mean."""

    variance: float
    """The largest eigenvalue of the covariance: the variance along the direction in which it is largest."""
    outlyingness: Array
    """(n,): the square of each row's deviation along that direction, divided by the largest; 0 if all are."""


def table_of(table: Tensor) -> Array:
    """Return a table of squared distances as a numpy array on the host."""
    return np.asarray(table.cpu().numpy(), dtype=np.float64)


def comparable(table: Array) -> Array:
    """Return row numbers between which all distances are finite, after removing the worst rows one by one.

    The worst row is the one with the most infinite distances, and of equals the last. So rows with a NaN or an
    infinity are removed before any row that is near to others.
    """
    left = np.arange(len(table))
    while True:
        infinite = np.isinf(table[np.ix_(left, left)]).sum(axis=1)
        if not infinite.any():
            return left
        worst = len(left) - 1 - int(np.argmax(infinite[::-1]))
        left = np.delete(left, worst)


def spread(table: Array, shares: Array, among: Array | None = None) -> Spread:
    """Compute the top of the weighted covariance's spectrum, of all rows or those with the numbers `among`.

    All shares must be positive, all distances between these rows finite.
    """
    return Spread(*top_spread(table, shares, np.arange(len(table)) if among is None else among))

"""The top of a covariance's spectrum, computed from the distances between rows: for SMEA, CAF and DnC.

The covariance of rows of d values is a d x d matrix, too large to form. Its largest eigenvalue is also that of the
n x n matrix of inner products of the centred rows, which follows from the table of squared distances by centring it
twice. Distances are exact however large a common offset is, so the inner products are too. A computation on some of the
rows does not involve the others, so a row at 1e30 costs the rows near 1 no digit.

Everything here is float64 in numpy, on n x n tables: no cost depends on d.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gyroscope._linalg.spectrum import top_eigenpair

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


def centred(table: Array, shares: Array) -> Array:
    """Return (..., n, n): the inner products of the rows' deviations from their weighted mean, for finite tables.

    shares: (n,), with the sum 1. A stack of tables gives a stack of products.
    """
    means = table @ shares
    products: Array = (means[..., :, None] + means[..., None, :] - table - (means @ shares)[..., None, None]) / 2
    return products


def spread(table: Array, shares: Array) -> Spread:
    """Compute the top of the weighted covariance's spectrum. All shares must be positive, all distances finite."""
    _, exponent = np.frexp(table.max(initial=0.0))
    # Scaling by a power of two changes no digit: the result is the same at every scale, and nothing overflows.
    products = centred(np.ldexp(table, -exponent), shares)
    roots = np.sqrt(shares)
    largest, vector = top_eigenpair(products * roots * roots[:, None])
    if largest <= 0:
        return Spread(0.0, np.zeros(len(table)))
    # Squared, because the sign of an eigenvector is arbitrary.
    deviations = (products @ (roots * vector)) ** 2
    deviations = deviations[(table == 0).argmax(axis=1)]  # equal rows deviate equally, to the last bit
    return Spread(float(np.ldexp(largest, exponent)), deviations / deviations.max())

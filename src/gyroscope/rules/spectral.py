"""What the spectral rules share: the top of a covariance's spectrum, from the table of distances between rows.

The covariance of rows of d values is a d x d matrix, which nobody forms. Its largest eigenvalue is also that of the
n x n matrix of inner products of the centred rows, and that matrix follows from the squared distances by centring
their table twice. Distances are exact however large a common offset is, so the inner products are too; and what is
computed for some of the rows never looks at the others, so that a row at 1e30 takes no digit from those near 1.

Everything here is float64 in numpy, on tables of n x n: nothing depends on d.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyroscope._linalg import matrix

Array = NDArray[Any]


class Spread(NamedTuple):
    """How rows with given shares lie about their mean."""

    variance: float
    """The largest eigenvalue of the covariance: the variance in the direction in which it is largest."""
    outlyingness: Array
    """(n,): the square of each row's deviation in that direction, in multiples of the largest one; 0 where all are."""


def table_of(table: Tensor) -> Array:
    """A table of squared distances for numpy, on the host."""
    return np.asarray(table.cpu().numpy(), dtype=np.float64)


def comparable(table: Array) -> Array:
    """Row numbers between which all distances are finite: the worst rows leave, one by one, until that is so.

    The worst is the one that is infinitely far from most others, of equals the last. So rows with a NaN or an infinity
    leave, before any row that is near to others.
    """
    left = np.arange(len(table))
    while True:
        infinite = np.isinf(table[np.ix_(left, left)]).sum(axis=1)
        if not infinite.any():
            return left
        worst = len(left) - 1 - int(np.argmax(infinite[::-1]))
        left = np.delete(left, worst)


def centred(table: Array, shares: Array) -> Array:
    """(..., n, n): the inner products of the rows' deviations from their weighted mean, for finite tables.

    shares: (n,), with the sum 1. A stack of tables gives a stack of products.
    """
    means = table @ shares
    products: Array = (means[..., :, None] + means[..., None, :] - table - (means @ shares)[..., None, None]) / 2
    return products


def spread(table: Array, shares: Array) -> Spread:
    """The top of the weighted covariance's spectrum. All shares are positive, all distances finite."""
    _, exponent = np.frexp(table.max(initial=0.0))
    # By a power of two, which changes no digit: then the numbers are the same at every scale, and none overflows.
    products = centred(np.ldexp(table, -exponent), shares)
    roots = np.sqrt(shares)
    values, vectors = np.linalg.eigh(products * roots * roots[:, None])
    if values[-1] <= 0:
        return Spread(0.0, np.zeros(len(table)))
    # The square, for the sign of an eigenvector means nothing.
    deviations = (products @ (roots * vectors[:, -1])) ** 2
    deviations = deviations[(table == 0).argmax(axis=1)]  # copies deviate alike, to the last bit
    return Spread(float(np.ldexp(values[-1], exponent)), deviations / deviations.max())


def mean_with(rows: Tensor, weight: Tensor) -> Tensor:
    """The mean of rows with the given shares. Rows without a share are not read: they may hold NaN."""
    chosen = weight.nonzero().flatten()
    shares = weight[chosen]
    if (shares == shares[0]).all():
        return matrix.mean_of(rows, chosen)
    return weighted_sum(rows, chosen, shares)


def weighted_sum(rows: Tensor, chosen: Tensor, factors: Tensor) -> Tensor:
    """The sum of the chosen rows times their factors, in float64 on the way. The others are not read."""
    parts = [factors @ block.index_select(0, chosen) for _, block in matrix.blocks(rows)]
    return torch.cat(parts).to(rows.dtype)


def shares_of(n: int, chosen: Array, device: torch.device) -> Tensor:
    """(n,): equal shares for the chosen rows, none for the others."""
    weight = torch.zeros(n, dtype=torch.float64)
    weight[torch.from_numpy(np.asarray(chosen, dtype=np.int64))] = 1 / len(chosen)
    return weight.to(device)

"""The largest eigenvalue of a symmetric matrix: what spectral rules need of the spectrum of an (n, n) table.

The covariance of rows of d values is a d x d matrix, too large to form. Its largest eigenvalue is also that of the
n x n matrix of inner products of the centred rows, which follows from the table of squared distances by centring it
twice. Distances are exact however large a common offset is, so the inner products are too. A computation on some of the
rows does not involve the others, so a row at 1e30 costs the rows near 1 no digit.

Everything here is float64 in numpy, on n x n tables: no cost depends on d.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyroscope._linalg._kernels import accelerated_by, spectra, switched_on

Array = NDArray[Any]

_LARGEST = 128
"""Rows of the largest matrix for the kernel: beyond, LAPACK's blocks are faster."""


@accelerated_by(spectra.top_eigenpair, lambda symmetric: len(symmetric) <= _LARGEST and switched_on())
def top_eigenpair(symmetric: Array) -> tuple[float, Array]:
    """Return the largest eigenvalue of a symmetric float64 matrix, and its unit vector, whose sign is arbitrary."""
    values, vectors = np.linalg.eigh(symmetric)
    return float(values[-1]), vectors[:, -1]


def centred(table: Array, shares: Array) -> Array:
    """Return (..., n, n): the inner products of the rows' deviations from their weighted mean, for finite tables.

    shares: (n,), with the sum 1. A stack of tables gives a stack of products.
    """
    means = table @ shares
    products: Array = (means[..., :, None] + means[..., None, :] - table - (means @ shares)[..., None, None]) / 2
    return products


@accelerated_by(spectra.top_spread, lambda table, shares, among: len(among) <= _LARGEST and switched_on())
def top_spread(table: Array, shares: Array, among: Array) -> tuple[float, Array]:
    """Return the top of the weighted covariance's spectrum.

    Args:
        table: (n, n) squared distances.
        shares: (k,), all positive, with the sum 1.
        among: (k,): to which rows they belong. All distances between these are finite.

    Returns:
        The largest eigenvalue, and (k,) the square of each row's deviation along its direction, divided by the largest;
        0 if all are.
    """
    table = table[np.ix_(among, among)]
    _, exponent = np.frexp(table.max(initial=0.0))
    # Scaling by a power of two changes no digit: the result is the same at every scale, and nothing overflows.
    products = centred(np.ldexp(table, -exponent), shares)
    roots = np.sqrt(shares)
    largest, vector = top_eigenpair(products * roots * roots[:, None])
    if largest <= 0:
        return 0.0, np.zeros(len(table))
    # Squared, because the sign of an eigenvector is arbitrary.
    deviations = (products @ (roots * vector)) ** 2
    deviations = deviations[(table == 0).argmax(axis=1)]  # equal rows deviate equally, to the last bit
    return float(np.ldexp(largest, exponent)), deviations / deviations.max()


@accelerated_by(spectra.scatters, lambda table, subsets: subsets.shape[1] <= _LARGEST and switched_on())
def scatters(table: Array, subsets: Array) -> Array:
    """Return (m,): the top eigenvalue of the scatter of each of (m, k) subsets of rows, given a table of distances."""
    blocks, size = table[subsets[:, :, None], subsets[:, None, :]], subsets.shape[1]
    # Scaling by a power of two changes no digit, and nothing overflows.
    _, exponents = np.frexp(blocks.max(axis=(1, 2)))
    products = centred(np.ldexp(blocks, -exponents[:, None, None]), np.full(size, 1 / size))
    values = np.array([top_eigenpair(each)[0] for each in products])
    return np.asarray(np.ldexp(values.clip(min=0), exponents))

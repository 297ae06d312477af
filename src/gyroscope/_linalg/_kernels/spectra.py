"""Largest eigenvalues of small symmetric matrices. Plain paths: gyroscope._linalg.spectrum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyroscope._linalg._kernels import compiled, threads

Array = NDArray[Any]


def top_eigenpair(symmetric: Array) -> tuple[float, Array]:
    """Return the largest eigenvalue of a symmetric float64 matrix, and its unit vector."""
    vector = np.empty(len(symmetric))
    return float(compiled.spectral_loops.top_eigenpair(_matrix(symmetric), vector)), vector


def top_spread(table: Array, shares: Array, among: Array) -> tuple[float, Array]:
    """Return the largest variance of some rows, and the square of each row's deviation along its direction."""
    outlyingness = np.empty(len(among))
    arguments = _matrix(table), among.astype(np.int64, copy=False), np.ascontiguousarray(shares, np.float64)
    return float(compiled.spectral_loops.spread(*arguments, outlyingness)), outlyingness


def scatters(table: Array, subsets: Array) -> Array:
    """Return (m,): the top eigenvalue of the scatter of each of (m, k) subsets."""
    values = np.empty(len(subsets))
    arguments = _matrix(table), np.ascontiguousarray(subsets, np.int64), values
    if threads.is_large(len(subsets), subsets.shape[1] ** 3):
        threads.spread(compiled.spectral_loops.scatters, len(subsets), *arguments)
    else:
        compiled.spectral_loops.scatters(*arguments, 0, len(subsets))
    return values


def _matrix(values: Array) -> Array:
    return np.ascontiguousarray(values, np.float64)

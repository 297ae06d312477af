"""The largest eigenvalue of a symmetric matrix: what spectral rules need of the spectrum of an (n, n) table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyroscope._linalg._kernels import accelerated_by, spectra, switched_on

_LARGEST = 128
"""Rows of the largest matrix for the kernel: beyond, LAPACK's blocks are faster."""


@accelerated_by(spectra.top_eigenpair, lambda symmetric: len(symmetric) <= _LARGEST and switched_on())
def top_eigenpair(symmetric: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    """Return the largest eigenvalue of a symmetric float64 matrix, and its unit vector, whose sign is arbitrary."""
    values, vectors = np.linalg.eigh(symmetric)
    return float(values[-1]), vectors[:, -1]

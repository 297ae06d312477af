"""The largest eigenvalue of a small symmetric matrix. Plain path: gyroscope._linalg.spectrum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyroscope._linalg._kernels import compiled


def top_eigenpair(symmetric: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    """Return the largest eigenvalue of a symmetric float64 matrix, and its unit vector."""
    vector = np.empty(len(symmetric))
    return float(
        compiled.spectral_loops.top_eigenpair(np.array(symmetric, dtype=np.float64, order="C"), vector)
    ), vector

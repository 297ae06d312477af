"""The search for the rows of smallest diameter. Plain path: gyroscope.rules.mda."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyroscope._linalg._kernels import compiled

MOST = 64
"""The most rows: a set of them is an integer of 64 bits."""


def smallest_diameter(table: NDArray[Any], candidates: NDArray[Any], size: int, limit: int) -> list[int] | None:
    """Return the lowest `size` rows of smallest diameter, which is one of the candidates; None if steps run out."""
    chosen = np.empty(size, np.int64)
    found = compiled.subset_loops.smallest_diameter(np.ascontiguousarray(table), candidates, size, limit, chosen)
    return chosen.tolist() if found else None

"""Tensors as the flat numpy vectors that the compiled kernels read and write, without a copy."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def flat(rows: Tensor) -> Any:
    """All the memory from the first element of a matrix or vector to its last."""
    rows = rows.detach()
    if rows.dim() == 1:
        return rows.as_strided((rows.shape[0],), (1,)).numpy()
    length = (rows.shape[0] - 1) * rows.stride(0) + rows.shape[1]
    return rows.as_strided((length,), (1,)).numpy()

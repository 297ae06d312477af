"""Copying. The plain path is in gyroscope.rows."""

from __future__ import annotations

from torch import Tensor

from gyroscope.kernels import memory


def copy_finite(source: Tensor, target: Tensor) -> bool:
    """Copy a vector to another one, bit by bit; whether it is free of NaN and infinities. In the calling thread."""
    from gyroscope.kernels.compiled import copies

    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError("source and target must have one length and one type")
    return bool(copies.copy_finite(memory.flat(source), memory.flat(target)))

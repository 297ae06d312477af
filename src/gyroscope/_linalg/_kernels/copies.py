"""Copying. The plain path is in gyroscope._linalg.matrix."""

from __future__ import annotations

from torch import Tensor

from gyroscope._linalg._kernels import memory


def copy_finite(source: Tensor, target: Tensor) -> bool:
    """Copy a vector to another one, bit by bit; whether it is free of NaN and infinities. In the calling thread."""
    from gyroscope._linalg._kernels.compiled import copies

    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError("source and target must have one length and one type")
    return bool(copies.copy_finite(memory.flat(source), memory.flat(target)))

"""Tensors as the flat numpy vectors that the compiled kernels read and write, without a copy."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def flat(values: Tensor) -> Any:
    """All the memory from the first element of a matrix (or vector, or stack of matrices) to its last."""
    if values.requires_grad:
        values = values.detach()
    if values.is_contiguous():
        return values.view(-1).numpy()
    length = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))
    return values.as_strided((length,), (1,)).numpy()

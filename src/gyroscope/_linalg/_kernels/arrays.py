"""Tensors as the flat numpy arrays that the compiled kernels read and write."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def flat(values: Tensor) -> Any:
    """Return a view of the memory from a tensor's first element to its last, as a 1-d array."""
    if values.requires_grad:
        values = values.detach()
    if values.is_contiguous():
        return values.view(-1).numpy()
    length = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))
    return values.as_strided((length,), (1,)).numpy()

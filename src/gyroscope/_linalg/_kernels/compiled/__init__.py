"""The functions that numba compiles, and the arrays that they take. Modules with numba are imported on first access."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from gyroscope._core.garbage import no_collection


def __getattr__(name: str) -> Any:
    try:
        with no_collection():
            return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def flat(values: Tensor) -> Any:
    """Return a view of the memory from a tensor's first element to its last, as a 1-d array."""
    if values.requires_grad:
        values = values.detach()
    if values.is_contiguous():
        return values.numpy().reshape(-1)
    length = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))
    return values.as_strided((length,), (1,)).numpy()


def addresses(tensors: Sequence[Tensor | None]) -> Any:
    """Return addresses: numba would compile anew for each number of arrays. The caller keeps the memory alive."""
    return np.array([0 if each is None else each.data_ptr() for each in tensors], dtype=np.int64)

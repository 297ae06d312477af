"""The compiled CPU kernels, and the one place that decides when to use them.

A function of plain torch operations is the reference for its kernel, and `accelerated_by` calls the kernel instead
where `usable` says that it takes the arguments: CPU tensors of float32 or float64 with a column stride of 1. (Linear
layers are the exception: gyroscope._linalg.linear_layers also looks at their shapes.)

Selections and the momentum recursion equal the plain path bit for bit, sums to 1e-6 or better; linear layers accumulate
in the tensors' own dtype, in order of depth. Only `shift_and_clip` and `accumulate` change their input. The kernels use
as many threads as torch does, and their results do not depend on that number.

numba compiles a kernel on its first call and keeps it on disk; nothing imports numba before. Without numba, or with the
environment variable GYROSCOPE_KERNELS=0, a process uses the plain paths.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg._kernels.matmul import IGNORED, Gradient

__all__ = ["IGNORED", "Gradient", "accelerated_by", "switched_off", "switched_on", "usable", "warm_up"]

Plain = TypeVar("Plain", bound=Callable[..., Any])

_off = contextvars.ContextVar("kernels switched off", default=os.environ.get("GYROSCOPE_KERNELS") == "0")


def usable(values: Tensor, *others: Tensor) -> bool:
    """Return whether the kernels take these matrices or vectors, all of one dtype. Called some thirty times a round."""
    return (
        values.is_cpu
        and values.dtype in (torch.float32, torch.float64)
        and values.layout == torch.strided
        and values.numel() > 0
        and (values.stride(-1) == 1 or values.shape[-1] == 1)
        and switched_on()
        and (not others or all(other.dtype == values.dtype and usable(other) for other in others))
    )


def switched_on() -> bool:
    """Return whether there are kernels in this process, and this thread uses them."""
    return not _off.get() and _installed()


def _first_usable(values: Tensor, *_: object, **__: object) -> bool:
    return usable(values)


def accelerated_by(kernel: Callable[..., Any], takes: Callable[..., bool] = _first_usable) -> Callable[[Plain], Plain]:
    """Return a decorator that makes a function call `kernel` instead of itself where `takes(...)` its arguments.

    By default the first argument decides.
    """

    def decorate(plain: Plain) -> Plain:
        @functools.wraps(plain)
        def choose(*args: Any, **options: Any) -> Any:
            return (kernel if takes(*args, **options) else plain)(*args, **options)

        return choose  # type: ignore[return-value]

    return decorate


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Use the plain paths within this block, in this thread."""
    before = _off.set(True)
    try:
        yield
    finally:
        _off.reset(before)


def warm_up(dtype: torch.dtype = torch.float32) -> None:
    """Compile every kernel for a dtype, or load it from disk, so that no later call has to."""
    from gyroscope._linalg._kernels import matmul, pairwise, row_updates, selections, spectra, subsets, sums

    rows = torch.zeros(3, 4, dtype=dtype)
    selections.median(rows)
    pairwise.squared_distances(rows + torch.tensor([[0.0], [1e-30], [1e-30]], dtype=dtype))
    pairwise.mixed_distances(torch.zeros(3, 3).double(), torch.eye(3).double())
    pairwise.scaled_distances(rows, torch.ones(1, 3), rows[0])
    spectra.top_eigenpair(rows.numpy()[:, :3])
    spectra.top_spread(np.zeros((3, 3)), np.ones(3), np.arange(3))
    spectra.scatters(np.zeros((3, 3)), np.zeros((1, 2)))
    subsets.smallest_diameter(np.zeros((3, 3)), np.zeros(1), 2, 9)
    sums.moments(rows, std=True)
    sums.products([rows[0], rows[1]])
    sums.mean_of(rows, [0])
    sums.squared_lengths(rows)
    row_updates.scaled(rows, rows[0, :3])
    row_updates.sign_counts(rows, torch.arange(4))
    row_updates.gathered(rows, torch.arange(2))
    row_updates.finite_rows(rows)
    row_updates.shift_and_clip(rows, rows[0], 1.0)
    row_updates.copy_finite(rows[0], rows[1])
    row_updates.accumulate(rows, rows, 0.9)
    row_updates.accumulate_row(rows[0], rows[1], 0.9)
    layer = matmul.PackedLayer(rows, rows[0, :3])
    matmul.linear(rows, layer)
    matmul.classify(rows, layer, rows[:, :3], None, torch.zeros(3, dtype=torch.int64), rows[0, :1])
    matmul.gradient_rows([Gradient(rows[None], rows[None], True)], None, 1.0, torch.zeros(1, 20, dtype=dtype))


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None

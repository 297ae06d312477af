"""The fast CPU paths, compiled by numba on first use and kept on disk. Each equals a plain torch path.

`usable(rows)` says whether the functions here can take them: CPU tensors of float32 or float64 whose columns are
neighbours in memory (rows may lie apart, or coincide). Selections equal the plain path exactly, sums to 1e-6 or
better (but for linear layers, whose sums are the type's own, in order of depth, as accurate as such sums are). No
function keeps its input, and only `shift_and_clip` and `accumulate` change it (`copy_finite` and `gradient_rows` write
to their targets). They use as many threads as torch does, and their results do not depend on how many that is.

The environment variable GYROSCOPE_KERNELS=0 turns them off for a process, and so does the lack of numba: nothing here
imports it before a kernel is called.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib.util
import os
from collections.abc import Iterator

import torch
from torch import Tensor

from gyroscope._linalg._kernels.coordinates import mean_around_median, mean_around_trimmed_mean, median, trimmed_mean
from gyroscope._linalg._kernels.copies import copy_finite
from gyroscope._linalg._kernels.dense import (
    IGNORED,
    Classified,
    Gradient,
    Layer,
    check_rows,
    classify,
    gradient_rows,
    linear,
    targets_fit,
)
from gyroscope._linalg._kernels.distance import distances, squared_distances
from gyroscope._linalg._kernels.rows import accumulate
from gyroscope._linalg._kernels.statistics import (
    Moments,
    Products,
    Vector,
    column_moments,
    gram,
    mean_of,
    shift_and_clip,
)

__all__ = [
    "IGNORED",
    "Classified",
    "Gradient",
    "Layer",
    "Moments",
    "Products",
    "Vector",
    "accumulate",
    "check_rows",
    "classify",
    "column_moments",
    "copy_finite",
    "distances",
    "gradient_rows",
    "gram",
    "linear",
    "mean_around_median",
    "mean_around_trimmed_mean",
    "mean_of",
    "median",
    "shift_and_clip",
    "squared_distances",
    "switched_off",
    "targets_fit",
    "trimmed_mean",
    "usable",
    "warm_up",
]


_off = contextvars.ContextVar("kernels switched off", default=os.environ.get("GYROSCOPE_KERNELS") == "0")


def usable(rows: Tensor) -> bool:
    """Whether the kernels can take these rows (or this vector). Asked some thirty times a round, so it is quick."""
    return (
        rows.is_cpu
        and rows.dtype in (torch.float32, torch.float64)
        and rows.layout == torch.strided
        and rows.numel() > 0
        and (rows.stride(-1) == 1 or rows.shape[-1] == 1)
        and not _off.get()
        and _installed()
    )


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Within this block every function takes its plain path, in this thread."""
    before = _off.set(True)
    try:
        yield
    finally:
        _off.reset(before)


def warm_up(dtype: torch.dtype = torch.float32) -> None:
    """Compile every kernel for a type, or load it from disk, so that no later call has to."""
    rows = torch.zeros(3, 4, dtype=dtype)
    median(rows)
    distances(rows + torch.tensor([[0.0], [1e-30], [1e-30]], dtype=dtype))
    column_moments(rows, std=True)
    gram([rows[0], rows[1]])
    mean_of(rows, [0])
    shift_and_clip(rows, rows[0], 1.0)
    linear(rows, Layer(rows, rows[0, :3]))
    classify(rows, Layer(rows, None), rows[:, :3], None, torch.zeros(3, dtype=torch.int64), rows[0, :1])
    gradient_rows([Gradient(rows[None], rows[None], True)], None, 1.0, torch.zeros(1, 20, dtype=dtype))
    copy_finite(rows[0], rows[1])
    accumulate(rows, rows, 0.9, 1.0)
    accumulate(rows[:1], rows[:1], 0.9, 1.0)


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None

"""Kernels that work on a matrix row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg._kernels import memory as arrays
from gyroscope._linalg._kernels import threads


def accumulate(memory: Tensor, gradient: Tensor, mu: float, gain: float) -> Tensor | None:
    """Add mu times the rows of `memory` and gain times those of `gradient`; see gyroscope._linalg.accumulate.

    The two must be of one shape and dtype, and share no memory unless element i is the same in both.
    """
    from gyroscope._linalg._kernels.compiled import momentum

    n, d = memory.shape
    target, added = arrays.flat(memory), arrays.flat(gradient)
    if n == 1:
        return _accumulate_one(target, added, mu, gain)
    strides, finite = (memory.stride(0), gradient.stride(0)), np.empty(n, np.bool_)

    def work(begin: int, end: int) -> None:
        momentum.accumulate_rows(target, strides[0], added, strides[1], d, begin, end, mu, gain, finite)

    threads.spread_rows(work, n, d)
    return None if finite.all() else torch.from_numpy(finite)


def _accumulate_one(target: Any, added: Any, mu: float, gain: float) -> Tensor | None:
    """For a single row the threads share its columns: all of them check before one writes."""
    from gyroscope._linalg._kernels.compiled import momentum

    bounds = threads.pieces(1, target.size, 16)
    finite = np.empty(len(bounds) - 1, np.bool_)

    def check(begin: int, end: int) -> None:
        momentum.check_sums(target, added, bounds, begin, end, mu, gain, finite)

    def write(begin: int, end: int) -> None:
        momentum.write_sums(target, added, bounds[begin], bounds[end], mu, gain)

    threads.spread(check, len(finite))
    if not finite.all():
        return torch.zeros(1, dtype=torch.bool)
    threads.spread(write, len(finite))
    return None

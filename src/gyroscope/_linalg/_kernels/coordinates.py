"""Order statistics of each column. The plain paths are in gyroscope._linalg.order_statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg._kernels import memory, networks, threads

_WIDTH = 96
"""Columns of a block: a multiple of four vectors. Narrower ones have more overhead; wider ones of some 50 rows leave
the first-level cache; and rows a power of two apart would fall on the same places of it."""


def median(rows: Tensor, even: str = "lower") -> Tensor:
    """The median of each column: for an even number of rows the lower middle, or the "mean" of both middles."""
    n = rows.shape[0]
    if even == "lower" or n % 2 == 1:
        return _select(rows, ((n - 1) // 2,))[0]
    both = _select(rows, ((n - 1) // 2, n // 2))
    low, high = both[0], both[1]
    return low.mul_(0.5).add_(high, alpha=0.5)  # halves first: the sum of two large values overflows


def trimmed_mean(rows: Tensor, trim: int) -> Tensor:
    """The mean of what is left of each column without its `trim` smallest and `trim` largest values."""
    n = rows.shape[0]
    if not 0 <= 2 * trim < n:
        raise ValueError(f"trim must be at least 0 and leave one of {n} rows, got {trim}")
    return _columns("MEAN", rows, networks.sorting(n, trim, n - trim), (), trim, n - trim)[0]


def mean_around_median(rows: Tensor, count: int, shares: Tensor | None = None) -> Tensor:
    """The mean of the `count` values of each column that are nearest to its (lower) median.

    Of two values equally near, the smaller belongs to it. With a (t, n) matrix of shares, this is the result for the
    t rows `shares @ rows`, which are never stored as a whole; a row whose share is zero may hold NaN without harm.
    """
    n = rows.shape[0] if shares is None else shares.shape[0]
    if not 1 <= count <= n:
        raise ValueError(f"count must be from 1 to {n}, the number of rows, got {count}")
    return _columns("NEAREST", rows, networks.sorting(n, 0, n), (), 0, count, shares)[0]


def mean_around_trimmed_mean(rows: Tensor, trim: int, count: int) -> Tensor:
    """The mean of the `count` values of each column nearest to its trimmed mean; of two equally near, the smaller."""
    n = rows.shape[0]
    if not 0 <= 2 * trim < n:
        raise ValueError(f"trim must be at least 0 and leave one of {n} rows, got {trim}")
    if not 1 <= count <= n:
        raise ValueError(f"count must be from 1 to {n}, the number of rows, got {count}")
    return _columns("NEAREST_TO_MEAN", rows, networks.sorting(n, 0, n), (), trim, count)[0]


def _select(rows: Tensor, ranks: tuple[int, ...]) -> Tensor:
    return _columns("SELECT", rows, networks.selection(rows.shape[0], ranks), ranks, 0, 0)


def _columns(
    finish: str,
    rows: Tensor,
    plan: networks.Plan,
    ranks: tuple[int, ...],
    first: int,
    last: int,
    shares: Tensor | None = None,
) -> Tensor:
    from gyroscope._linalg._kernels.compiled import selections

    n, d = rows.shape
    out = torch.empty(max(1, len(ranks)), d, dtype=rows.dtype)
    places = threads.pieces(n, d, _WIDTH)
    matrix, stride, target = memory.flat(rows), rows.stride(0), out.view(-1).numpy()
    network = (plan.leaves, plan.merges, plan.wires, plan.order, plan.candidates, plan.bounds)
    wanted = (np.array(ranks, dtype=np.int64), first, last)
    fixed: tuple[Any, ...] = (_WIDTH, *network, *wanted, *_sparse(shares, matrix.dtype), target)
    mode = getattr(selections, finish)

    def work(begin: int, end: int) -> None:
        selections.columns(mode, matrix, n, stride, places[begin], places[end], *fixed)

    threads.spread(work, len(places) - 1)
    return out


def _sparse(shares: Tensor | None, dtype: Any) -> tuple[Any, Any, Any]:
    """The shares that are not zero, the rows that they are of, and where each mixture's begin and end."""
    table = np.zeros((0, 0)) if shares is None else shares.detach().cpu().numpy()
    mixture, row = table.nonzero()
    bounds = np.searchsorted(mixture, np.arange(table.shape[0] + 1))
    return table[mixture, row].astype(dtype), row.astype(np.int64), bounds.astype(np.int64)

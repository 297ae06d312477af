"""Order statistics of each column. Plain paths: gyroscope._linalg.order_statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg._kernels import compiled, sorting_networks, threads
from gyroscope._linalg._kernels.compiled import flat

_WIDTH = 96
"""Columns per block: a multiple of three and of four vectors. Narrower blocks have more overhead, wider ones of some 50
rows do not fit in the L1 cache, and a power of two would map all rows of a block to the same cache sets."""
_DENSE = 0.4
"""From this part of shares on that are not zero, it is faster to multiply by all of them."""


def median(rows: Tensor, even: str = "lower", shares: Tensor | None = None) -> Tensor:
    """Return the median of each column: for an even number of rows the lower middle, or with "mean" that of both."""
    n = _count(rows, shares)
    low, high = (n - 1) // 2, n // 2
    ranks = (low,) if even == "lower" or low == high else (low, high)
    values = _columns(rows, sorting_networks.selection(n, ranks), shares=shares, ranks=ranks)
    if len(ranks) == 1:
        return values[0]
    return values[0].mul_(0.5).add_(values[1], alpha=0.5)  # halves first: the sum of two large values overflows


def trimmed_mean(rows: Tensor, trim: int, shares: Tensor | None = None) -> Tensor:
    """Return the mean of each column without its `trim` smallest and `trim` largest values."""
    n = _count(rows, shares)
    _check(n, trim=trim)
    return _columns(rows, sorting_networks.sorting(n, trim, n - trim), trim, n - trim, shares=shares)[0]


def mean_around_median(rows: Tensor, count: int, shares: Tensor | None = None) -> Tensor:
    """Return the mean of the `count` values of each column that are nearest to its (lower) median."""
    n = _count(rows, shares)
    _check(n, count=count)
    return _columns(rows, sorting_networks.sorting(n, 0, n), (n - 1) // 2, (n + 1) // 2, count, shares)[0]


def mean_around_trimmed_mean(rows: Tensor, trim: int, count: int, shares: Tensor | None = None) -> Tensor:
    """Return the mean of the `count` values of each column nearest to its trimmed mean."""
    n = _count(rows, shares)
    _check(n, trim, count)
    return _columns(rows, sorting_networks.sorting(n, 0, n), trim, n - trim, count, shares)[0]


def _count(rows: Tensor, shares: Tensor | None) -> int:
    return rows.shape[0] if shares is None else shares.shape[0]


def _check(n: int, trim: int = 0, count: int = 1) -> None:
    if not 1 <= count <= n:
        raise ValueError(f"count must be from 1 to {n}, the number of rows, got {count}")
    if not 0 <= 2 * trim < n:
        raise ValueError(f"trim must be at least 0 and leave one of {n} rows, got {trim}")


def _columns(
    rows: Tensor,
    network: sorting_networks.ComparatorNetwork,
    first: int = 0,
    last: int = 0,
    nearest: int = 0,
    shares: Tensor | None = None,
    ranks: tuple[int, ...] = (),
) -> Tensor:
    """Return what the kernel `columns` computes: a row for each rank, or one row."""
    n, d = rows.shape
    out = torch.empty(max(1, len(ranks)), d, dtype=rows.dtype)
    matrix = flat(rows)
    wanted = np.array(ranks, dtype=np.int64), first, last, nearest, *_mixtures(shares, matrix.dtype)
    arguments = matrix, n, rows.stride(0), _WIDTH, *network, *wanted, flat(out)
    threads.spread_pieces(compiled.selection_loops.columns, threads.pieces(n, d, _WIDTH), *arguments)
    return out


def _mixtures(shares: Tensor | None, dtype: Any) -> tuple[Any, ...]:
    """Return what the kernel `columns` wants to know of mixtures, from shares to common."""
    table = np.zeros((0, 0)) if shares is None else shares.detach().cpu().numpy()
    count = table.shape[0]
    dense, dense_rows, common = np.empty(0, dtype), np.empty(0, np.int64), 0
    if (order := _nested(table)) is not None:
        return table.max(axis=1).astype(dtype), order, np.arange(count + 1), True, dense, dense_rows, common
    mixture, row = table.nonzero()
    bounds = np.searchsorted(mixture, np.arange(count + 1))
    used = np.flatnonzero(table.any(axis=0))
    if len(row) > _DENSE * count * len(used):
        rounded = table.astype(dtype)
        same = (rounded[:, used] == rounded[0, used]).all(axis=0)
        same[-1] = False  # not all of them
        alike, others = used[same], used[~same]
        dense = np.concatenate([rounded[0, alike], rounded[:, others].reshape(-1)])
        dense_rows, common = np.concatenate([alike, others]), len(alike)
    sparse = table[mixture, row].astype(dtype), row.astype(np.int64), bounds.astype(np.int64)
    return *sparse, False, dense, dense_rows, common


def _nested(shares: Any) -> Any | None:
    """Return an order of rows such that mixture i is the mean of order[i:]; None if there is none."""
    used = shares != 0
    if len(shares) < 2 or not (shares == used * shares.max(axis=1, keepdims=True)).all():
        return None
    lost = used[:-1] & ~used[1:]
    if (used[1:] & ~used[:-1]).any() or not (lost.sum(axis=1) == 1).all():
        return None
    return np.concatenate([lost.argmax(axis=1), np.flatnonzero(used[-1])])

"""Order statistics of each column. Plain paths: gyroscope._linalg.order_statistics."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg._kernels import compiled, sorting_networks, threads
from gyroscope._linalg._kernels.compiled import flat

_WIDTH = 96
"""Columns per block: a multiple of three and of four vectors. Narrower blocks have more overhead, wider ones of some 50
rows do not fit in the L1 cache, and a power of two would map all rows of a block to the same cache sets."""

Shares = Tensor | tuple[Tensor, Tensor]
"""(t, n) each row's share in each of t mixed rows; or two factors of that."""


class MixingSteps(NamedTuple):
    """How the kernel `columns` computes mixed rows step by step: see `_mix_by_steps` there."""

    used: Any
    origins: Any
    bounds: Any
    rows: Any
    weights: Any
    targets: Any
    scales: Any


def median(rows: Tensor, even: str = "lower", shares: Shares | None = None) -> Tensor:
    """Return the median of each column: for an even number of rows the lower middle, or with "mean" that of both."""
    n = _count(rows, shares)
    low, high = (n - 1) // 2, n // 2
    ranks = (low,) if even == "lower" or low == high else (low, high)
    values = _columns(rows, sorting_networks.selection(n, ranks), shares=shares, ranks=ranks)
    if len(ranks) == 1:
        return values[0]
    return values[0].mul_(0.5).add_(values[1], alpha=0.5)  # halves first: the sum of two large values overflows


def trimmed_mean(rows: Tensor, trim: int, shares: Shares | None = None) -> Tensor:
    """Return the mean of each column without its `trim` smallest and `trim` largest values."""
    n = _count(rows, shares)
    _check(n, trim=trim)
    return _columns(rows, sorting_networks.sorting(n, trim, n - trim), trim, n - trim, shares=shares)[0]


def mean_around_median(rows: Tensor, count: int, shares: Shares | None = None) -> Tensor:
    """Return the mean of the `count` values of each column that are nearest to its (lower) median."""
    n = _count(rows, shares)
    _check(n, count=count)
    return _columns(rows, sorting_networks.sorting(n, 0, n), (n - 1) // 2, (n + 1) // 2, count, shares)[0]


def mean_around_trimmed_mean(rows: Tensor, trim: int, count: int, shares: Shares | None = None) -> Tensor:
    """Return the mean of the `count` values of each column nearest to its trimmed mean."""
    n = _count(rows, shares)
    _check(n, trim, count)
    return _columns(rows, sorting_networks.sorting(n, 0, n), trim, n - trim, count, shares)[0]


def _count(rows: Tensor, shares: Shares | None) -> int:
    if shares is None:
        return len(rows)
    return len(shares if isinstance(shares, Tensor) else shares[0])


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
    shares: Shares | None = None,
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


def _mixtures(shares: Shares | None, dtype: Any) -> tuple[Any, ...]:
    """Return what the kernel `columns` wants to know of mixtures, from shares to scales."""
    nothing, no_values = np.empty(0, np.int64), np.empty(0, dtype)
    no_steps = MixingSteps(nothing, nothing, nothing, nothing, no_values, nothing, no_values)
    tables = [] if shares is None else [shares] if isinstance(shares, Tensor) else [*shares]
    known = [table.detach().cpu().numpy() for table in tables]
    table = known[0] @ known[1] if len(known) > 1 else known[0] if known else np.zeros((0, 0))
    if len(known) == 1 and (order := _nested(table)) is not None:
        return table.max(axis=1).astype(dtype), order, np.arange(len(table) + 1), True, *no_steps
    mixture, row = table.nonzero()
    bounds = np.searchsorted(mixture, np.arange(len(table) + 1)).astype(np.int64)
    sparse = table[mixture, row].astype(dtype), row.astype(np.int64), bounds, False
    steps = _steps(known) if known else None
    if steps is None or len(steps.rows) + len(steps.origins) >= len(row):
        return *sparse, *no_steps
    steps = MixingSteps(*map(np.ascontiguousarray, steps))
    return *sparse, *steps._replace(weights=steps.weights.astype(dtype), scales=steps.scales.astype(dtype))


def _steps(tables: list[Any]) -> MixingSteps | None:
    """Return the steps to means of some rows each, or to means of ever fewer of such means; None for other mixtures."""
    means = tables[-1]
    member, counts, largest = means != 0, (means != 0).sum(axis=1), means.max(axis=1)
    if not (means == member * largest[:, None]).all() or not counts.all():
        return None
    order = np.arange(len(means)) if len(tables) == 1 else _nested(tables[0])
    if order is None or (len(tables) > 1 and (counts[order] != counts[order[0]]).any()):
        return None
    member = member[order[::-1]]
    common = member.mean(axis=0) > 0.5
    steps = [np.flatnonzero(line != common) for line in member]
    targets = np.arange(len(order))[::-1]
    if len(tables) == 1:  # each is what most of them have in common, with some rows more or less
        origins, scales = np.ones(len(order), np.int64), largest[::-1]
    else:  # sums of ever more of such means
        origins = np.where(np.arange(len(order)) > 0, 3, 1)
        targets = np.where(targets < len(tables[0]), targets, -1)
        scales = np.where(targets < 0, 0.0, tables[0].max(axis=1)[targets] / counts[order[0]])
    some = np.flatnonzero(member.any(axis=0))
    if common.any():  # by step 0
        steps = [np.flatnonzero(common), *steps]
        origins, targets, scales = np.append(0, origins), np.append(-1, targets), np.append(0.0, scales)
    else:
        origins = np.where(origins % 2 == 1, origins - 1, origins)
        origins[1:2] = np.minimum(origins[1:2], 1)  # the step before is step 0
    lengths = np.array([max(1, len(step)) for step in steps])
    rows = np.concatenate([step if len(step) else some[:1] for step in steps])
    weights = np.concatenate([np.where(common[step], -1.0, 1.0) if len(step) else np.zeros(1) for step in steps])
    weights[: lengths[0]] = 1.0  # of the common rows
    if (origins > 1).any():
        size = (lengths + common.sum()).sum()
        power = 2.0 ** -math.ceil(math.log2(max(2, size)))  # no sum is larger than the largest value
    else:
        power = largest[0]  # no sum serves another step but that of the common rows
    return MixingSteps(some, origins, np.append(0, lengths.cumsum()), rows, weights * power, targets, scales / power)


def _nested(shares: Any) -> Any | None:
    """Return an order of rows such that mixture i is the mean of order[i:]; None if there is none."""
    used = shares != 0
    if len(shares) < 2 or not (shares == used * shares.max(axis=1, keepdims=True)).all():
        return None
    lost = used[:-1] & ~used[1:]
    if (used[1:] & ~used[:-1]).any() or not (lost.sum(axis=1) == 1).all():
        return None
    return np.concatenate([lost.argmax(axis=1), np.flatnonzero(used[-1])])

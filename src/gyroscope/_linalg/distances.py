"""Squared Euclidean distances between the rows of a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._linalg._kernels import accelerated_by, pairwise, usable
from gyroscope._linalg.matrix import blocks, scaled

_COLUMNS = 1 << 16
"""Columns of scaled rows at a time, which stay in the cache."""


@accelerated_by(pairwise.squared_distances)
def squared_distances(rows: Tensor) -> Tensor:
    """Return the (n, n) float64 matrix of squared Euclidean distances between rows, with a zero diagonal.

    Differences are taken before squaring, so near-identical rows with a large common offset keep their distance
    (`|a|^2 + |b|^2 - 2ab` would cancel it). A row with a NaN or an infinity is infinitely far from every other row.
    """
    n = len(rows)
    squares = torch.zeros(n * (n - 1) // 2, dtype=torch.float64, device=rows.device)
    if n > 1:
        for _, block in blocks(rows):
            squares += torch.cat([(block[i + 1 :] - block[i]).square_().sum(dim=1) for i in range(n - 1)])
    table = torch.zeros(n, n, dtype=torch.float64, device=rows.device)
    upper = torch.triu_indices(n, n, offset=1, device=rows.device)
    table[upper[0], upper[1]] = squares.nan_to_num_(nan=torch.inf, posinf=torch.inf)
    return table + table.T


@accelerated_by(pairwise.squared_distances_by_parts)
def squared_distances_by_parts(rows: Tensor, parts: int) -> list[Tensor]:
    """Return the `squared_distances` in each of `parts` equal ranges of the columns."""
    return [squared_distances(part) for part in rows.chunk(parts, dim=1)]


def unit_distances(rows: Tensor, factors: Tensor, dtype: torch.dtype, origin: Tensor | None = None) -> Tensor:
    """Return the (n, n) squared distances between the rows' differences from an origin (or zero), times their factors.

    Args:
        rows: (n, d).
        factors: (n,): the inverse lengths, to compare directions. The scaled row is zero where its factor is zero.
        dtype: in which the scaled rows are compared.
        origin: (d,).
    """
    (table,) = unit_distances_by_parts(rows, factors.unsqueeze(0), dtype, origin)
    return table


def unit_distances_by_parts(
    rows: Tensor, factors: Tensor, dtype: torch.dtype, origin: Tensor | None = None
) -> list[Tensor]:
    """Return the `unit_distances` in equal ranges of the columns, one for each line of (parts, n) factors."""
    parts = len(factors)
    vectors = [] if origin is None else [origin]
    known: list[Tensor | None] = [None] * parts
    if dtype == rows.dtype and factors.is_cpu and usable(rows, *vectors):
        known = pairwise.scaled_distances(rows, factors, origin, parts)
    origins = [None] * parts if origin is None else origin.chunk(parts)
    each = zip(known, rows.chunk(parts, dim=1), factors, origins, strict=True)
    return [_by_blocks(part, own, dtype, here) if table is None else table for table, part, own, here in each]


def _by_blocks(rows: Tensor, factors: Tensor, dtype: torch.dtype, origin: Tensor | None) -> Tensor:
    table = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    buffer = rows.new_empty(len(rows), min(_COLUMNS, rows.shape[1]), dtype=dtype)
    for start in range(0, rows.shape[1], _COLUMNS):
        part = rows[:, start : start + _COLUMNS]
        here = None if origin is None else origin[start : start + _COLUMNS]
        table += squared_distances(scaled(part, factors, here, buffer[:, : part.shape[1]]))
    return table


@accelerated_by(pairwise.mixed_distances, usable)
def mixed_distances(table: Tensor, shares: Tensor) -> Tensor:
    """Return the squared distances between mixed rows, from those between the rows: no cost depends on d.

    If the shares of each mixed row add up to 1, the difference of two of them is a sum of rows with weights w that add
    up to 0, and its square is minus half of the sum of w_i w_j times the squared distances. Rows in which both have the
    same share drop out, so what is near to each other stays near, however far others are.

    Args:
        table: (n, n) squared distances; those that are infinite must not matter.
        shares: (m, n) the share of each row in each mixed row.
    """
    known = table.masked_fill(table.isinf(), 0.0)
    mixed = []
    for one in shares:
        weights = shares - one
        mixed.append((weights @ known).mul_(weights).sum(dim=1))
    squares = torch.stack(mixed).mul_(-0.5)
    return ((squares + squares.T) / 2).clamp_(min=0.0)

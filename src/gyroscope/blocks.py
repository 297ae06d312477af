"""Passes over rows that no kernel makes: in float64, a block of columns at a time, without a copy of the whole.

Nothing here has a size that depends on values, so a GPU and its host need not wait for each other. What is left out may
hold NaN or infinities: it is masked, never multiplied by zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_ON_CPU, _ELSEWHERE = 8192, 262144


def columns(rows: Tensor) -> Iterator[slice]:
    """All columns, a block at a time: few enough for a core's cache, or enough to keep a GPU busy."""
    width = _ON_CPU if rows.device.type == "cpu" else _ELSEWHERE
    for start in range(0, rows.shape[-1], width):
        yield slice(start, start + width)


def squares(rows: Tensor, centre: Tensor | None = None) -> Tensor:
    """(n,): the squared length of each row, or its squared distance from a centre; inf where it is not finite."""
    total = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for block in columns(rows):
        part = rows[:, block].to(torch.float64)
        if centre is not None:
            part = part - centre[block].to(torch.float64)
        total += part.square().sum(dim=1)
    return total.nan_to_num_(nan=torch.inf, posinf=torch.inf)


def products(rows: Tensor, vector: Tensor) -> Tensor:
    """(n,): the inner product of each row with a vector; NaN or infinite where a row is."""
    total = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for block in columns(rows):
        total += rows[:, block].to(torch.float64) @ vector[block].to(torch.float64)
    return total


def scaled(rows: Tensor, factors: Tensor) -> Tensor:
    """Each row times its factor; zeros where the factor is zero, whatever the row holds."""
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    unused = (factors == 0).unsqueeze(1)
    for block in columns(rows):
        part = rows[:, block].to(torch.float64) * factors.unsqueeze(1)
        out[:, block] = part.masked_fill_(unused, 0.0).to(rows.dtype)
    return out


def combined(rows: Tensor, weights: Tensor, divisors: Tensor | None = None) -> Tensor:
    """(m, d): the sums of rows weighted by (m, n) `weights`, each divided by its divisor.

    Whole-number weights and a divisor keep the mean of equal rows equal to them. A row that no sum takes may hold
    anything.
    """
    out = rows.new_empty(weights.shape[0], rows.shape[1])
    unused = (weights == 0).all(dim=0).unsqueeze(1)
    for block in columns(rows):
        part = weights @ rows[:, block].to(torch.float64).masked_fill(unused, 0.0)
        out[:, block] = (part if divisors is None else part / divisors.unsqueeze(1)).to(rows.dtype)
    return out

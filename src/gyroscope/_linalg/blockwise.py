"""Passes over rows that no kernel makes: in float64, a block of columns at a time, without a copy of the whole.

Nothing here has a size that depends on values, so a GPU and its host need not wait for each other. What is left out may
hold NaN or infinities: it is masked, never multiplied by zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._linalg import matrix


def squared_lengths(rows: Tensor) -> Tensor:
    """(n,): inf where a row is not finite."""
    total = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for _, block in matrix.blocks(rows):
        total += block.square_().sum(dim=1)
    return total.nan_to_num_(nan=torch.inf, posinf=torch.inf)


def products(rows: Tensor, vector: Tensor) -> Tensor:
    """(n,): the inner product of each row with a vector; NaN or infinite where a row is."""
    total = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for columns, block in matrix.blocks(rows):
        total += block @ vector[columns].to(torch.float64)
    return total


def scaled(rows: Tensor, factors: Tensor) -> Tensor:
    """Each row times its factor; zeros where the factor is zero, whatever the row holds."""
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    unused = (factors == 0).unsqueeze(1)
    for columns, block in matrix.blocks(rows):
        out[:, columns] = block.mul_(factors.unsqueeze(1)).masked_fill_(unused, 0.0).to(rows.dtype)
    return out


def combined(rows: Tensor, weights: Tensor, divisors: Tensor | None = None) -> Tensor:
    """(m, d): the sums of rows weighted by (m, n) `weights`, each divided by its divisor.

    Whole-number weights and a divisor keep the mean of equal rows equal to them. A row that no sum takes may hold
    anything.
    """
    out = rows.new_empty(weights.shape[0], rows.shape[1])
    unused = (weights == 0).all(dim=0).unsqueeze(1)
    for columns, block in matrix.blocks(rows):
        sums = weights @ block.masked_fill_(unused, 0.0)
        out[:, columns] = (sums if divisors is None else sums / divisors.unsqueeze(1)).to(rows.dtype)
    return out

"""Passes over rows without a kernel: in float64, one block of columns at a time, so that no copy of the matrix is made.

No size here depends on values, so the host need not wait for a GPU. Rows that are left out may hold NaN or infinities:
they are masked, never multiplied by zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._linalg import matrix


def squared_lengths(rows: Tensor) -> Tensor:
    """Return the (n,) squared norms of the rows; inf for a row that is not finite."""
    total = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for _, block in matrix.blocks(rows):
        total += block.square_().sum(dim=1)
    return total.nan_to_num_(nan=torch.inf, posinf=torch.inf)


def products(rows: Tensor, vector: Tensor) -> Tensor:
    """Return the (n,) inner products of the rows with a vector; NaN or infinite for a row that is not finite."""
    total = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for columns, block in matrix.blocks(rows):
        total += block @ vector[columns].to(torch.float64)
    return total


def scaled(rows: Tensor, factors: Tensor) -> Tensor:
    """Return each row times its factor; zeros where the factor is zero, whatever the row holds."""
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    unused = (factors == 0).unsqueeze(1)
    for columns, block in matrix.blocks(rows):
        out[:, columns] = block.mul_(factors.unsqueeze(1)).masked_fill_(unused, 0.0).to(rows.dtype)
    return out


def combined(rows: Tensor, weights: Tensor, divisors: Tensor | None = None) -> Tensor:
    """Return the (m, d) sums of rows weighted by (m, n) `weights`, each divided by its divisor.

    With integer weights and a divisor, the mean of equal rows is equal to them. A row with no weight may hold anything.
    """
    out = rows.new_empty(weights.shape[0], rows.shape[1])
    unused = (weights == 0).all(dim=0).unsqueeze(1)
    for columns, block in matrix.blocks(rows):
        sums = weights @ block.masked_fill_(unused, 0.0)
        out[:, columns] = (sums if divisors is None else sums / divisors.unsqueeze(1)).to(rows.dtype)
    return out

"""Squared Euclidean distances between the rows of a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._linalg._kernels import accelerated_by, pairwise
from gyroscope._linalg.matrix import blocks


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

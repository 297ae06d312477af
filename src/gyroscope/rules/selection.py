"""What the rules share that score each row and average the best ones."""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._linalg import matrix
from gyroscope.rules.base import Aggregate


def mean_of_best(rows: Tensor, scores: Tensor, count: int) -> Aggregate:
    """The mean of the `count` rows of smallest score, each with the same weight; of equal scores the lowest row."""
    return mean_of(rows, scores.argsort(stable=True)[:count])


def mean_of(rows: Tensor, chosen: Tensor) -> Aggregate:
    """The mean of the chosen rows, each with the same weight. The others are never read: they may hold NaN."""
    weight = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    return Aggregate(matrix.mean_of(rows, chosen), weight.index_fill_(0, chosen, 1 / chosen.shape[0]))

"""The arithmetic mean, which a single Byzantine worker defeats."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope._linalg import matrix
from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class Average(Rule):
    """The mean of all rows: the baseline without attack. Needs n >= f + 1.

    Guarantee: none. One Byzantine row moves the result anywhere, and a NaN or an infinity in any row reaches it.
    Cost: one pass over the rows.
    """

    name = "average"
    aliases = ("mean", "avg", "fedavg")
    summary = "the mean of all rows; the baseline, defeated by a single Byzantine worker"
    needs = "n >= f + 1"
    resilient = False
    guarantee = "none"
    reads = "columns"

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        n = rows.shape[0]
        mean = matrix.mean_of(rows, torch.arange(n, device=rows.device))
        return Aggregate(mean, torch.full((n,), 1 / n, dtype=torch.float64, device=rows.device))

"""The arithmetic mean: the rule that everyone uses, and that one liar defeats."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class Average(Rule):
    """The mean of all rows. Not resilient: one Byzantine row moves it anywhere. The baseline without attack.

    Cost: one pass over the rows. A NaN or an infinity in any row goes through to the result.
    """

    name = "average"
    summary = "the mean of all rows; the baseline, defeated by a single liar"
    needs = "n >= f + 1"
    paper = "-"
    resilient = False
    promise = "none"
    reads = "columns"

    def min_workers(self, f: int) -> int:
        return f + 1

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        n = rows.shape[0]
        return Aggregate(rows.mean(dim=0), torch.full((n,), 1 / n, dtype=torch.float64, device=rows.device))

"""Comparative gradient elimination: the mean of the shortest rows."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope.rules.base import Aggregate, Rule
from gyroscope.rules.selection import mean_of_best


@dataclasses.dataclass(frozen=True)
class CGE(Rule):
    """The mean of the n-f rows of smallest norm. Needs n >= 2f + 1.

    Guarantee: n-f honest rows are no longer than the longest of them, so neither are the rows taken, and the result is
    not either. That is all: a Byzantine row that is short enough takes part wherever it points, also where all honest
    rows agree. What the paper proves needs more of the loss (few Byzantine workers relative to its convexity).

    A row that holds a NaN or an infinity is infinitely long. Cost: n norms, O(n d). Weights: 1/(n-f) for each row
    taken. Ties go to the lowest row number.

    Who does what: Gupta et al. add up the rows that are left; the mean differs by the factor n-f.
    """

    name = "cge"
    summary = "the mean of the n-f rows of smallest norm"
    needs = "n >= 2f + 1"
    paper = "Gupta et al. 2020"
    promise = "norm"
    lacks: ClassVar = {"translation": "norms are measured from zero"}

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def reach(self, n: int, f: int) -> float:
        return 1.0

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)  # no square overflows
        return mean_of_best(rows, norms.nan_to_num_(nan=torch.inf, posinf=torch.inf), rows.shape[0] - f)

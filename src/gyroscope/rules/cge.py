"""Comparative gradient elimination: the mean of the shortest rows."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from gyroscope._linalg import matrix
from gyroscope.rules._selected_mean import mean_of_best
from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class CGE(Rule):
    """The mean of the n-f rows of smallest norm. Needs n >= 2f + 1.

    Guarantee: no row that is taken is longer than the longest honest row, so the result is not either. That is all: a
    short Byzantine row is taken wherever it points, even if all honest rows agree. The paper's proof needs more
    assumptions on the loss (few Byzantine workers relative to its convexity).

    A row with a NaN or an infinity counts as infinitely long. Cost: n norms, O(n d). Weights: 1/(n-f) for each row
    taken. Ties go to the lowest row number.

    Other implementations: Gupta et al. add up the rows that are left; the mean differs by the factor n-f.
    """

    name = "cge"
    aliases = ("comparative-gradient-elimination",)
    summary = "the mean of the n-f rows of smallest norm"
    needs = "n >= 2f + 1"
    paper = "Gupta et al. 2020"
    guarantee = "norm"
    unsupported: ClassVar = {"translation": "norms are measured from zero"}

    def bound_factor(self, n: int, f: int) -> float:
        return 1.0

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return mean_of_best(rows, matrix.squared_lengths(rows), rows.shape[0] - f)

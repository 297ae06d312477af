"""MoNNA's aggregation: the mean of the rows nearest to a trusted worker's row."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import matrix
from gyroscope.rules._selected_mean import mean_of_best
from gyroscope.rules.base import Aggregate, SelectionRule


@dataclasses.dataclass(frozen=True)
class MoNNA(SelectionRule):
    """The mean of the n-f rows nearest to the pivot worker's row, itself included. Needs n >= 2f + 1, an honest pivot.

    pivot: the number of that worker, 0 by default. The paper has no server: every node takes its own row, which it can
    trust, as the pivot. A server must trust one of its workers instead. A Byzantine pivot decides the result: the rule
    is resilient only if the pivot is honest.

    Guarantee: let R be the distance of the farthest honest row from the honest mean. n-f rows are within 2R of the
    honest pivot; so the rows taken are within 3R of the mean, and the honest ones among them (all but at most f) within
    R: their mean is within (1 + 2f/(n-f)) R. A row with a NaN or an infinity is infinitely far. Cost: n distances,
    O(n d). Weights: 1/(n-f) for each row taken. Ties go to the lowest row number.
    """

    pivot: int = registry.number(0, "the number of a worker, 0 or more", lambda pivot: pivot >= 0, whole=True)

    name = "monna"
    summary = "the mean of the n-f rows nearest to the row of a trusted worker, the pivot"
    needs = "n >= 2f + 1"
    paper = "Farhadkhani et al. 2023"
    reads = "distances"
    guarantee = "distance"
    unsupported: ClassVar = {"permutation": "the pivot is known by its number"}

    def bound_factor(self, n: int, f: int) -> float:
        return 1 + 2 * f / (n - f)

    def trusts(self, n: int) -> tuple[int, ...]:
        return (self.pivot,)

    def check_feasible(self, n: int, f: int) -> None:
        super().check_feasible(n, f)
        if self.pivot >= n:
            raise ConfigError(f"the pivot of 'monna' must be one of the workers 0 to {n - 1}, got {self.pivot}")

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return mean_of_best(rows, matrix.squared_lengths(rows, rows[self.pivot]), rows.shape[0] - f)

    def choose(self, table: Tensor, f: int) -> Tensor:
        return table[self.pivot].argsort(stable=True)[: len(table) - f]

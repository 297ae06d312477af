"""MoNNA's aggregation: the mean of the rows nearest to a row that is trusted."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg.distances import squared_distances_to
from gyroscope.rules.base import Aggregate, Rule
from gyroscope.rules.selection import mean_of_best


@dataclasses.dataclass(frozen=True)
class MoNNA(Rule):
    """The mean of the n-f rows nearest to the row of one worker, itself included. Needs n >= 2f + 1 and its honesty.

    pivot: the number of that worker, 0 if nothing is said. In the paper there is no server: every node takes its own
    row, which it can trust, as the pivot. At a server one worker must be trusted instead. If it lies, the result is
    what it wants: this rule is resilient only while the pivot is honest.

    Guarantee: where R is the distance of the farthest honest row from the honest mean, n-f rows are within 2R of the
    honest pivot; so the rows taken are within 3R of the mean, the honest ones among them (all but f at most) within R:
    their mean is within (1 + 2f/(n-f)) R. A row that holds a NaN or an infinity is infinitely far. Cost: n distances,
    O(n d). Weights: 1/(n-f) for each row taken. Ties go to the lowest row number.
    """

    pivot: int = 0

    name = "monna"
    summary = "the mean of the n-f rows nearest to the row of a trusted worker, the pivot"
    needs = "n >= 2f + 1"
    paper = "Farhadkhani et al. 2023"
    reads = "distances"
    promise = "distance"
    lacks: ClassVar = {"permutation": "the pivot is known by its number"}

    def __post_init__(self) -> None:
        if isinstance(self.pivot, bool) or not isinstance(self.pivot, int) or self.pivot < 0:
            raise ConfigError(f"MoNNA's pivot must be the number of a worker, 0 or more, got {self.pivot!r}")

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def reach(self, n: int, f: int) -> float:
        return 1 + 2 * f / (n - f)

    def trusts(self, n: int) -> tuple[int, ...]:
        return (self.pivot,)

    def check_feasible(self, n: int, f: int) -> None:
        super().check_feasible(n, f)
        if self.pivot >= n:
            raise ConfigError(f"MoNNA's pivot must be one of the workers 0 to {n - 1}, got {self.pivot}")

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self._nearest(rows, f, squared_distances_to(rows, rows[self.pivot]))

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        return self._nearest(rows, f, table[self.pivot])

    def _nearest(self, rows: Tensor, f: int, squares: Tensor) -> Aggregate:
        return mean_of_best(rows, squares, rows.shape[0] - f)

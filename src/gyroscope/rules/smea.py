"""SMEA, the smallest maximum eigenvalue averaging: the mean of the n-f rows that spread least in any direction."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg.distances import squared_distances
from gyroscope.rules import spectral, subsets
from gyroscope.rules.base import Aggregate, Rule
from gyroscope.rules.median import Median
from gyroscope.rules.selection import mean_of


@dataclasses.dataclass(frozen=True)
class SMEA(Rule):
    """The mean of the n-f rows whose covariance has the smallest largest eigenvalue. Needs n >= 2f + 1.

    Guarantee: the chosen rows spread at most as much, in any direction, as any n-f honest ones do, so their variance in
    a direction is at most the square of the radius R of the honest rows (their largest distance from their mean).
    Removing rows from a set, so that the fraction e of it goes, moves its mean by at most sqrt(e/(1-e)) standard
    deviations. At least n-2f of the chosen rows are honest, and of either set, the chosen and the honest, at most f
    rows are not among these: the result is at most 2 sqrt(f/(n-2f)) R from the honest mean. A row that holds a NaN or
    an infinity is infinitely far from all others and never chosen.

    Cost: n(n-1)/2 distances, O(n^2 d), and an exact search by branch and bound, whatever d is. In the worst case, rows
    that differ at random in many directions alike, it grows like the number of subsets: milliseconds for n = 15 and
    f = 6, seconds for n = 30 and f = 10, hopeless for n = 51 and f = 12. Where few directions dominate, or Byzantine
    rows agree, it takes a second or much less even then. After `limit` subsets, partial ones included, which is ten or
    twenty seconds, an error says that it is hopeless; `caf` has a similar guarantee without a search.

    Weights: 1/(n-f) for the chosen rows. Of subsets with equal eigenvalues (to 1e-10) the one with the lowest row
    numbers, compared from the first, is taken.

    Who does what: ByzFL takes one step of the power method from a random vector in place of the eigenvalue, so its
    choice is random; here it is the subset of the definition.
    """

    limit: int = 2_000_000

    name = "smea"
    summary = "the mean of the n-f rows whose covariance has the smallest largest eigenvalue; exact, by a search"
    needs = "n >= 2f + 1"
    paper = "Allouah et al. 2023"
    weaker = Median
    reads = "distances"
    promise = "distance"
    lacks: ClassVar = {"asynchronous": "the host searches"}

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise ConfigError(f"SMEA's limit must be a whole number of at least 1, got {self.limit!r}")

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def reach(self, n: int, f: int) -> float:
        return 2 * math.sqrt(f / (n - 2 * f))

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self.combine(rows, f, squared_distances(rows))

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        chosen = subsets.smallest_scatter(spectral.table_of(table), rows.shape[0] - f, self.limit)
        return mean_of(rows, torch.from_numpy(chosen).to(rows.device))

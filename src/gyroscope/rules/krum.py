"""Krum and Multi-Krum: the mean of the rows that have the nearest neighbours."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

from torch import Tensor

from gyroscope._core import theory
from gyroscope._core.errors import ConfigError
from gyroscope._linalg.distances import squared_distances
from gyroscope.rules.base import Aggregate, Rule
from gyroscope.rules.median import Median
from gyroscope.rules.selection import mean_of_best

Neighbours = Literal["n-f-2", "n-f-1"]


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How Krum scores a row: by the sum of its distances to its nearest neighbours. Bulyan uses it too."""

    squared: bool = False
    neighbours: Neighbours = "n-f-2"

    def __post_init__(self) -> None:
        if self.neighbours not in ("n-f-2", "n-f-1"):
            raise ConfigError(f"neighbours must be 'n-f-2' or 'n-f-1', got {self.neighbours!r}")
        if not isinstance(self.squared, bool):
            raise ConfigError(f"squared must be true or false, got {self.squared!r}")

    def scores(self, table: Tensor, f: int, left: int | None = None) -> Tensor:
        """The score of each row, from the table of squared distances between all rows.

        left: how many rows take part. The others' columns must be infinite, and their own scores mean nothing.
        """
        n = table.shape[0] if left is None else left
        count = max(1, n - f - (1 if self.neighbours == "n-f-1" else 2))
        nearest = others(table).sort(dim=1).values[:, :count]
        return (nearest if self.squared else nearest.sqrt()).sum(dim=1)

    def reach(self, neighbours: int, f: int) -> float:
        """How far a row may be from the honest mean that scores as well as honest rows do, where R is the distance of
        the farthest honest row.

        Each honest row has `neighbours` honest ones within 2R, so its score is at most neighbours * 2R. Of as many
        nearest others of a Byzantine row at most f - 1 are Byzantine. If its score is as good, one of its remaining
        neighbours, which are honest, is within 2R * neighbours / (neighbours - f + 1) of it, and that one within R of
        the mean. With squares the quotient stands under a root.
        """
        if f == 0:
            return 1.0
        quotient = neighbours / (neighbours - f + 1)
        return 1 + 2 * (math.sqrt(quotient) if self.squared else quotient)

    def ranking(self, table: Tensor, f: int) -> Tensor:
        """Row numbers from the best score to the worst; of equal scores the lowest row first."""
        return self.scores(table, f).argsort(stable=True)


def others(table: Tensor) -> Tensor:
    """(n, n-1): the table without its diagonal. By place: a row is no neighbour of itself, even where others lie at
    distance zero from it. (A mask would do, but a GPU would have to tell the host how many values it leaves.)"""
    n = table.shape[0]
    return table.flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)


@dataclasses.dataclass(frozen=True)
class Krum(Rule):
    """The mean of the m rows of smallest score. Needs n >= 2f + 3.

    A row's score is the sum of its distances to its n-f-2 nearest other rows. m runs from 1 to n-f-2, which is the
    default (the paper's experiments; others call it Multi-Krum when m > 1), or is "n-f".

    Guarantee: with k = n-f-2 neighbours the result is at most 1 + 2k/(k-f+1) times as far from the mean of the honest
    rows as the farthest of them (see `Scoring.reach`): n-f honest rows score well, so the m best rows all do. A row
    that holds a NaN or an infinity is infinitely far from all others, so it is never among the best n-f.
    Cost: n(n-1)/2 distances, O(n^2 d). Weights: 1/m for the chosen rows. Ties go to the lowest row number.

    Who does what: this paper's text sums distances over n-f-2 neighbours (the default). The original Krum paper sums
    squared distances (`squared=True`). The released code of this paper takes n-f-1 neighbours
    (`neighbours="n-f-1"`); ByzFL and ByzPy take n-f-1 with squares; Flower n-f-2 with squares. ByzFL's Multi-Krum
    averages n-f rows (`m="n-f"`). docs/rules.md has the table.
    """

    m: int | Literal["n-f"] | None = None
    squared: bool = False
    neighbours: Neighbours = "n-f-2"

    name = "krum"
    summary = "the mean of the m rows that are nearest to their n-f-2 nearest neighbours"
    needs = "n >= 2f + 3"
    paper = "Blanchard et al. 2017"
    weaker = Median
    reads = "distances"
    promise = "distance"
    lacks: ClassVar = {"mean at f = 0": "at most n-2 rows are averaged"}

    def __post_init__(self) -> None:
        if self.m != "n-f":
            check_m(type(self).__name__, self.m)
        Scoring(self.squared, self.neighbours)

    def min_workers(self, f: int) -> int:
        return 2 * f + 3

    def ratio_bound(self, n: int, f: int) -> float:
        return theory.krum_ratio_bound(n, f)

    def reach(self, n: int, f: int) -> float:
        return Scoring(self.squared, self.neighbours).reach(n - f - (1 if self.neighbours == "n-f-1" else 2), f)

    def check_feasible(self, n: int, f: int) -> None:
        super().check_feasible(n, f)
        if self.m != "n-f":
            check_m(type(self).__name__, self.m, n, f)

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self.combine(rows, f, squared_distances(rows))

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        n = rows.shape[0]
        m = n - f if self.m == "n-f" else self.m or n - f - 2
        return mean_of_best(rows, Scoring(self.squared, self.neighbours).scores(table, f), m)


def check_m(rule: str, m: int | None, n: int | None = None, f: int | None = None) -> None:
    """m is a whole number from 1 to n-f-2, or None for that largest value."""
    if m is None:
        return
    if isinstance(m, bool) or not isinstance(m, int) or m < 1:
        raise ConfigError(f"{rule}'s m must be a whole number of at least 1, got {m!r}")
    if n is not None and f is not None and m > n - f - 2:
        raise ConfigError(f"{rule}'s m must be at most n-f-2 = {n - f - 2} for n = {n} and f = {f}, got m = {m}")

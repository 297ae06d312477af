"""Krum and Multi-Krum: the mean of the rows that have the nearest neighbours."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gyroscope._core import registry, theory
from gyroscope._core.errors import ConfigError
from gyroscope._linalg._kernels import accelerated_by
from gyroscope.rules.base import DistanceRule, SelectionRule
from gyroscope.rules.median import Median

Neighbours = Literal["n-f-2", "n-f-1"]


def _by_numpy(table: Tensor, count: int, squared: bool) -> Tensor:
    *many, n, _ = table.shape
    flat = table.numpy().reshape(*many, n * n)
    others = flat[..., 1:].reshape(*many, n - 1, n + 1)[..., :-1].reshape(*many, n, n - 1)  # a copy, if n > 2
    others.sort(axis=-1)
    nearest = others[..., :count]
    return torch.from_numpy((nearest if squared else np.sqrt(nearest)).sum(axis=-1))


@accelerated_by(_by_numpy)
def sums_of_nearest(table: Tensor, count: int, squared: bool) -> Tensor:
    """Return (..., n) the sum of each row's distances, or of their squares, to its `count` nearest other rows.

    Args:
        table: (..., n, n) squared distances.
        count: How many neighbours count.
        squared: Whether to add up squares.
    """
    *many, n, _ = table.shape
    # The diagonal is removed by position, so a row is no neighbour of itself even if others are at distance zero. A
    # mask would make the host wait for a GPU, which has to tell how many values are left.
    others = table.flatten(-2)[..., 1:].reshape(*many, n - 1, n + 1)[..., :-1].reshape(*many, n, n - 1)
    nearest = others.sort(dim=-1).values[..., :count]
    return (nearest if squared else nearest.sqrt()).sum(dim=-1)


class ScoreRule(DistanceRule):
    """What Krum and Bulyan share: both rank rows by Krum's score, and average at most m of them.

    Krum scores a row by the sum of its distances to its nearest neighbours.
    """

    m: Any
    squared: bool
    neighbours: Neighbours

    def scores(self, table: Tensor, f: int, left: int | None = None) -> Tensor:
        """Return each row's score, given the squared distances between all rows.

        Args:
            table: (..., n, n) squared distances: one table, or many.
            f: How many rows may be Byzantine.
            left: How many rows take part, if not all do. The columns of the others must be infinite; their own scores
                mean nothing.
        """
        count = self.neighbour_count(table.shape[-1] if left is None else left, f)
        return sums_of_nearest(table, count, self.squared)

    def ranking(self, table: Tensor, f: int) -> Tensor:
        """Return the row numbers from the best score to the worst; of equal scores the lowest row comes first."""
        scores = self.scores(table, f)
        if scores.is_cpu:  # numpy orders so few numbers in a fraction of torch's time
            return torch.from_numpy(scores.numpy().argsort(kind="stable"))
        return scores.argsort(dim=-1, stable=True)

    def neighbour_count(self, n: int, f: int) -> int:
        """Return how many neighbours count."""
        return max(1, n - f - (1 if self.neighbours == "n-f-1" else 2))

    def score_bound_factor(self, neighbours: int, f: int) -> float:
        """Return how far a row that scores as well as honest rows may be from the honest mean, in multiples of R.

        R is the distance of the farthest honest row from the honest mean. Each honest row has `neighbours` honest ones
        within 2R, so its score is at most neighbours * 2R. At most f - 1 of a Byzantine row's neighbours are Byzantine.
        If its score is as good, one of its honest neighbours is within 2R * neighbours / (neighbours - f + 1) of it,
        and that one is within R of the mean. With squared distances the quotient is under a root.
        """
        if f == 0:
            return 1.0
        quotient = neighbours / (neighbours - f + 1)
        return 1 + 2 * (math.sqrt(quotient) if self.squared else quotient)

    def ratio_bound(self, n: int, f: int) -> float:
        return theory.krum_ratio_bound(n, f)

    def check_feasible(self, n: int, f: int) -> None:
        super().check_feasible(n, f)
        if isinstance(self.m, int) and self.m > n - f - 2:
            raise ConfigError(
                f"the m of {self.name!r} must be at most n-f-2 = {n - f - 2} for n = {n} and f = {f}, got m = {self.m}"
            )


@dataclasses.dataclass(frozen=True)
class Krum(ScoreRule, SelectionRule):
    """The mean of the m rows of smallest score. Needs n >= 2f + 3.

    A row's score is the sum of its distances to its n-f-2 nearest other rows. m is from 1 to n-f-2, which is the
    default (the paper's experiments; others call it Multi-Krum if m > 1), or "n-f".

    Guarantee: with k = n-f-2 neighbours the result is at most 1 + 2k/(k-f+1) times as far from the mean of the honest
    rows as the farthest of them (see `score_bound_factor`): n-f honest rows score well, so the m best rows all do. A
    row with a NaN or an infinity is infinitely far from all others, so it is never among the best n-f.
    Cost: n(n-1)/2 distances, O(n^2 d). Weights: 1/m for the chosen rows. Ties go to the lowest row number.

    Other implementations: this paper's text sums distances over n-f-2 neighbours (the default). The original Krum paper
    sums squared distances (`squared=True`). The released code of this paper takes n-f-1 neighbours
    (`neighbours="n-f-1"`); ByzFL and ByzPy take n-f-1 with squares; Flower n-f-2 with squares. ByzFL's Multi-Krum
    averages n-f rows (`m="n-f"`). The page The rules has the table.
    """

    m: int | Literal["n-f"] | None = registry.count(None, or_one_of=("n-f",))
    squared: bool = registry.choice(False, (True, False))
    neighbours: Literal["n-f-2", "n-f-1"] = registry.choice("n-f-2", ("n-f-2", "n-f-1"))

    name = "krum"
    aliases = ("multi-krum", "mkrum")
    summary = "the mean of the m rows that are nearest to their n-f-2 nearest neighbours"
    needs = "n >= 2f + 3"
    paper = "Blanchard et al. 2017"
    fallback = Median
    guarantee = "distance"
    unsupported: ClassVar = {"mean at f = 0": "at most n-2 rows are averaged"}

    def bound_factor(self, n: int, f: int) -> float:
        return self.score_bound_factor(self.neighbour_count(n, f), f)

    def choose(self, table: Tensor, f: int) -> Tensor:
        """Return (..., m): the numbers of the chosen rows, for one table of squared distances or for many at once."""
        n = table.shape[-1]
        m = n - f if self.m == "n-f" else self.m or n - f - 2
        return self.ranking(table, f)[..., :m]

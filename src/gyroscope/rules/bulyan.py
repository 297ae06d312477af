"""Bulyan of Krum: iterate Krum to select, then take the middle of the selections in each coordinate."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core import theory
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import order_statistics
from gyroscope._linalg.distances import squared_distances
from gyroscope.rules.base import Aggregate, Rule
from gyroscope.rules.krum import Krum, Neighbours, Scoring, check_m


@dataclasses.dataclass(frozen=True)
class Bulyan(Rule):
    """Krum's selections, then the mean around their median in each coordinate. Needs n >= 4f + 3.

    theta = n-2f-2 selections are made. Selection i is the mean of the best-ranked rows by Krum's score among those
    left, m_i = min(m, n-f-2-i) of them, with m = n-f-2 by default; then the best-ranked row leaves. The result is, per
    coordinate, the mean of the beta = theta-2f selections nearest to their median.

    Guarantee: f arbitrary rows move no coordinate further than about the honest rows' spread there, where Krum alone
    lets them move a few coordinates by the whole distance. NaN and infinities as for Krum. Cost: Krum's, plus a small
    matrix product and a sort of theta values per coordinate. Weights: each worker's mean share in the selections,
    before the coordinate-wise step.

    Who does what: the text says "iterating over Krum", that is, scores are computed anew after each removal
    (`rescore=True`); the released code computes them once (the default), and only that gives the published figures:
    with rescoring, copies of a Byzantine row score ever better as the set shrinks. The original Bulyan paper has
    theta = n-2f and beta = n-4f (`slack=0`) instead of n-2f-2 and n-4f-2.
    """

    m: int | None = None
    rescore: bool = False
    squared: bool = False
    neighbours: Neighbours = "n-f-2"
    slack: int = 2

    name = "bulyan"
    summary = "selects by iterating Krum, then averages around the median of the selections in each coordinate"
    needs = "n >= 4f + 3"
    paper = "El Mhamdi et al. 2018"
    weaker = Krum
    reads = "distances"
    promise = "distance"
    lacks: ClassVar = {"mean at f = 0": "the best-ranked rows take part in more selections than the others"}

    def __post_init__(self) -> None:
        check_m(type(self).__name__, self.m)
        Scoring(self.squared, self.neighbours)
        if not isinstance(self.slack, int) or self.slack not in (0, 2):
            raise ConfigError(f"Bulyan's slack must be 2 (this paper) or 0 (the original Bulyan), got {self.slack!r}")
        if not isinstance(self.rescore, bool):
            raise ConfigError(f"Bulyan's rescore must be true or false, got {self.rescore!r}")

    def min_workers(self, f: int) -> int:
        return 4 * f + 3

    def ratio_bound(self, n: int, f: int) -> float:
        return theory.krum_ratio_bound(n, f)

    def reach(self, n: int, f: int) -> float:
        """3 sqrt(theta) times Krum's reach.

        A selection is the mean of rows that score as well as honest ones, so Krum's bound holds for it, with n-f-2
        neighbours if scores are computed once, and with f or more if they are computed anew among the rows left.
        (With slack = 0 the very last one has fewer and may be anywhere; a single one does not get past the median.)
        In a coordinate where the selections, but for that one, are within M of the honest mean, so is their median;
        the values nearest to it are within 2M of it, so their mean is within 3M of the honest mean. Over all
        coordinates the squares of M add up to at most theta times the square of Krum's bound.
        """
        neighbours = f if self.rescore else n - f - (1 if self.neighbours == "n-f-1" else 2)
        krum = Scoring(self.squared, self.neighbours).reach(max(1, neighbours), f)
        return 3 * math.sqrt(n - 2 * f - self.slack) * krum

    def check_feasible(self, n: int, f: int) -> None:
        super().check_feasible(n, f)
        check_m(type(self).__name__, self.m, n, f)

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self.combine(rows, f, squared_distances(rows))

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        shares = self._selections(table, f)
        vector = order_statistics.mean_around_median(rows, len(shares) - 2 * f, shares)
        return Aggregate(vector, shares.mean(dim=0))

    def _selections(self, table: Tensor, f: int) -> Tensor:
        """(theta, n): the share of each row in each selection. Only the table of squared distances is looked at."""
        n = table.shape[0]
        scoring = Scoring(self.squared, self.neighbours)
        shares = torch.zeros(n - 2 * f - self.slack, n, dtype=torch.float64, device=table.device)
        removed = torch.zeros(n, dtype=torch.bool, device=table.device)
        ranking = scoring.ranking(table, f)  # the rows left, best first
        for i in range(shares.shape[0]):
            if self.rescore and i > 0:
                # Nothing here has a size that depends on values: a GPU need not wait for the host, nor it for the GPU.
                scores = scoring.scores(table.masked_fill(removed, torch.inf), f, left=n - i)
                order = scores.argsort(stable=True)
                ranking = order[removed[order].to(torch.uint8).argsort(stable=True)][: n - i]
            count = max(1, min(self.m or n, n - f - 2 - i))
            shares[i].index_fill_(0, ranking[:count], 1 / count)
            removed.index_fill_(0, ranking[:1], True)
            ranking = ranking[1:]
        return shares

"""Bulyan of Krum: iterate Krum to select, then take the middle of the selections in each coordinate."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import order_statistics
from gyroscope.rules.base import Aggregate
from gyroscope.rules.krum import Krum, ScoreRule


@dataclasses.dataclass(frozen=True)
class Bulyan(ScoreRule):
    """Krum's selections, then the mean around their median in each coordinate. Needs n >= 4f + 3.

    The rule makes theta = n-2f-2 selections. Selection i is the mean of the best-ranked rows by Krum's score among
    those left, m_i = min(m, n-f-2-i) of them, with m = n-f-2 by default; then the best-ranked row leaves. The result
    is, per coordinate, the mean of the beta = theta-2f selections nearest to their median.

    Guarantee: f arbitrary rows move no coordinate further than about the honest rows' spread there, where Krum alone
    lets them move a few coordinates by the whole distance. NaN and infinities as for Krum. Cost: Krum's, plus a small
    matrix product and a sort of theta values per coordinate. Weights: each worker's mean share in the selections,
    before the coordinate-wise step.

    Other implementations: the text says "iterating over Krum", that is, it computes scores anew after each removal
    (`rescore=True`); the released code computes them once (the default), and only that gives the published figures:
    with rescoring, copies of a Byzantine row score ever better as the set shrinks. The original Bulyan paper has
    theta = n-2f and beta = n-4f (`slack=0`) instead of n-2f-2 and n-4f-2.
    """

    m: int | None = registry.count(None)
    rescore: bool = registry.choice(False, (True, False))
    squared: bool = registry.choice(False, (True, False))
    neighbours: Literal["n-f-2", "n-f-1"] = registry.choice("n-f-2", ("n-f-2", "n-f-1"))
    slack: int = registry.number(
        2, "2 (this paper) or 0 (the original Bulyan)", lambda slack: slack in (0, 2), whole=True
    )

    name = "bulyan"
    summary = "selects by iterating Krum, then averages around the median of the selections in each coordinate"
    needs = "n >= 4f + 3"
    paper = "El Mhamdi et al. 2018"
    fallback = Krum
    guarantee = "distance"
    unsupported: ClassVar = {"mean at f = 0": "the best-ranked rows take part in more selections than the others"}

    def bound_factor(self, n: int, f: int) -> float:
        """Return 3 sqrt(theta) times Krum's factor.

        A selection is the mean of rows that score as well as honest ones, so Krum's bound holds for it, with n-f-2
        neighbours if scores are computed once, and with f or more if they are computed anew among the rows left.
        (With slack = 0 the very last one has fewer and may be anywhere; a single one does not get past the median.)
        In a coordinate where the selections, except for that one, are within M of the honest mean, so is their median;
        the values nearest to it are within 2M of it, so their mean is within 3M of the honest mean. Over all
        coordinates the squares of M add up to at most theta times the square of Krum's bound.
        """
        neighbours = max(1, f) if self.rescore else self.neighbour_count(n, f)
        return 3 * math.sqrt(n - 2 * f - self.slack) * self.score_bound_factor(neighbours, f)

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        selections = self._selections(table, f)
        return _around_median(rows, f, selections, selections)

    def combine_mixed(self, rows: Tensor, shares: Tensor, f: int, table: Tensor) -> Aggregate:
        selections = self._selections(table, f)
        return _around_median(rows, f, selections, (selections, shares))

    def _selections(self, table: Tensor, f: int) -> Tensor:
        """Return (theta, n): the share of each row in each selection, from the squared distances between the rows."""
        n = table.shape[0]
        ranking = self.ranking(table, f)  # the rows left, best first
        if not self.rescore:
            # All selections at once: selection i has the rows from place i of the ranking on.
            first = torch.arange(n - 2 * f - self.slack, device=table.device).unsqueeze(1)
            counts = (n - f - 2 - first).clamp_(1, self.m or n)
            place = ranking.argsort()
            chosen = (place >= first) & (place < first + counts)
            return torch.where(chosen, 1 / counts.to(torch.float64), 0.0)
        shares = torch.zeros(n - 2 * f - self.slack, n, dtype=torch.float64, device=table.device)
        removed = torch.zeros(n, dtype=torch.bool, device=table.device)
        for i in range(shares.shape[0]):
            if i > 0:
                # No size here depends on values, so the host does not wait for a GPU.
                scores = self.scores(table.masked_fill(removed, torch.inf), f, left=n - i)
                order = scores.argsort(stable=True)
                ranking = order[removed[order].to(torch.uint8).argsort(stable=True)][: n - i]
            count = max(1, min(self.m or n, n - f - 2 - i))
            shares[i].index_fill_(0, ranking[:count], 1 / count)
            removed.index_fill_(0, ranking[:1], True)
            ranking = ranking[1:]
        return shares


def _around_median(rows: Tensor, f: int, selections: Tensor, shares: Tensor | tuple[Tensor, Tensor]) -> Aggregate:
    """Return the mean around the median of the selections, whose shares in the rows are given."""
    vector = order_statistics.mean_around_median(rows, len(selections) - 2 * f, shares)
    return Aggregate(vector, selections.mean(dim=0))

"""DnC, divide and conquer: rows that stick out along the widest direction, on some of the coordinates, are dropped."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import matrix
from gyroscope._linalg.distances import squared_distances
from gyroscope.rules import spectral
from gyroscope.rules.base import Aggregate, ContextualRule, RuleContext, RuleState
from gyroscope.rules.median import Median


@dataclasses.dataclass(frozen=True)
class DnC(ContextualRule):
    """The mean of the rows that no iteration dropped. Needs n >= 2f + 1.

    Each of `iterations` draws `coordinates` of the d coordinates at random, finds on them the direction in which the
    rows spread most (the top right singular vector of the centred rows), and drops the ceil(c f) rows that deviate
    most from the mean along it. The result is the mean of the rows that survived all of them. Where none did, on which
    the paper is silent, it is the mean of those that survived most of them.

    Guarantee: the result is finite, and no more is proven here. Byzantine rows that agree stick out along one direction
    and are dropped if they are far enough to matter, which is what the paper proves. Rows that are far out in several
    directions hide behind the farthest of them: each iteration looks along one direction only. A row that holds a NaN
    or an infinity anywhere is the worst outlier of every iteration; the c f count it in.

    Cost: n(n-1)/2 distances on the drawn coordinates and an eigenproblem of size n, per iteration: less than Krum's
    where d is large. Where `coordinates` are d or more there is nothing to draw, and one iteration says all. Weights:
    equal for the survivors. Of rows that stick out alike the lowest row numbers stay.

    Who does what: c = 1 and 10,000 coordinates are the paper's; it has one iteration in most of its experiments, other
    implementations have five, as here. More iterations drop more honest rows, too.
    """

    iterations: int = 5
    coordinates: int = 10_000
    c: float = 1.0

    name = "dnc"
    summary = "drops the c f rows that stick out most along the widest direction, on random coordinates, several times"
    needs = "n >= 2f + 1"
    paper = "Shejwalkar and Houmansadr 2021"
    weaker = Median
    promise = "finite"
    uses: ClassVar = frozenset({"randomness"})
    lacks: ClassVar = {"asynchronous": "the host finds the eigenvectors"}

    def __post_init__(self) -> None:
        for name in ("iterations", "coordinates"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"DnC's {name} must be a whole number of at least 1, got {value!r}")
        if isinstance(self.c, bool) or not isinstance(self.c, (int, float)) or not 0 < self.c < math.inf:
            raise ConfigError(f"DnC's c must be a positive number, got {self.c!r}")

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def check_feasible(self, n: int, f: int) -> None:
        super().check_feasible(n, f)
        if self._dropped(f) >= n:
            raise ConfigError(
                f"DnC would drop all n = {n} workers: ceil(c f) = {self._dropped(f)} for c = {self.c} and f = {f}. "
                "Lower c: the paper has 1"
            )

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        n, d = rows.shape
        # On all coordinates: those drawn may miss a NaN.
        finite = torch.linalg.vector_norm(rows, math.inf, dim=1).isfinite().cpu().numpy()
        survived = np.zeros(n, dtype=np.int64)
        generator = context.generator("dnc")
        drawn = self.coordinates < d
        for _ in range(self.iterations if drawn else 1):
            part = rows
            if drawn:
                places = torch.randperm(d, generator=generator)[: self.coordinates].sort().values
                part = rows.index_select(1, places.to(rows.device))
            table = spectral.table_of(squared_distances(part))
            survived[kept(table, finite.nonzero()[0], self._dropped(f))] += 1
        chosen = (survived == survived.max()).nonzero()[0]
        return Aggregate(_mean(rows, torch.from_numpy(chosen)), spectral.shares_of(n, chosen, rows.device)), {}

    def _dropped(self, f: int) -> int:
        return math.ceil(self.c * f)


def kept(table: spectral.Array, among: spectral.Array, dropped: int) -> spectral.Array:
    """The numbers of the rows that one iteration keeps: `dropped` leave, and all that are not `among` those to compare.

    table: the squared distances between all rows on the coordinates that the iteration looks at.
    """
    n = len(table)
    among = among[spectral.comparable(table[np.ix_(among, among)])]
    deviations = np.full(n, np.inf)
    if len(among) > 0:
        equal = np.full(len(among), 1 / len(among))
        # Rounded, so that rows which deviate alike, as those on opposite sides may, are told apart by their number.
        deviations[among] = spectral.spread(table[np.ix_(among, among)], equal).outlyingness.round(10)
    best = np.argsort(deviations, kind="stable")[: n - dropped]
    return np.asarray(best[np.isfinite(deviations[best])])


def _mean(rows: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen rows, finite if they are."""
    mean = matrix.mean_of(rows, chosen.to(rows.device))
    if not mean.isfinite().all():  # the sum of some huge rows is too large, their mean is not
        mean = (rows.index_select(0, chosen.to(rows.device)) / len(chosen)).sum(dim=0)
    return mean

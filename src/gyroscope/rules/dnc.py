"""DnC, divide and conquer: drop the rows that stick out along the widest direction, on some of the coordinates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import distances, matrix, order_statistics
from gyroscope.rules import _spectral
from gyroscope.rules._selected_mean import mean_of
from gyroscope.rules._spectral import Array
from gyroscope.rules.base import Aggregate, ContextualRule, RuleContext, RuleState, equal_weights
from gyroscope.rules.median import Median


@dataclasses.dataclass(frozen=True)
class DnC(ContextualRule):
    """The mean of the rows that no iteration dropped. Needs n >= 2f + 1.

    Each of `iterations` draws `coordinates` of the d coordinates at random, finds on them the direction in which the
    rows spread most (the top right singular vector of the centred rows), and drops the ceil(c f) rows that deviate
    most from the mean along it. The result is the mean of the rows that survived all of them. If none did, a case that
    the paper does not mention, it is the mean of those that survived most of them.

    robust: shorten rows first. On the drawn coordinates, each row that is farther from the coordinate-wise median than
        the median distance (of an even number the lower middle) moves towards it, to that distance. Before it averages
        the survivors, the rule shortens them in the same way on all coordinates. The default is the paper's rule, and
        an adversary steers it: in the attack `decoy` one row, extremely far out, fixes the direction that the rule
        looks at, and the other Byzantine rows survive wherever they are. A shortened decoy fixes nothing.

    Guarantee: the paper's rule returns a finite result, and no more is proven here. Byzantine rows that agree stick out
    along one direction and are dropped if they are far enough to matter, which is what the paper proves. Rows that are
    far out in several directions hide behind the farthest of them: each iteration looks along one direction only. That
    is true of `robust`, too, but whatever survives is bounded. Let R be the distance of the farthest honest row from
    the honest mean, and k = (n+1)/2 - f, rounded down. In each coordinate at least k honest values are as far from
    their mean as the median is. Add up the squares over honest rows and coordinates: the median is within a R of the
    mean, with a = sqrt((n-f)/k). So all honest rows are within (1 + a) R of the median, and more than half of all rows
    are honest: the shortened rows are within (1 + a) R of it, too, and the result is within (1 + 2a) R of the mean.

    A row with a NaN or an infinity anywhere is the worst outlier of every iteration, and one of the c f rows that it
    drops. With `robust` so is a row whose squared distance from the median overflows in float64.

    Cost: n(n-1)/2 distances on the drawn coordinates and an eigenproblem of size n, per iteration: less than Krum's if
    d is large. If `coordinates` is d or more there is nothing to draw, and one iteration is enough. `robust` adds a
    median of each coordinate. Weights: equal for the survivors, before they are shortened. Of rows that stick out
    equally, those with the lowest numbers stay.

    Other implementations: c = 1 and 10,000 coordinates are the paper's; it has one iteration in most of its
    experiments, other implementations have five, as here. More iterations drop more honest rows, too.
    """

    iterations: int = registry.count(5)
    coordinates: int = registry.count(10_000)
    c: float = registry.positive(1.0)
    robust: bool = registry.choice(False, (False, True))

    name = "dnc"
    aliases = ("divide-and-conquer",)
    summary = "drops the c f rows that stick out most along the widest direction, on random coordinates, several times"
    needs = "n >= 2f + 1"
    paper = "Shejwalkar and Houmansadr 2021"
    fallback = Median
    uses: ClassVar = frozenset({"randomness"})
    unsupported: ClassVar = {"asynchronous": "the host finds the eigenvectors"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.robust:
            why = "far rows are shortened for any f"
            vars(self).update(guarantee="distance", unsupported={**type(self).unsupported, "mean at f = 0": why})

    def bound_factor(self, n: int, f: int) -> float:
        return 1 + 2 * math.sqrt((n - f) / ((n + 1) // 2 - f)) if self.robust else 0.0

    def check_feasible(self, n: int, f: int) -> None:
        super().check_feasible(n, f)
        if self._dropped(f) >= n:
            raise ConfigError(
                f"dnc would drop all n = {n} workers: ceil(c f) = {self._dropped(f)} for c = {self.c} and f = {f}. "
                "Lower c: the paper has 1"
            )

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        n, d = rows.shape
        centre = order_statistics.median(rows) if self.robust else None
        factors = None if centre is None else _factors([(rows, centre)])[0]
        draws = [*context.draw("dnc", self.coordinates, d, self.iterations)] if self.coordinates < d else []
        at_once = max(1, d // self.coordinates)  # the columns drawn take no more memory than the rows
        survived = np.zeros(n, dtype=np.int64)
        for first in range(0, max(1, len(draws)), at_once):
            some = draws[first : first + at_once]
            # Finite on all coordinates: those drawn may miss a NaN.
            finite, drawn = matrix.finite_and_gathered(rows, some) if some else (matrix.finite_rows(rows), rows)
            if factors is not None:
                finite &= factors.isfinite()
            known = finite.cpu().numpy().nonzero()[0]
            for table in map(_spectral.table_of, self._tables(drawn, some, centre)):
                survived[kept(table, known, self._dropped(f))] += 1
        chosen = torch.from_numpy((survived == survived.max()).nonzero()[0]).to(rows.device)
        if factors is not None and centre is not None:
            weight = equal_weights(rows, chosen)
            shares = factors.mul(weight).masked_fill_(weight == 0, 0.0)
            return Aggregate(matrix.weighted_sum(rows, shares, 1.0, centre, 1 - shares.sum()), weight), {}
        mean = mean_of(rows, chosen)
        if not matrix.all_finite(mean.vector):  # the sum of some huge rows overflows, their mean does not
            mean = mean._replace(vector=(rows.index_select(0, chosen) / len(chosen)).sum(dim=0))
        return mean, {}

    def _tables(self, drawn: Tensor, draws: list[Tensor], centre: Tensor | None) -> list[Tensor]:
        """Return the squared distances on the coordinates of each iteration, which are side by side."""
        parts = max(1, len(draws))
        if centre is None:
            return distances.squared_distances_by_parts(drawn, parts)
        middle = centre[torch.cat(draws).to(centre.device)] if draws else centre
        factors = _factors([*zip(drawn.chunk(parts, dim=1), middle.chunk(parts), strict=True)])
        return distances.unit_distances_by_parts(drawn, factors, drawn.dtype, middle)

    def _dropped(self, f: int) -> int:
        return math.ceil(self.c * f)


def _factors(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return (parts, n): by what to multiply each row's difference from the median, given rows and their median.

    That is NaN for a row that is infinitely far from the median.
    """
    lengths = torch.stack([matrix.squared_lengths(rows, median) for rows, median in parts]).sqrt_()
    limit = lengths.sort(dim=1).values[:, (lengths.shape[1] - 1) // 2].unsqueeze(1)
    return torch.where(lengths > limit, limit / lengths, 1.0).masked_fill_(lengths.isinf(), torch.nan)


def kept(table: Array, among: Array, dropped: int) -> Array:
    """Return the numbers of the rows that one iteration keeps.

    Args:
        table: The squared distances between all rows on the coordinates that the iteration looks at.
        among: The rows to compare; the iteration drops all others.
        dropped: How many rows the iteration drops.
    """
    n = len(table)
    among = among[_spectral.comparable(table[np.ix_(among, among)])]
    deviations = np.full(n, np.inf)
    if len(among) > 0:
        equal = np.full(len(among), 1 / len(among))
        # Rounded, so that the row number decides between rows that deviate equally, on opposite sides for example.
        deviations[among] = _spectral.spread(table, equal, among).outlyingness.round(10)
    best = np.argsort(deviations, kind="stable")[: n - dropped]
    return np.asarray(best[np.isfinite(deviations[best])])

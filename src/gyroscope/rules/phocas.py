"""Phocas: the mean around the trimmed mean, in each coordinate."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope._linalg import order_statistics
from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class Phocas(Rule):
    """Per coordinate the mean of the n-f values nearest to the trimmed mean. Needs n >= 2f + 1.

    The trimmed mean leaves out the f smallest and f largest values (see `TrimmedMean`); MeaMed averages around the
    median instead. Of two values equally near, the rule takes the smaller.

    Guarantee: that of `MeaMed`, because the trimmed mean, too, is within the honest range. NaN and infinities as for
    the trimmed mean. Cost: a sort per coordinate, O(n log^2 n d): in sorted order the values nearest to any place are a
    window. No worker weights.
    """

    name = "phocas"
    summary = "the mean of the n-f values nearest to the trimmed mean in each coordinate"
    needs = "n >= 2f + 1"
    paper = "Xie et al. 2018"
    reads = "columns"
    guarantee = "range"

    def bound_factor(self, n: int, f: int) -> float:
        return f / (n - f)

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self.aggregate_mixed(rows, None, f)

    def aggregate_mixed(self, rows: Tensor, shares: Tensor | None, f: int) -> Aggregate:
        n = len(rows if shares is None else shares)
        return Aggregate(order_statistics.mean_around_trimmed_mean(rows, f, n - f, shares), None)

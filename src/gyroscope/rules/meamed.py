"""MeaMed: the mean around the median, in each coordinate."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import order_statistics
from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class MeaMed(Rule):
    """Per coordinate the mean of the n-f values nearest to the median. Needs n >= 2f + 1.

    Of two values equally near, the rule takes the smaller.

    Guarantee: the median is within the honest range, of width w, as are n-f values: so the nearest n-f are within w of
    it. At most f of them are Byzantine, so their mean is within the honest range widened by w f/(n-f). NaN counts as
    larger than +inf and is never near. Cost: a sort per coordinate, O(n log^2 n d). No worker weights.

    Other implementations: the median of an even number of values is the lower middle, as in `Median`; ByzFL takes the
    mean of both middles (`even="mean"`).
    """

    even: Literal["lower", "mean"] = registry.choice("lower", ("lower", "mean"))

    name = "meamed"
    aliases = ("mean-around-median",)
    summary = "the mean of the n-f values nearest to the median in each coordinate"
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
        if self.even == "lower":
            return Aggregate(order_statistics.mean_around_median(rows, n - f, shares), None)
        # With all values trimmed but the middle ones, the trimmed mean is the median.
        return Aggregate(order_statistics.mean_around_trimmed_mean(rows, (n - 1) // 2, n - f, shares), None)

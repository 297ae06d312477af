"""The coordinate-wise median."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from torch import Tensor

from gyroscope._core import registry, theory
from gyroscope._linalg import order_statistics
from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class Median(Rule):
    """The median of each coordinate. Needs n >= 2f + 1.

    Guarantee: every coordinate is within the range of the honest rows. NaN counts as larger than +inf, so at most f
    bad values per coordinate never reach the result. Cost: one selection per coordinate, O(n d). No worker weights:
    each coordinate may come from another worker.

    Other implementations: with an even number of rows, torch and the paper's released code take the lower of the two
    middle values (`even="lower"`, the default); numpy, ByzFL and Flower take their mean (`even="mean"`).
    """

    even: Literal["lower", "mean"] = registry.choice("lower", ("lower", "mean"))

    name = "median"
    aliases = ("cm", "cwmed", "comed", "coordinate-wise-median", "fedmedian")
    summary = "the median of each coordinate"
    needs = "n >= 2f + 1"
    paper = "Yin et al. 2018"
    reads = "columns"
    guarantee = "range"
    unsupported: ClassVar = {"mean at f = 0": "a median is no mean"}

    def ratio_bound(self, n: int, f: int) -> float:
        return theory.median_ratio_bound(n, f)

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self.aggregate_mixed(rows, None, f)

    def aggregate_mixed(self, rows: Tensor, shares: Tensor | None, f: int) -> Aggregate:
        return Aggregate(order_statistics.median(rows, self.even, shares), None)

"""The coordinate-wise median."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from torch import Tensor

from gyroscope._core import theory
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import order_statistics
from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class Median(Rule):
    """The median of each coordinate. Needs n >= 2f + 1.

    Guarantee: every coordinate lies within the range of the honest rows. NaN counts as larger than +inf, so at most f
    bad values per coordinate never reach the result. Cost: one selection per coordinate, O(n d).

    With an even number of rows, `even="lower"` takes the lower of the two middle values, as torch and the paper's
    released code do; `even="mean"` their mean, as numpy, ByzFL and Flower do. No worker weights: each coordinate may
    come from another worker.
    """

    even: Literal["lower", "mean"] = "lower"

    name = "median"
    summary = "the median of each coordinate"
    needs = "n >= 2f + 1"
    paper = "Yin et al. 2018"
    reads = "columns"
    promise = "range"
    lacks: ClassVar = {"mean at f = 0": "a median is no mean"}

    def __post_init__(self) -> None:
        if self.even not in ("lower", "mean"):
            raise ConfigError(f"Median's even must be 'lower' or 'mean', got {self.even!r}")

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def ratio_bound(self, n: int, f: int) -> float:
        return theory.median_ratio_bound(n, f)

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return Aggregate(order_statistics.median(rows, self.even), None)

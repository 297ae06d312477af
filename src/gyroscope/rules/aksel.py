"""Aksel: the mean of the rows nearest to the coordinate-wise median."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import matrix, order_statistics
from gyroscope.rules._selected_mean import mean_of_best
from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class Aksel(Rule):
    """The mean of the rows whose distance from the coordinate-wise median is at most the median one. n >= 2f + 1.

    These are the (n+1)/2 nearest rows, rounded down (`keep="half"`). With `keep="n-f"`, the n-f nearest. The median of
    an even number is the lower middle, of values as of distances.

    Guarantee: let R be the distance of the farthest honest row from the honest mean. The coordinate-wise median is
    within sqrt(n) R of the mean: in each coordinate it is no farther than the farthest honest value, and the squares of
    these add up to at most those of all honest rows. So n-f rows are within (1 + sqrt(n)) R of the median, the rows
    taken are too, and their mean is within (1 + 2 sqrt(n)) R of the honest mean.

    A NaN counts as larger than +inf for the median, and a row with a NaN or an infinity is infinitely far from it.
    Cost: a selection per coordinate and n distances, O(n d). Weights: the same for each row taken. Ties go to the
    lowest row number.
    """

    keep: Literal["half", "n-f"] = registry.choice("half", ("half", "n-f"))

    name = "aksel"
    summary = "the mean of the half of the rows that is nearest to the median"
    needs = "n >= 2f + 1"
    paper = "Boussetta et al. 2021"
    guarantee = "distance"
    unsupported: ClassVar = {"mean at f = 0": "half of the rows are averaged (all of them with keep=n-f)"}

    def bound_factor(self, n: int, f: int) -> float:
        return 1 + 2 * math.sqrt(n)

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        n = rows.shape[0]
        squares = matrix.squared_lengths(rows, order_statistics.median(rows))
        return mean_of_best(rows, squares, (n + 1) // 2 if self.keep == "half" else n - f)

"""Min-Sum: no further from all honest rows together than the remotest honest row is."""

from __future__ import annotations

import dataclasses
import math

from gyroscope.attacks._line import Line
from gyroscope.attacks.min_max import DistanceBounded


@dataclasses.dataclass(frozen=True)
class MinSum(DistanceBounded):
    """Send mean + gamma * p with the largest gamma such that sum_i |row - x_i|^2 <= max_i sum_j |x_i - x_j|^2.

    Stricter than `min-max`: the row must be about as near to the honest rows as an honest row. direction: p = -std
    (`std`, the default), -sign(mean) (`sign`) or -mean/|mean| (`mean`). Cost: the honest rows' h(h-1)/2 distances.

    The paper's bound is the maximum over i, as here. The authors' released code takes the minimum, so its rows are
    nearer to the mean.
    """

    name = "min-sum"
    summary = "mean + gamma * p, as far as the largest sum of squared distances of an honest row allows"
    paper = "Shejwalkar, Houmansadr 2021"

    def gamma(self, line: Line) -> float:
        # The deviations from the mean sum to zero up to its rounding: without b the sum of squares would be that of the
        # mean plus h gamma^2 |p|^2.
        a, b = line.h * line.square, -float(line.linear.sum())
        c = min(float(line.constant.sum() - line.between.sum(axis=1).max()), 0.0)  # above 0 by rounding only
        return (math.sqrt(b * b - a * c) - b) / a

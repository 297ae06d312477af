"""Min-Sum: no further from all honest rows together than the remotest honest row is."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from gyroscope._linalg import distances
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

    def gamma(self, honest: Tensor, mean: Tensor, direction: Tensor) -> float:
        # The deviations from the mean sum to zero, so the sum of squares is that of the mean plus h gamma^2 |p|^2.
        a = len(honest) * float(torch.dot(direction, direction))
        at_mean = float((honest - mean).square().sum())
        bound = float(distances.squared_distances(honest).sum(dim=1).max())
        return math.sqrt(max(0.0, bound - at_mean) / a)  # below 0 by rounding only

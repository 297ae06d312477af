"""Min-Max: no further from any honest row than two honest rows are from each other."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope._linalg import distances
from gyroscope.attacks.distance_bounded import DistanceBounded


@dataclasses.dataclass(frozen=True)
class MinMax(DistanceBounded):
    """Send mean + gamma * p with the largest gamma such that max_i |row - x_i| <= max_ij |x_i - x_j|, over honest x.

    The adversary need not know the rule: to any rule that looks at distances, the row is no further out than the
    farthest honest one. direction: p = -std (`std`, the default), -sign(mean) (`sign`) or -mean/|mean| (`mean`); the
    original paper tries all three and finds another best for each data set. Cost: the honest rows' h(h-1)/2 distances.
    """

    name = "min-max"
    summary = "mean + gamma * p, as far as the largest distance between honest rows allows"
    paper = "Shejwalkar, Houmansadr 2021"

    def gamma(self, honest: Tensor, mean: Tensor, direction: Tensor) -> float:
        # |mean + gamma p - x_i|^2 <= D for each i: a quadratic inequality in gamma, true at 0 because the mean is in
        # the rows' convex hull. The smallest of the positive roots satisfies all of them.
        away = mean - honest
        a = float(torch.dot(direction, direction))
        b = away @ direction
        c = away.square().sum(dim=1) - distances.squared_distances(honest).max()
        c.clamp_max_(0.0)  # above 0 by rounding only
        return float((-b + (b.square() - a * c).sqrt()).min()) / a

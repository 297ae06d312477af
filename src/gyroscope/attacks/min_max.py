"""Min-Max: no further from any honest row than two honest rows are from each other. Min-Sum has the same base class."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import distances
from gyroscope.attacks.base import Attack, AttackContext, normalized, repeat, to_unit_scale


@dataclasses.dataclass(frozen=True)
class DistanceBounded(Attack):
    """Send mean + gamma * p, the same for all f workers, with the largest gamma >= 0 that keeps a bound on distances.

    p is against the mean: -std per coordinate (ddof = 1), -sign(mean), or -mean/|mean|. The bounds are quadratic in
    gamma, so the largest gamma is their root and no search is needed: exact to rounding in float64, where the authors'
    code halves its steps until they are below 1e-5. It is 0 if p or all distances vanish.
    """

    direction: Literal["std", "sign", "mean"] = registry.choice("std", ("std", "sign", "mean"))

    @abstractmethod
    def gamma(self, honest: Tensor, mean: Tensor, direction: Tensor) -> float:
        """Return the largest gamma within the bound, for a direction that does not vanish."""

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        unit, scale = to_unit_scale(honest)
        mean = unit.mean(dim=0)
        direction = self._against(unit, mean)
        if bool(direction.any()):
            mean = mean + self.gamma(unit, mean, direction) * direction
        return repeat((mean * scale).to(honest.dtype), f)

    def _against(self, honest: Tensor, mean: Tensor) -> Tensor:
        """Return p, the direction of the deviation."""
        if self.direction == "std":
            return -honest.std(dim=0) if len(honest) > 1 else torch.zeros_like(mean)
        if self.direction == "sign":
            return -mean.sign()
        return -normalized(mean)


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

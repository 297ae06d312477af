"""Min-Max: no further from any honest row than two honest rows are from each other. Min-Sum has the same base class."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import matrix
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks._line import Line
from gyroscope.attacks.base import Attack, AttackContext, repeat, to_unit_scale


@dataclasses.dataclass(frozen=True)
class DistanceBounded(Attack):
    """Send mean + gamma * p, the same for all f workers, with the largest gamma >= 0 that keeps a bound on distances.

    p is against the mean: -std per coordinate (ddof = 1), -sign(mean), or -mean/|mean|. The bounds are quadratic in
    gamma, so the largest gamma is their root and no search is needed: exact to rounding in float64, where the authors'
    code halves its steps until they are below 1e-5. One rounding of the rows' dtype
    is taken off, so that they keep the bound. It is 0 if p or all distances vanish.
    """

    direction: Literal["std", "sign", "mean"] = registry.choice("std", ("std", "sign", "mean"))

    @abstractmethod
    def gamma(self, line: Line) -> float:
        """Return the largest gamma within the bound, for a direction that does not vanish."""

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        # Squares of float32 values fit in float64 as they are; others are scaled first.
        unit, scale = (honest, 1.0) if honest.dtype == torch.float32 else to_unit_scale(honest)
        known = context.moments if context.moments is not None and unit is honest else CachedMoments(unit)
        direction = self._against(known)
        if unit is honest and not matrix.all_finite(direction):  # the deviation of huge values overflows in float32
            unit, scale = to_unit_scale(honest)
            known = CachedMoments(unit)
            direction = self._against(known)
        mean = known.moments.mean
        line = Line(unit, mean, direction, f)
        sent = mean.double()
        if line.square > 0:
            # At the bound itself the row is as far from an honest row as another honest one is, and a rounding would
            # decide which of both a rule takes: on another processor the same seed would give another run.
            within = 1 - torch.finfo(honest.dtype).eps
            sent = sent.add(direction.double(), alpha=self.gamma(line) * within)
        return repeat((sent * scale).to(honest.dtype), f)

    def _against(self, honest: CachedMoments) -> Tensor:
        """Return p, the direction of the deviation, at any length."""
        if self.direction == "std":
            return -honest.std if len(honest.rows) > 1 else torch.zeros_like(honest.moments.mean)
        mean = honest.moments.mean
        return -mean.sign() if self.direction == "sign" else -mean


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

    def gamma(self, line: Line) -> float:
        # |mean + gamma p - x_i|^2 <= D for each i: a quadratic inequality in gamma, true at 0 because the mean is in
        # the rows' convex hull. The smallest of the positive roots satisfies all of them.
        a, b = line.square, -line.linear
        c = np.minimum(line.constant - line.between.max(), 0.0)  # above 0 by rounding only
        return float((-b + np.sqrt(b * b - a * c)).min()) / a

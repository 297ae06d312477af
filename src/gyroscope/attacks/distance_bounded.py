"""The base class of Min-Max and Min-Sum: as far along a direction as the honest rows' own distances allow."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope.attacks.base import Attack, AttackContext, repeat, to_unit_scale


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
        length: Tensor = torch.linalg.vector_norm(mean).clamp_min(torch.finfo(mean.dtype).tiny)
        return -mean / length

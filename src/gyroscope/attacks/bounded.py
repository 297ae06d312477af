"""The common core of Min-Max and Min-Sum: as far along a direction as the honest rows' own distances allow."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope._linalg.distances import squared_distances
from gyroscope.attacks.base import Attack, AttackContext, repeat
from gyroscope.attacks.scaled import at_unit_scale, back

Direction = Literal["std", "sign", "mean"]
DIRECTIONS = ("std", "sign", "mean")


@dataclasses.dataclass(frozen=True)
class Bounded(Attack):
    """mean + gamma * p, the same for all f workers, with the largest gamma >= 0 that keeps a bound on distances.

    p is against the mean: -std per coordinate (ddof = 1), -sign(mean), or -mean/|mean|. The bounds are quadratic in
    gamma, so the largest gamma is their root and no search is needed: exact to rounding in float64, where the authors'
    code halves its steps until they are below 1e-5. It is 0 where p or all distances vanish.
    """

    direction: Direction = "std"

    def __post_init__(self) -> None:
        if not isinstance(self.direction, str):
            raise ConfigError(f"the direction of {self.name!r} must be one of {DIRECTIONS}, got {self.direction!r}")
        if self.direction not in DIRECTIONS:
            raise UnknownNameError("direction", self.direction, DIRECTIONS, of=self.name)

    @abstractmethod
    def gamma(self, honest: Tensor, mean: Tensor, direction: Tensor) -> float:
        """The largest one within the bound; the direction does not vanish."""

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        unit, scale = at_unit_scale(honest)
        mean = unit.mean(dim=0)
        direction = against(self.direction, unit, mean)
        if bool(direction.any()):
            mean = mean + self.gamma(unit, mean, direction) * direction
        return repeat(back(mean, scale, honest.dtype), f)


def against(direction: Direction, honest: Tensor, mean: Tensor) -> Tensor:
    """p: the direction of the deviation."""
    if direction == "std":
        return -honest.std(dim=0) if len(honest) > 1 else torch.zeros_like(mean)
    if direction == "sign":
        return -mean.sign()
    length: Tensor = torch.linalg.vector_norm(mean).clamp_min(torch.finfo(mean.dtype).tiny)
    return -mean / length


def distances_between(honest: Tensor) -> Tensor:
    """(h, h): squared distances, in float64."""
    return squared_distances(honest)

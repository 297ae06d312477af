"""The hidden vulnerability: in many dimensions one coordinate may be far off while the distance looks ordinary."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError, InfeasibleError
from gyroscope.attacks.bait import Bait
from gyroscope.attacks.base import Attack, AttackContext, repeat
from gyroscope.attacks.directed import best_factor
from gyroscope.attacks.scaled import at_unit_scale, back


@dataclasses.dataclass(frozen=True)
class Hidden(Attack):
    """mean + gamma * E, where E is 1 in one coordinate and 0 elsewhere; gamma as large as is still accepted.

    Honest rows differ by about sqrt(d) times their deviation per coordinate, and whoever looks at distances only lets
    the adversary spend all of that on one of them.

    gamma: `krum`, the largest with which Krum ranks the Byzantine rows first (the configured Krum, or else the original
        one: see `fang-krum`); it costs no call of the rule. `auto`: the one that moves the configured rule's output
        furthest, between 1/16 and 128 times the honest rows' root mean square distance from their mean. Or a number.
    coordinate: which one, the last by default (as in the released code of this library's paper); `all` for E = 1
        everywhere, which is the original paper's attack on the maximum norm.
    sign: 1 adds gamma, -1 subtracts it.
    """

    gamma: float | Literal["krum", "auto"] = "krum"
    coordinate: int | Literal["all"] = -1
    sign: Literal[-1, 1] = 1

    name = "hidden"
    summary = "mean + gamma in one coordinate, as large as Krum (or, with gamma=auto, the rule) still accepts"
    paper = "El Mhamdi et al. 2018"

    def __post_init__(self) -> None:
        number = isinstance(self.gamma, (int, float)) and not isinstance(self.gamma, bool)
        if self.gamma not in ("krum", "auto") and not (number and math.isfinite(self.gamma)):  # type: ignore[arg-type]
            raise ConfigError(f"the gamma of {self.name!r} must be a number, 'krum' or 'auto', got {self.gamma!r}")
        whole = isinstance(self.coordinate, int) and not isinstance(self.coordinate, bool)
        if self.coordinate != "all" and not whole:
            raise ConfigError(
                f"the coordinate of {self.name!r} must be a whole number or 'all', got {self.coordinate!r}"
            )
        if isinstance(self.sign, bool) or self.sign not in (-1, 1):
            raise ConfigError(f"the sign of {self.name!r} must be -1 or 1, got {self.sign!r}")

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        unit, scale = at_unit_scale(honest)
        mean = unit.mean(dim=0)
        direction = self._direction(mean)
        spread = float((unit - mean).square().sum(dim=1).mean().sqrt())
        if self.gamma == "krum":
            length = Bait(unit, mean, direction, f, context).largest(spread) if spread > 0 else 0.0
        elif self.gamma == "auto":
            middle, towards = back(mean, scale, honest.dtype), back(spread * direction, scale, honest.dtype)
            length = spread * best_factor(honest, middle, towards, f, context)
        else:
            # In the rows' own units, where a gamma that is far off their scale may be all there is.
            middle = back(mean, scale, honest.dtype)
            return repeat(torch.add(middle, direction.to(honest.dtype), alpha=self.gamma), f)
        return repeat(back(mean + length * direction, scale, honest.dtype), f)

    def _direction(self, mean: Tensor) -> Tensor:
        d = len(mean)
        if self.coordinate == "all":
            return torch.full_like(mean, self.sign)
        if not -d <= self.coordinate < d:
            raise InfeasibleError(
                f"the attack {self} looks for coordinate {self.coordinate}, but there are only {d}: they are numbered "
                f"from 0 to {d - 1}, or from -1 backwards"
            )
        direction = torch.zeros_like(mean)
        direction[self.coordinate] = self.sign
        return direction

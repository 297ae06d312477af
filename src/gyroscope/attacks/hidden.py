"""The hidden vulnerability: in many dimensions one coordinate may be far off while the distance looks ordinary."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import InfeasibleError
from gyroscope.attacks._krum_acceptance import KrumAcceptance
from gyroscope.attacks.base import Attack, AttackContext, repeat, to_unit_scale
from gyroscope.attacks.directed import best_factor


@dataclasses.dataclass(frozen=True)
class Hidden(Attack):
    """Send mean + gamma * E, where E is 1 in one coordinate and 0 elsewhere; gamma as large as is still accepted.

    Honest rows differ by about sqrt(d) times their deviation per coordinate, and a rule that only looks at distances
    lets the adversary spend all of that on one of them.

    gamma: `krum`, the largest with which Krum ranks the Byzantine rows first (the configured Krum, or else the original
        one: see `fang-krum`); it costs no call of the rule. `auto`: the one that moves the configured rule's output
        furthest, between 1/256 and 128 times the honest rows' root mean square distance from their mean. Or a number.
    coordinate: which one, the last by default (as in the released code of this library's paper); `all` for E = 1
        everywhere, which is the original paper's attack on the maximum norm.
    sign: 1 adds gamma, -1 subtracts it.
    """

    gamma: float | Literal["krum", "auto"] = registry.number("krum", "a number", or_one_of=("krum", "auto"))
    coordinate: int | Literal["all"] = registry.number(-1, "a whole number", whole=True, or_one_of=("all",))
    sign: Literal[-1, 1] = registry.choice(1, (-1, 1))

    name = "hidden"
    summary = "mean + gamma in one coordinate, as large as Krum (or, with gamma=auto, the rule) still accepts"
    paper = "El Mhamdi et al. 2018"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        unit, scale = to_unit_scale(honest)
        mean = unit.mean(dim=0)
        direction = self._direction(mean)
        spread = float((unit - mean).square().sum(dim=1).mean().sqrt())
        middle = (mean * scale).to(honest.dtype)
        if self.gamma == "krum":
            length = KrumAcceptance(unit, mean, direction, f, context).largest(spread) if spread > 0 else 0.0
        elif self.gamma == "auto":
            towards = (spread * direction * scale).to(honest.dtype)
            length = spread * best_factor(honest, middle, towards, f, context)
        else:
            # In the rows' own units, because gamma may be far off their scale.
            return repeat(torch.add(middle, direction.to(honest.dtype), alpha=self.gamma), f)
        return repeat(((mean + length * direction) * scale).to(honest.dtype), f)

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

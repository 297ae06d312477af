"""Rare attacks by workers that are honest otherwise, their momentum included."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope.attacks import nested
from gyroscope.attacks.alternate import honestly_or
from gyroscope.attacks.base import Attack, AttackContext


@dataclasses.dataclass(frozen=True)
class Rare(Attack):
    """With the given chance in each round, all Byzantine workers carry out the inner attack; else they are honest.

    Nothing in their past gives them away: they follow the protocol at data of their own, and where momentum is at the
    workers they accumulate it honestly in all rounds. `alternate` does the same in fixed periods. Cost: f more
    gradients in honest rounds (in all, with momentum at the workers).
    """

    attack: Attack = nested.DEFAULT
    chance: float = 0.1

    name = "rare"
    summary = "honest, momentum included, but for an inner attack in a few rounds at random"

    def __post_init__(self) -> None:
        nested.one(self, "attack")
        number = isinstance(self.chance, (int, float)) and not isinstance(self.chance, bool)
        if not number or not 0 < self.chance <= 1:
            raise ConfigError(f"the chance of {self.name!r} must be above 0 and at most 1, got {self.chance!r}")

    def check_feasible(self, n: int, f: int) -> None:
        self.attack.check_feasible(n, f)

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        drawn = torch.rand(1, generator=context.generator, dtype=torch.float64, device=context.generator.device)
        return honestly_or(self.attack, float(drawn) < self.chance, honest, f, context)

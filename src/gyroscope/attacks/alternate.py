"""Alternating: honest for a while, Byzantine for a while."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope.attacks import nested
from gyroscope.attacks.base import Attack, AttackContext


@dataclasses.dataclass(frozen=True)
class Alternate(Attack):
    """Honest for `period` rounds, then the inner attack for as many, and so on: to be trusted when it begins.

    Honest means: each Byzantine worker sends what the protocol asks for, at data of its own. Where momentum is at the
    workers they accumulate it in all rounds, so that they are back among the honest rows at once. Cost: f more
    gradients in those rounds.
    """

    attack: Attack = nested.DEFAULT
    period: int = 10

    name = "alternate"
    summary = "honest for some rounds, then an inner attack for as many, in turn"

    def __post_init__(self) -> None:
        nested.one(self, "attack")
        if isinstance(self.period, bool) or not isinstance(self.period, int) or self.period < 1:
            raise ConfigError(f"the period of {self.name!r} must be a whole number of at least 1, got {self.period!r}")

    def check_feasible(self, n: int, f: int) -> None:
        self.attack.check_feasible(n, f)

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        attacks = context.step // self.period % 2 == 1
        return honestly_or(self.attack, attacks, honest, f, context)


def honestly_or(attack: Attack, attacks: bool, honest: Tensor, f: int, context: AttackContext) -> Tensor:
    """The inner attack's rows, or what the Byzantine workers would send if they were honest."""
    if not attacks:
        return context.own_gradients()
    if context.momentum == "workers":
        context.own_gradients()  # for the momentum
    return nested.call(attack, honest, f, context)

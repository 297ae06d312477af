"""Intermittent attacks: workers that are honest in some rounds, to be trusted, and Byzantine in others."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope._core import registry
from gyroscope.attacks.base import AttackContext
from gyroscope.attacks.nested import Nested


@dataclasses.dataclass(frozen=True)
class Alternate(Nested):
    """Be honest for `period` rounds, then carry out the inner attack for as many, and so on, to be trusted first.

    When honest, each Byzantine worker sends what the protocol asks for, at data of its own. If momentum is at the
    workers they accumulate it in all rounds, so that they are back among the honest rows at once. Cost: f more
    gradients in those rounds.
    """

    period: int = registry.count(10)

    name = "alternate"
    summary = "honest for some rounds, then an inner attack for as many, in turn"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return self.rows_or_honest(context.step // self.period % 2 == 1, honest, f, context)


@dataclasses.dataclass(frozen=True)
class Rare(Nested):
    """Carry out the inner attack in each round with the given chance, all workers together; else be honest.

    Nothing in their past gives the workers away: they follow the protocol at data of their own, and if momentum is at
    the workers they accumulate it honestly in all rounds. `alternate` does the same in fixed periods. Cost: f more
    gradients in honest rounds (in all rounds, with momentum at the workers).
    """

    chance: float = registry.number(0.1, "a number above 0 and at most 1", lambda chance: 0 < chance <= 1)

    name = "rare"
    summary = "honest, momentum included, but for an inner attack in a few rounds at random"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return self.rows_or_honest(float(context.uniform(1)) < self.chance, honest, f, context)

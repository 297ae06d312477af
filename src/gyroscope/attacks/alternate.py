"""Alternating: honest for some rounds, Byzantine for as many."""

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

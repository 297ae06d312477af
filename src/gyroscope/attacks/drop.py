"""Dropping out: a worker that is missing."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope.attacks.base import Attack, AttackContext, repeat


@dataclasses.dataclass(frozen=True)
class Drop(Attack):
    """Send nothing, that is, a row of NaN: a round has that in place of a missing worker's row.

    chance: the probability with which each Byzantine worker is missing in a round, independently of the others; when
        it is there it is honest. 1 by default: never there, at no cost. Below 1 it costs f more gradients a round.
    """

    chance: float = registry.number(1.0, "a number above 0 and at most 1", lambda chance: 0 < chance <= 1)

    name = "drop"
    summary = "sends nothing: a row of NaN stands for a worker that is missing"
    finite = False

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        if self.chance == 1:
            return repeat(torch.full_like(honest[0], math.nan), f)
        drawn = context.uniform(f)
        rows = context.own_gradients()
        rows[(drawn < self.chance).to(rows.device)] = math.nan
        return rows

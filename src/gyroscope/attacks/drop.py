"""Dropping out: a worker that is not there."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope.attacks.base import Attack, AttackContext, repeat


@dataclasses.dataclass(frozen=True)
class Drop(Attack):
    """Sends nothing. A round sees a row of NaN where a worker is missing, and that is what this sends.

    chance: with which each Byzantine worker is missing in a round, independently of the others; when it is there it is
        honest. 1 by default: never there, and nothing needs to be computed. Below 1 it costs f more gradients a round.
    """

    chance: float = 1.0

    name = "drop"
    summary = "sends nothing: a row of NaN stands for a worker that is missing"
    finite = False

    def __post_init__(self) -> None:
        number = isinstance(self.chance, (int, float)) and not isinstance(self.chance, bool)
        if not number or not 0 < self.chance <= 1:
            raise ConfigError(f"the chance of {self.name!r} must be above 0 and at most 1, got {self.chance!r}")

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        if self.chance == 1:
            return repeat(torch.full_like(honest[0], math.nan), f)
        drawn = torch.rand(f, generator=context.generator, dtype=torch.float64, device=context.generator.device)
        rows = context.own_gradients()
        rows[(drawn < self.chance).to(rows.device)] = math.nan
        return rows

"""Split: several groups of Byzantine workers, each with an attack of its own."""

from __future__ import annotations

import dataclasses
import itertools

import torch
from torch import Tensor

from gyroscope.attacks.base import Attack, AttackContext
from gyroscope.attacks.empire import Empire
from gyroscope.attacks.little import Little
from gyroscope.attacks.nested import Several, call


@dataclasses.dataclass(frozen=True)
class Split(Several):
    """Divide the f workers into groups of about equal size, one for each of the attacks, in the order of the list.

    Each attack is computed as if all f workers carried it out, and its group sends the first of its rows. With fewer
    workers than attacks, the last attacks have nobody. attacks: written (little/empire:factor=2).
    """

    attacks: tuple[Attack, ...] = (Little(), Empire())

    name = "split"
    summary = "several groups of workers, each with an attack of its own"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        bounds = [-(-f * group // len(self.attacks)) for group in range(len(self.attacks) + 1)]
        sent = [call(attack, honest, f, context) for attack in self.attacks]
        sizes = [end - start for start, end in itertools.pairwise(bounds)]
        return torch.cat([rows[:size] for rows, size in zip(sent, sizes, strict=True)])

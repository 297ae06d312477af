"""Label flipping: honest work on wrong labels."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope.attacks.base import Attack, AttackContext


@dataclasses.dataclass(frozen=True)
class LabelFlip(Attack):
    """Follow the protocol, each worker at data of its own in which every label y is C-1-y (9-y of ten classes).

    The workers themselves may be honest with poisoned data, so everything else is as for honest workers: how batches
    are drawn, clipping, and momentum if that is at the workers. The attack needs to know no other worker's row. Cost: f
    more gradients per round. For tasks with whole-numbered labels. The exchange of y and C-1-y is that of Fang et al.
    2020; others change one class into another.
    """

    name = "label-flip"
    aliases = ("lf", "label-flipping")
    summary = "gradients at the Byzantine workers' own data with labels C-1-y"
    paper = "Fang et al. 2020"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return context.own_gradients(flipped=True)

"""Label flipping: honest work on wrong labels."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope.attacks.base import Attack, AttackContext


@dataclasses.dataclass(frozen=True)
class LabelFlip(Attack):
    """Each Byzantine worker follows the protocol at data of its own, in which every label y is C-1-y (9-y of ten).

    The workers themselves may be honest and only their data poisoned, so all else is as with the others: batches
    drawn in the same way, clipping, and momentum if that is at the workers. It needs no knowledge of anybody else's
    rows. Cost: f more gradients per round. For tasks with whole-numbered labels. The exchange y <-> C-1-y is that of
    Fang et al. 2020; others change one class into another.
    """

    name = "label-flip"
    summary = "gradients at the Byzantine workers' own data with labels C-1-y"
    paper = "Fang et al. 2020"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return context.own_gradients(flipped=True)

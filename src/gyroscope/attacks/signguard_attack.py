"""An attack on SignGuard: a row with the signs' shares and the norm of an honest row, and nothing else of it."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope.attacks.base import Attack, AttackContext, repeat, to_unit_scale


@dataclasses.dataclass(frozen=True)
class SignGuardAttack(Attack):
    """Send the honest mean with its coordinates shuffled, at the median of the honest rows' norms.

    SignGuard looks at norms, relative to their median, and at the shares of positive, zero and negative coordinates:
    this row has the mean's shares and the median norm (the lower one of an even number), so it passes for honest in
    both, and has a random direction. It is drawn in each round, the same for all f workers. Blades' attack on SignGuard
    is of this kind, with uniform values in place of the mean's own. SignGuard's authors themselves propose `byzmean`.
    """

    name = "signguard-attack"
    summary = "the honest mean shuffled: its shares of signs, the median norm, no direction"
    paper = "Li et al. 2023 (Blades)"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        unit, scale = to_unit_scale(honest)
        mean = unit.mean(dim=0)
        order = torch.randperm(len(mean), generator=context.generator, device=context.generator.device).to(mean.device)
        length = torch.linalg.vector_norm(mean)
        if float(length) == 0:
            return repeat(torch.zeros_like(honest[0]), f)
        norm = torch.linalg.vector_norm(unit, dim=1).median()
        return repeat((mean[order] * (norm / length) * scale).to(honest.dtype), f)

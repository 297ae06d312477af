"""ByzMean: some workers send an inner attack's row, the others make that row the mean of all rows."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope._linalg import matrix
from gyroscope.attacks.base import Attack, AttackContext
from gyroscope.attacks.little import Little
from gyroscope.attacks.nested import Nested, call

_DEFAULT = Little(factor=0.5)


@dataclasses.dataclass(frozen=True)
class ByzMean(Nested):
    """Split into two groups: m1 = floor(f/2) workers send the inner attack's row a, the other m2 = f - m1 send
    ((n - m1) a - sum of the honest rows) / m2, so that the mean of all n rows is a.

    If a rule compares rows with the mean of all rows, the stealthy group is then right in the middle, and the honest
    rows deviate. With f = 1 there is only the second group. If the inner attack's rows differ from worker to worker, a
    is their mean. attack: `little:factor=0.5` by default, as in the released code of SignGuard's authors, who propose
    this attack with that one inside.
    """

    attack: Attack = _DEFAULT

    name = "byzmean"
    summary = "half send an inner attack's row, the others make it the mean of all rows"
    paper = "Xu et al. 2022 (SignGuard)"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        first = f // 2
        stealthy = call(self.attack, honest, f, context)[: max(1, first)]
        equal = len(stealthy) == 1 or stealthy.stride(0) == 0
        target = stealthy[0] if equal else stealthy.double().mean(dim=0).to(honest.dtype)
        # ((n - m1) a - sum of the honest rows) / m2, with sums in float64, in one pass.
        h, others = len(honest), f - first
        minus = torch.full((h,), -1.0, dtype=torch.float64, device=honest.device)
        second = matrix.weighted_sum(honest, minus, float(others), target.contiguous(), 1 + h / others)
        return torch.cat([stealthy[:first], second.expand(others, -1)])

"""ByzMean: some send what they like, the others make the mean of all rows exactly that."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope.attacks import nested
from gyroscope.attacks.base import Attack, AttackContext
from gyroscope.attacks.little import Little

_DEFAULT = Little(factor=0.5)


@dataclasses.dataclass(frozen=True)
class ByzMean(Attack):
    """Two groups: m1 = floor(f/2) workers send the inner attack's row a, the other m2 = f - m1 send
    ((n - m1) a - sum of the honest rows) / m2, so that the mean of all n rows is a.

    If a rule's mean of everything is its yardstick, the stealthy group then is right in the middle, and the honest
    rows are what deviates. With f = 1 only the second group is left. If the inner attack's rows differ from worker to
    worker, a is their mean. attack: `little:factor=0.5` by default, as in the released code of SignGuard's authors,
    who propose this attack with that one inside.
    """

    attack: Attack = _DEFAULT

    name = "byzmean"
    summary = "half send an inner attack's row, the others make it the mean of all rows"
    paper = "Xu et al. 2022 (SignGuard)"

    def __post_init__(self) -> None:
        nested.one(self, "attack")

    def check_feasible(self, n: int, f: int) -> None:
        self.attack.check_feasible(n, f)

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        first = f // 2
        stealthy = nested.call(self.attack, honest, f, context)[: max(1, first)]
        target = stealthy.double().mean(dim=0)
        # a plus what is missing, rather than the difference of two large sums.
        missing = (target - honest.double()).sum(dim=0)
        second = (target + missing / (f - first)).to(honest.dtype)
        return torch.cat([stealthy[:first], second.expand(f - first, -1)])

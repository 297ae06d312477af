"""Fang's directed deviation against the trimmed mean: just beyond the most extreme honest value, the wrong way."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope.attacks.base import Attack, AttackContext


@dataclasses.dataclass(frozen=True)
class FangTrimmedMean(Attack):
    """Send, per coordinate, values beyond the honest rows' smallest (if their sum is positive) or largest (negative).

    With full knowledge, as in the original paper: the extreme value v becomes v * u or v / u, whichever is further out,
    with u uniform in [1, b], drawn for each worker and coordinate. So if the smallest value is 3 they send from 3/b to
    3, and if it is -3 from -3b to -3. Zero if the extreme value or the sum is zero. The trimmed mean removes only as
    many values as it is told, and so moves to the extreme honest ones; the attack works against the median, too.

    b: 2 in the paper. Cost: one pass, and f d random numbers.
    """

    b: float = registry.number(2.0, "a number above 1", lambda b: b > 1)

    name = "fang-trimmed-mean"
    aliases = ("fang-tm", "fang-median")
    summary = "per coordinate, beyond the honest values on the side opposite to their mean"
    paper = "Fang et al. 2020"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        sign = honest.sum(dim=0, dtype=torch.float64).sign()
        extreme = torch.where(sign > 0, honest.amin(dim=0), honest.amax(dim=0)).double() * sign.abs()
        stretch = 1 + (self.b - 1) * context.uniform(f, honest.shape[1]).to(honest.device)
        # Towards zero if the extreme value has the mean's sign, else away from it: further out in both cases.
        rows = torch.where(sign * extreme > 0, extreme / stretch, extreme * stretch)
        return rows.to(honest.dtype)

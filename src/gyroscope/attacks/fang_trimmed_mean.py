"""Fang's directed deviation against the trimmed mean: just beyond the most extreme honest value, the wrong way."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope.attacks.base import Attack, AttackContext


@dataclasses.dataclass(frozen=True)
class FangTrimmedMean(Attack):
    """Per coordinate, values beyond the honest rows' smallest (where their sum is positive) or largest (negative).

    With full knowledge, as in the original paper: a value v beyond which the workers go becomes v * u or v / u,
    whichever is further out, with u uniform in [1, b], drawn anew for each worker and coordinate. So where the smallest
    value is 3 they send from 3/b to 3, and where it is -3 from -3b to -3. Zero where the extreme value is zero or the
    sum is. The trimmed mean removes only as many values as it is told, and so moves to the extreme honest ones; the
    attack serves against the median, too.

    b: 2 in the paper. Cost: one pass, and f d random numbers.
    """

    b: float = 2.0

    name = "fang-trimmed-mean"
    summary = "per coordinate, beyond the honest values on the side opposite to their mean"
    paper = "Fang et al. 2020"

    def __post_init__(self) -> None:
        if isinstance(self.b, bool) or not isinstance(self.b, (int, float)) or not 1 < self.b < math.inf:
            raise ConfigError(f"the b of {self.name!r} must be a number above 1, got {self.b!r}")

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        sign = honest.sum(dim=0, dtype=torch.float64).sign()
        extreme = torch.where(sign > 0, honest.amin(dim=0), honest.amax(dim=0)).double() * sign.abs()
        drawn = torch.rand(
            f, honest.shape[1], generator=context.generator, dtype=torch.float64, device=context.generator.device
        )
        stretch = 1 + (self.b - 1) * drawn.to(honest.device)
        # Towards zero where the extreme value has the mean's sign, away from it else: further out in both cases.
        rows = torch.where(sign * extreme > 0, extreme / stretch, extreme * stretch)
        return rows.to(honest.dtype)

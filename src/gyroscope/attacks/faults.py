"""Faults rather than attacks: what broken hardware, bad data and crude vandals send."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope.attacks.base import Attack, AttackContext, repeat


class _Constant(Attack):
    """Send one value in every coordinate."""

    value: ClassVar[float]

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return repeat(torch.full_like(honest[0], self.value), f)


@dataclasses.dataclass(frozen=True)
class Zero(_Constant):
    """Send zeros, as a worker that does nothing."""

    name = "zero"
    summary = "zero in every coordinate: a worker that does nothing"
    value = 0.0


@dataclasses.dataclass(frozen=True)
class Nan(_Constant):
    """Send NaN in every coordinate."""

    name = "nan"
    summary = "NaN in every coordinate"
    finite = False
    value = math.nan


@dataclasses.dataclass(frozen=True)
class Inf(_Constant):
    """Send +inf in every coordinate."""

    name = "inf"
    summary = "+inf in every coordinate"
    finite = False
    value = math.inf


@dataclasses.dataclass(frozen=True)
class SignFlip(Attack):
    """Send -scale * mean of the honest rows."""

    scale: float = registry.positive(1.0)

    name = "sign-flip"
    summary = "-scale * mean of the honest rows"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return repeat(honest.mean(dim=0).mul_(-self.scale), f)


@dataclasses.dataclass(frozen=True)
class Gaussian(Attack):
    """Send independent normal noise around zero, different for each Byzantine worker and step."""

    std: float = registry.positive(1.0)

    name = "gaussian"
    summary = "independent normal noise of the given std around zero"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        noise = torch.empty(f, honest.shape[1], dtype=honest.dtype, device=context.generator.device)
        return noise.normal_(0.0, self.std, generator=context.generator).to(honest.device)

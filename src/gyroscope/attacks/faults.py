"""Faults rather than attacks: what broken hardware, bad data and crude vandals send. Each is a line or two."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope.attacks.base import Attack, AttackContext, repeat


@dataclasses.dataclass(frozen=True)
class Nan(Attack):
    """Sends NaN in every coordinate."""

    name = "nan"
    summary = "NaN in every coordinate"
    finite = False

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return repeat(torch.full_like(honest[0], math.nan), f)


@dataclasses.dataclass(frozen=True)
class Inf(Attack):
    """Sends +inf in every coordinate."""

    name = "inf"
    summary = "+inf in every coordinate"
    finite = False

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return repeat(torch.full_like(honest[0], math.inf), f)


@dataclasses.dataclass(frozen=True)
class Zero(Attack):
    """Sends zeros: a worker that does nothing."""

    name = "zero"
    summary = "zero in every coordinate: a worker that does nothing"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return repeat(torch.zeros_like(honest[0]), f)


@dataclasses.dataclass(frozen=True)
class SignFlip(Attack):
    """Sends -scale * mean of the honest rows."""

    scale: float = 1.0

    name = "sign-flip"
    summary = "-scale * mean of the honest rows"

    def __post_init__(self) -> None:
        check_positive(self.name, "scale", self.scale)

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return repeat(honest.mean(dim=0).mul_(-self.scale), f)


@dataclasses.dataclass(frozen=True)
class Gaussian(Attack):
    """Sends independent normal noise around zero, another for each Byzantine worker and step."""

    std: float = 1.0

    name = "gaussian"
    summary = "independent normal noise of the given std around zero"

    def __post_init__(self) -> None:
        check_positive(self.name, "std", self.std)

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        noise = torch.empty(f, honest.shape[1], dtype=honest.dtype, device=context.generator.device)
        return noise.normal_(0.0, self.std, generator=context.generator).to(honest.device)


def check_positive(attack: str, parameter: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 < value < math.inf):
        raise ConfigError(f"the {parameter} of {attack!r} must be a positive number, got {value!r}")

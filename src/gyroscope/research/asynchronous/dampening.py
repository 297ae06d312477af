"""The factor of a stale gradient: Lambda(tau), 1 for a fresh one, and smaller the more versions it has missed."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import ClassVar

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Dampening(ABC):
    """Map a staleness to a factor, which is 1 at staleness 0 and never grows."""

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str] = "-"

    @abstractmethod
    def __call__(self, staleness: int) -> float: ...

    def __str__(self) -> str:
        return registry.text(self)


@dataclasses.dataclass(frozen=True)
class NoDampening(Dampening):
    """Lambda = 1: a stale gradient counts as much as a fresh one."""

    name = "none"
    summary = "1: a stale gradient counts as much as a fresh one"

    def __call__(self, staleness: int) -> float:
        return 1.0


@dataclasses.dataclass(frozen=True)
class Inverse(Dampening):
    """Lambda = 1 / (1 + tau)."""

    name = "inverse"
    summary = "1 / (1 + staleness)"
    paper = "Damaskinos et al. 2018, after Jiang et al. 2017"

    def __call__(self, staleness: int) -> float:
        return 1 / (1 + staleness)


@dataclasses.dataclass(frozen=True)
class Exponential(Dampening):
    """Lambda = exp(-alpha * tau); alpha = 0.2, as in Kardam's released template."""

    alpha: float = 0.2

    name = "exponential"
    summary = "exp(-alpha * staleness)"
    paper = "Damaskinos et al. 2018"

    def __post_init__(self) -> None:
        value = self.alpha
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ConfigError(f"the alpha of 'exponential' must be at least 0 and finite, got {value!r}")

    def __call__(self, staleness: int) -> float:
        return math.exp(-self.alpha * staleness)


DAMPENINGS: dict[str, type[Dampening]] = {kind.name: kind for kind in (NoDampening, Inverse, Exponential)}


def parse(spec: str) -> Dampening:
    """Return the dampening that a spec such as `exponential:alpha=0.1` describes."""
    name, parameters = registry.split(spec)
    return registry.make("dampening", Dampening, DAMPENINGS, name, parameters)

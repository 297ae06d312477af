"""The attacks, by name. `make("little", factor=2)` and the command line's `little:factor=2` build the same object."""

from __future__ import annotations

from typing import Any

from gyroscope import specs
from gyroscope.attacks.base import Attack, View
from gyroscope.attacks.empire import Empire
from gyroscope.attacks.faults import Gaussian, Inf, Nan, SignFlip, Zero
from gyroscope.attacks.little import Little

ATTACKS: dict[str, type[Attack]] = {
    attack.name: attack for attack in (Little, Empire, Nan, Inf, Zero, SignFlip, Gaussian)
}

__all__ = [
    "ATTACKS",
    "Attack",
    "Empire",
    "Gaussian",
    "Inf",
    "Little",
    "Nan",
    "SignFlip",
    "View",
    "Zero",
    "make",
    "parse",
]


def make(name: str, **parameters: Any) -> Attack:
    """The attack of that name, e.g. `make("little", factor=2)`; also an installed package's or `module.path:Class`."""
    base, given = specs.split(name)
    return specs.make("attack", Attack, ATTACKS, base, {**given, **parameters})


def parse(spec: str) -> Attack:
    """The attack that a spec such as `little:factor=2` describes."""
    return make(spec)

"""The rules, by name. `make("krum", m=1)` and the command line's `krum:m=1` build the same object."""

from __future__ import annotations

from typing import Any

from gyroscope import specs
from gyroscope.rules.average import Average
from gyroscope.rules.base import Aggregate, Context, ContextualRule, Memory, Rule
from gyroscope.rules.bulyan import Bulyan
from gyroscope.rules.caf import Caf
from gyroscope.rules.dnc import Dnc
from gyroscope.rules.flame import Flame
from gyroscope.rules.krum import Krum
from gyroscope.rules.median import Median
from gyroscope.rules.signguard import Signguard
from gyroscope.rules.smea import Smea

RULES: dict[str, type[Rule]] = {
    rule.name: rule for rule in (Average, Krum, Median, Bulyan, Smea, Caf, Dnc, Flame, Signguard)
}

__all__ = [
    "RULES",
    "Aggregate",
    "Average",
    "Bulyan",
    "Caf",
    "Context",
    "ContextualRule",
    "Dnc",
    "Flame",
    "Krum",
    "Median",
    "Memory",
    "Rule",
    "Signguard",
    "Smea",
    "make",
    "parse",
]


def make(name: str, **parameters: Any) -> Rule:
    """The rule of that name, e.g. `make("krum", m=1)`; also an installed package's or `module.path:Class`."""
    base, given = specs.split(name)
    return specs.make("rule", Rule, RULES, base, {**given, **parameters})


def parse(spec: str) -> Rule:
    """The rule that a spec such as `krum:m=1` describes."""
    return make(spec)

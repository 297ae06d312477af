"""The rules, by name. `make("krum", m=1)` and the command line's `krum:m=1` build the same object."""

from __future__ import annotations

from typing import Any

from gyroscope import specs
from gyroscope.rules.aksel import Aksel
from gyroscope.rules.average import Average
from gyroscope.rules.base import Aggregate, Context, ContextualRule, Memory, Rule
from gyroscope.rules.bulyan import Bulyan
from gyroscope.rules.caf import CAF
from gyroscope.rules.cge import CGE
from gyroscope.rules.dnc import DnC
from gyroscope.rules.flame import FLAME
from gyroscope.rules.geometric_median import GeometricMedian
from gyroscope.rules.krum import Krum
from gyroscope.rules.mda import MDA
from gyroscope.rules.meamed import MeaMed
from gyroscope.rules.median import Median
from gyroscope.rules.monna import MoNNA
from gyroscope.rules.phocas import Phocas
from gyroscope.rules.signguard import SignGuard
from gyroscope.rules.smea import SMEA
from gyroscope.rules.trimmed_mean import TrimmedMean

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Average,
        Krum,
        Median,
        Bulyan,
        TrimmedMean,
        Phocas,
        MeaMed,
        GeometricMedian,
        MDA,
        MoNNA,
        CGE,
        Aksel,
        SMEA,
        CAF,
        DnC,
        FLAME,
        SignGuard,
    )
}

__all__ = [
    "CAF",
    "CGE",
    "FLAME",
    "MDA",
    "RULES",
    "SMEA",
    "Aggregate",
    "Aksel",
    "Average",
    "Bulyan",
    "Context",
    "ContextualRule",
    "DnC",
    "GeometricMedian",
    "Krum",
    "MeaMed",
    "Median",
    "Memory",
    "MoNNA",
    "Phocas",
    "Rule",
    "SignGuard",
    "TrimmedMean",
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

"""The rules, by name. `make("krum", m=1)` and the command line's `krum:m=1` build the same object.

A spec may name pre-aggregations before the rule, `nnm+bucketing:s=3+krum:m=1`, and a mixture of rules in its place,
`random:krum/median`. `+` binds tighter than `/`, and everything after `random:` belongs to the mixture.

Example:
    >>> import torch
    >>> import gyroscope as gy
    >>> rows = torch.tensor([[1.0, 2.0], [2.0, 3.0], [3.0, 4.0], [4.0, 5.0], [float("nan"), -1e30]])
    >>> gy.rules.make("median")(rows, f=1).vector
    tensor([3., 3.])
    >>> gy.rules.parse("nnm+krum:m=1")(rows, f=1).vector.isfinite().all()
    tensor(True)
"""

from __future__ import annotations

import re
from typing import Any

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError
from gyroscope.rules.aksel import Aksel
from gyroscope.rules.average import Average
from gyroscope.rules.base import (
    NO_TRUSTED,
    Aggregate,
    ContextualRule,
    DistanceRule,
    Rule,
    RuleContext,
    RuleState,
    refuse_trusted,
)
from gyroscope.rules.bulyan import Bulyan
from gyroscope.rules.caf import CAF
from gyroscope.rules.caf_history import CAFHistory
from gyroscope.rules.centered_clipping import CenteredClipping
from gyroscope.rules.cge import CGE
from gyroscope.rules.composition import Chain, Composed, Preaggregation, Prepared
from gyroscope.rules.dnc import DnC
from gyroscope.rules.flame import FLAME
from gyroscope.rules.fltrust import FLTrust
from gyroscope.rules.geometric_median import GeometricMedian
from gyroscope.rules.krum import Krum
from gyroscope.rules.mda import MDA
from gyroscope.rules.meamed import MeaMed
from gyroscope.rules.median import Median
from gyroscope.rules.mixture import MIXTURES, Mixture
from gyroscope.rules.monna import MoNNA
from gyroscope.rules.phocas import Phocas
from gyroscope.rules.preaggregations import ARC, NNM, PREAGGREGATIONS, Bucketing, Clip
from gyroscope.rules.safeguard import SafeGuard
from gyroscope.rules.signguard import SignGuard
from gyroscope.rules.smea import SMEA
from gyroscope.rules.trimmed_mean import TrimmedMean
from gyroscope.rules.zeno import Zeno

_OF_THE_PAPER = (Average, Krum, Median, Bulyan)
_BY_COORDINATE = (TrimmedMean, Phocas, MeaMed)
_BY_DISTANCE = (MDA, MoNNA, CGE, Aksel, GeometricMedian)
_BY_DIRECTION = (SMEA, CAF, DnC, FLAME, SignGuard)
_WITH_CONTEXT = (CAFHistory, CenteredClipping, SafeGuard, Zeno, FLTrust)
RULES: dict[str, type[Rule]] = {
    rule.name: rule for rule in (*_OF_THE_PAPER, *_BY_COORDINATE, *_BY_DISTANCE, *_BY_DIRECTION, *_WITH_CONTEXT)
}

__all__ = [
    "ARC",
    "CAF",
    "CGE",
    "FLAME",
    "MDA",
    "MIXTURES",
    "NNM",
    "NO_TRUSTED",
    "PREAGGREGATIONS",
    "RULES",
    "SMEA",
    "Aggregate",
    "Aksel",
    "Average",
    "Bucketing",
    "Bulyan",
    "CAFHistory",
    "CenteredClipping",
    "Chain",
    "Clip",
    "Composed",
    "ContextualRule",
    "DistanceRule",
    "DnC",
    "FLTrust",
    "GeometricMedian",
    "Krum",
    "MeaMed",
    "Median",
    "Mixture",
    "MoNNA",
    "Phocas",
    "Preaggregation",
    "Prepared",
    "Rule",
    "RuleContext",
    "RuleState",
    "SafeGuard",
    "SignGuard",
    "TrimmedMean",
    "Zeno",
    "make",
    "parse",
    "refuse_trusted",
]  # fmt: skip

_PLUS = re.compile(r"\+(?=\s*[^\W\d])")  # a + before a name; that of 1e+20 is before a digit


def make(name: str, **parameters: Any) -> Rule:
    """Build a rule from its name and parameters: `make("krum", m=1)`.

    Args:
        name: A name in `RULES`, a name that an installed package registers, `module.path:Class`, or a whole spec such
            as `nnm+krum`.
        parameters: Parameters of the rule, the last one of a composition. `f` is one of every rule's.
    """
    registry.check_text("rule", name)
    parts = _PLUS.split(name)
    mixed = next((place for place, part in enumerate(parts) if _name(part) in MIXTURES), len(parts) - 1)
    stages, last = parts[:mixed], "+".join(parts[mixed:])
    rule = _mixture(last, parameters) if _name(last) in MIXTURES else _single(last, parameters)
    return Composed(tuple(map(_stage, stages)), rule) if stages else rule


def parse(spec: str | Rule) -> Rule:
    """Build the rule that a spec such as `krum:m=1` or `nnm+bucketing:s=3+krum` describes; return a rule as it is."""
    return spec if isinstance(spec, Rule) else make(spec)


def _name(spec: str) -> str:
    return spec.partition(":")[0].strip()


def _single(spec: str, parameters: dict[str, Any]) -> Rule:
    name, given = registry.split(spec)
    if registry.unaliased(PREAGGREGATIONS, name) in PREAGGREGATIONS:
        raise ConfigError(f"{name!r} is a pre-aggregation and needs a rule after it: write {spec.strip()}+krum")
    return registry.make("rule", Rule, RULES, name, {**given, **parameters})


def _stage(spec: str) -> Preaggregation:
    name, given = registry.split(spec)
    if registry.unaliased(RULES, name) in RULES:
        raise ConfigError(
            f"the rule {name!r} can only come last: pre-aggregations ({', '.join(PREAGGREGATIONS)}) come before a +"
        )
    return registry.make("preaggregation", Preaggregation, PREAGGREGATIONS, name, given)


def _mixture(spec: str, parameters: dict[str, Any]) -> Mixture:
    order, _, rest = spec.partition(":")
    if parameters.keys() - {"f"}:
        raise ConfigError(
            f"{', '.join(parameters)}: write the parameters of a mixture's rules in its spec, {order}:..."
        )
    if not rest.strip():
        raise ConfigError(f"a mixture needs rules: write {order.strip()}:krum/median")
    rules = [parse(part) for part in rest.split("/")]
    return Mixture(rules, order.strip(), **parameters)  # type: ignore[arg-type]  # checked there

"""The attacks, by name. `make("little", factor=2)` and the command line's `little:factor=2` build the same object."""

from __future__ import annotations

from typing import Any

from gyroscope._core import registry
from gyroscope.attacks.alternate import Alternate
from gyroscope.attacks.anti_cge import AntiCge
from gyroscope.attacks.base import Attack, AttackContext
from gyroscope.attacks.byzmean import ByzMean
from gyroscope.attacks.drop import Drop
from gyroscope.attacks.empire import Empire
from gyroscope.attacks.empire_strict import EmpireStrict
from gyroscope.attacks.equivocate import Equivocate
from gyroscope.attacks.fang_krum import FangKrum
from gyroscope.attacks.fang_trimmed_mean import FangTrimmedMean
from gyroscope.attacks.faults import Gaussian, Inf, Nan, SignFlip, Zero
from gyroscope.attacks.foresight import Foresight
from gyroscope.attacks.hidden import Hidden
from gyroscope.attacks.label_flip import LabelFlip
from gyroscope.attacks.little import Little
from gyroscope.attacks.mimic import Mimic
from gyroscope.attacks.min_max import MinMax
from gyroscope.attacks.min_sum import MinSum
from gyroscope.attacks.rare import Rare
from gyroscope.attacks.signguard_attack import SignGuardAttack
from gyroscope.attacks.stale import Stale
from gyroscope.attacks.stranger import Stranger

ATTACKS: dict[str, type[Attack]] = {
    attack.name: attack
    for attack in (
        Little,
        Empire,
        EmpireStrict,
        MinMax,
        MinSum,
        FangKrum,
        FangTrimmedMean,
        Hidden,
        Mimic,
        AntiCge,
        ByzMean,
        SignGuardAttack,
        LabelFlip,
        SignFlip,
        Gaussian,
        Zero,
        Nan,
        Inf,
        Stale,
        Drop,
        Stranger,
        Alternate,
        Rare,
        Equivocate,
        Foresight,
    )
}

__all__ = [
    "ATTACKS",
    "Alternate",
    "AntiCge",
    "Attack",
    "AttackContext",
    "ByzMean",
    "Drop",
    "Empire",
    "EmpireStrict",
    "Equivocate",
    "FangKrum",
    "FangTrimmedMean",
    "Foresight",
    "Gaussian",
    "Hidden",
    "Inf",
    "LabelFlip",
    "Little",
    "Mimic",
    "MinMax",
    "MinSum",
    "Nan",
    "Rare",
    "SignFlip",
    "SignGuardAttack",
    "Stale",
    "Stranger",
    "Zero",
    "make",
    "parse",
]


def make(name: str, **parameters: Any) -> Attack:
    """The attack of that name, e.g. `make("little", factor=2)`; also an installed package's or `module.path:Class`."""
    base, given = registry.split(name)
    return registry.make("attack", Attack, ATTACKS, base, {**given, **parameters})


def parse(spec: str) -> Attack:
    """The attack that a spec such as `little:factor=2` describes."""
    return make(spec)

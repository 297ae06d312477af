"""The attacks, by name. `make("little", factor=2)` and the command line's `little:factor=2` build the same object.

Example:
    >>> import torch
    >>> import gyroscope as gy
    >>> honest = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> gy.attacks.make("empire", factor=2)(honest, f=1)
    tensor([[-2., -3.]])
"""

from __future__ import annotations

from typing import Any

from gyroscope._core import registry
from gyroscope.attacks.anti_cge import AntiCGE
from gyroscope.attacks.base import Attack, AttackContext
from gyroscope.attacks.byzmean import ByzMean
from gyroscope.attacks.chain import Chain
from gyroscope.attacks.coupled import Coupled
from gyroscope.attacks.decoy import Decoy
from gyroscope.attacks.empire import Empire
from gyroscope.attacks.empire_strict import EmpireStrict
from gyroscope.attacks.equivocate import Equivocate
from gyroscope.attacks.fang_krum import FangKrum
from gyroscope.attacks.fang_trimmed_mean import FangTrimmedMean
from gyroscope.attacks.faults import Drop, Gaussian, Inf, Nan, SignFlip, Stale, Zero
from gyroscope.attacks.foresight import Foresight
from gyroscope.attacks.hidden import Hidden
from gyroscope.attacks.intermittent import Alternate, Rare
from gyroscope.attacks.label_flip import LabelFlip
from gyroscope.attacks.little import Little
from gyroscope.attacks.mimic import Mimic
from gyroscope.attacks.min_max import MinMax
from gyroscope.attacks.min_sum import MinSum
from gyroscope.attacks.persistent import Persistent
from gyroscope.attacks.searched import Searched
from gyroscope.attacks.signguard_attack import SignGuardAttack
from gyroscope.attacks.split import Split
from gyroscope.attacks.stranger import Stranger

_DIRECTED = (Little, Empire, EmpireStrict, MinMax, MinSum)
_AGAINST_ONE_RULE = (FangKrum, FangTrimmedMean, Hidden, Mimic, AntiCGE, ByzMean, SignGuardAttack, Chain, Decoy)
_OVER_ROUNDS = (Persistent, Coupled, Searched)
_FAULTS = (LabelFlip, SignFlip, Gaussian, Zero, Nan, Inf, Stale, Drop)
_AROUND_OTHERS = (Split, Stranger, Alternate, Rare, Equivocate, Foresight)
ATTACKS: dict[str, type[Attack]] = {
    attack.name: attack for attack in (*_DIRECTED, *_AGAINST_ONE_RULE, *_OVER_ROUNDS, *_FAULTS, *_AROUND_OTHERS)
}

__all__ = [
    "ATTACKS", "Alternate", "AntiCGE", "Attack", "AttackContext", "ByzMean", "Chain", "Coupled", "Decoy", "Drop",
    "Empire", "EmpireStrict", "Equivocate", "FangKrum", "FangTrimmedMean", "Foresight", "Gaussian", "Hidden", "Inf",
    "LabelFlip", "Little", "Mimic", "MinMax", "MinSum", "Nan", "Persistent", "Rare", "Searched", "SignFlip",
    "SignGuardAttack", "Split", "Stale", "Stranger", "Zero", "make", "parse",
]  # fmt: skip


def make(name: str, **parameters: Any) -> Attack:
    """Build an attack from its name and parameters: `make("little", factor=2)`.

    Args:
        name: A name in `ATTACKS`, a name that an installed package registers, `module.path:Class`, or a whole spec.
        parameters: The attack's parameters.
    """
    registry.check_text("attack", name)
    base, given = registry.split(name)
    return registry.make("attack", Attack, ATTACKS, base, {**given, **parameters})


def parse(spec: str) -> Attack:
    """Build the attack that a spec such as `little:factor=2` describes."""
    return make(spec)

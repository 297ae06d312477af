"""Attacks inside attacks: how the inner one is written, checked and called."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError
from gyroscope.attacks.base import Attack, AttackContext
from gyroscope.attacks.little import Little

_DEFAULT = Little()


@dataclasses.dataclass(frozen=True)
class Nested(Attack):
    """An attack around an inner one. The field may be given as an attack or as a spec, such as `little:factor=2`."""

    attack: Attack = _DEFAULT

    def __post_init__(self) -> None:
        super().__post_init__()
        made = parse_attacks(self, "attack", self.attack)
        if len(made) != 1:
            raise ConfigError(f"the attack of {self.name!r} must be one attack, got {self.attack!r}")
        vars(self).update(attack=made[0])

    def check_feasible(self, n: int, f: int) -> None:
        self.attack.check_feasible(n, f)

    def rows_or_honest(self, attacks: bool, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        """Return the inner attack's rows, or what the Byzantine workers would send if they were honest."""
        if not attacks:
            return context.own_gradients()
        if context.momentum == "workers":
            context.own_gradients()  # keeps their momentum up to date
        return call(self.attack, honest, f, context)


@dataclasses.dataclass(frozen=True)
class Several(Attack):
    """An attack around a list of others, each given as an attack or as a spec: `little:factor=2/empire`."""

    attacks: tuple[Attack, ...] = (_DEFAULT,)

    def __post_init__(self) -> None:
        super().__post_init__()
        vars(self).update(attacks=parse_attacks(self, "attacks", self.attacks))

    def check_feasible(self, n: int, f: int) -> None:
        for attack in self.attacks:
            attack.check_feasible(n, f)


def parse_attacks(outer: Attack, field: str, value: Any) -> tuple[Attack, ...]:
    """Return the attacks in a field's value: an attack, a list of attacks and specs, or specs with slashes between."""
    from gyroscope.attacks import parse  # the table also lists the attacks that import this module

    if isinstance(value, Attack):
        return (value,)
    if isinstance(value, (tuple, list)):
        if not value:
            raise ConfigError(f"the {field} of {outer.name!r} must be at least one attack, got {value!r}")
        return tuple(made for item in value for made in parse_attacks(outer, field, item))
    # The attacks `nan` and `inf` have been read as numbers.
    text = str(value) if isinstance(value, float) else value
    if not isinstance(text, str) or not text:
        raise ConfigError(f"the {field} of {outer.name!r} must be an attack, such as little:factor=2, got {value!r}")
    return tuple(parse(spec) for spec in registry.inner(text))


def call(attack: Attack, honest: Tensor, f: int, context: AttackContext) -> Tensor:
    """Return an inner attack's rows; its state is kept under its own name."""
    return attack(honest, f, context.within(str(attack)))


def parts(attack: Attack) -> Iterator[Attack]:
    """Yield the attack and all attacks inside it."""
    yield attack
    for field in dataclasses.fields(attack):
        value = getattr(attack, field.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Attack):
                yield from parts(inner)

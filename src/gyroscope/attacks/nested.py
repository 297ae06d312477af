"""Attacks inside attacks: how the inner one is written down, checked and called."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError
from gyroscope.attacks.base import Attack, AttackContext
from gyroscope.attacks.little import Little

DEFAULT = Little()
"""What is inside where nothing is said."""


def one(outer: Attack, field: str) -> None:
    """Make an attack of what stands in a field of a frozen attack, an attack or a spec, such as `little:factor=2`."""
    made = several_of(outer, field, getattr(outer, field))
    if len(made) != 1:
        raise ConfigError(f"the {field} of {outer.name!r} must be one attack, got {getattr(outer, field)!r}")
    object.__setattr__(outer, field, made[0])


def several(outer: Attack, field: str) -> None:
    """Likewise a tuple of at least one attack, of attacks and specs or of a text with slashes between specs."""
    object.__setattr__(outer, field, several_of(outer, field, getattr(outer, field)))


def several_of(outer: Attack, field: str, value: Any) -> tuple[Attack, ...]:
    from gyroscope.attacks import parse  # the table holds those that use this, too

    if isinstance(value, Attack):
        return (value,)
    if isinstance(value, (tuple, list)):
        if not value:
            raise ConfigError(f"the {field} of {outer.name!r} must be at least one attack, got {value!r}")
        return tuple(made for item in value for made in several_of(outer, field, item))
    # `nan` and `inf` are attacks, too, but were read as numbers.
    text = str(value) if isinstance(value, float) else value
    if not isinstance(text, str) or not text:
        raise ConfigError(f"the {field} of {outer.name!r} must be an attack, such as little:factor=2, got {value!r}")
    return tuple(parse(spec) for spec in registry.inner(text))


def call(attack: Attack, honest: Tensor, f: int, context: AttackContext, name: str | None = None) -> Tensor:
    """The inner attack's rows; it keeps its notes under its own name."""
    return attack(honest, f, context.inside(name or str(attack)))


def parts(attack: Attack) -> Iterator[Attack]:
    """The attack, and all that are inside it."""
    yield attack
    for field in dataclasses.fields(attack):
        value = getattr(attack, field.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Attack):
                yield from parts(inner)

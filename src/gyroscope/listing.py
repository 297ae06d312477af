"""The tables behind `gyroscope list`."""

from __future__ import annotations

import dataclasses
from typing import Any

from gyroscope import attacks, momentum, rules, specs, tasks
from gyroscope.data import shards
from gyroscope.errors import UnknownNameError

Listing = tuple[list[str], list[list[str]]]


def listing(what: str) -> Listing:
    """Header and lines for one of the kinds of things that can be named."""
    if what == "rules":
        return _header("needs"), [_line(rule, rule.needs) for rule in rules.RULES.values()]
    if what == "preaggregations":
        return _header("needs"), [_line(stage, stage.needs) for stage in rules.PREAGGREGATIONS.values()]
    if what == "mixtures":
        return ["name", "what", "written"], [
            [order, summary, f"{order}:RULE/RULE/..."] for order, summary in rules.MIXTURES.items()
        ]
    if what == "attacks":
        return _header(), [_line(attack) for attack in attacks.ATTACKS.values()]
    if what == "placements":
        return _header(), [_line(placement) for placement in momentum.PLACEMENTS.values()]
    if what == "shardings":
        return _header(), [_line(sharding) for sharding in shards.SHARDINGS.values()]
    if what == "tasks":
        return _header("defaults"), [_line(task, _settings(task.defaults)) for task in tasks.TASKS.values()]
    raise UnknownNameError(
        "listing", what, ["rules", "preaggregations", "mixtures", "attacks", "tasks", "placements", "shardings"]
    )


def _header(*extra: str) -> list[str]:
    return ["name", "what", *extra, "parameters", "from"]


def _line(kind: Any, *extra: str) -> list[str]:
    return [kind.name, kind.summary, *extra, _parameters(kind), kind.paper]


def _parameters(kind: Any) -> str:
    fields = [field for field in dataclasses.fields(kind) if field.init]
    return ", ".join(f"{field.name}={specs.value_text(field.default)}" for field in fields) or "-"


def _settings(defaults: tasks.Defaults) -> str:
    return ", ".join(f"{field.name}={getattr(defaults, field.name)}" for field in dataclasses.fields(defaults))

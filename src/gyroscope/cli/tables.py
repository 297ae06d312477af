"""The tables behind `gyroscope list`."""

from __future__ import annotations

import dataclasses
from typing import Any

from gyroscope import attacks, momentum, rules
from gyroscope._core import registry
from gyroscope._core.errors import UnknownNameError
from gyroscope._core.sanitize import shortened
from gyroscope.runs.defences import DEFENCES
from gyroscope.runs.variants import variants
from gyroscope.simulation import tasks
from gyroscope.simulation.data import shards

Listing = tuple[list[str], list[list[str]]]


def listing(what: str) -> Listing:
    """Header and lines for one of the kinds of things that can be named; those of other packages come last."""
    if what == "defences":
        return ["name", "what", "means"], [
            [each.name, each.summary, " ".join(f"--{key} {value}" for key, value in each.settings.items())]
            for each in DEFENCES.values()
        ]
    if what == "rules":
        lines = [_line(rule, rule.needs) for rule in rules.RULES.values()]
        return _header("needs"), lines + _installed("rule", needs=True)
    if what == "preaggregations":
        lines = [_line(stage, stage.needs) for stage in rules.PREAGGREGATIONS.values()]
        return _header("needs"), lines + _installed("preaggregation", needs=True)
    if what == "mixtures":
        return ["name", "what", "written"], [
            [order, summary, f"{order}:RULE/RULE/..."] for order, summary in rules.MIXTURES.items()
        ]
    if what == "attacks":
        return _header(), [_line(attack) for attack in attacks.ATTACKS.values()] + _installed("attack")
    if what == "placements":
        placements = [*momentum.PLACEMENTS.values()]
        placements += [kind for variant in variants() for kind in variant.extra_placements().values()]
        return ["name", "what", "from"], [[kind.name, kind.summary, kind.paper] for kind in placements]
    if what == "shardings":
        return _header(), [_line(sharding) for sharding in shards.SHARDINGS.values()] + _installed("sharding")
    if what == "tasks":
        return _header("defaults"), [_line(task, _settings(task.defaults)) for task in tasks.TASKS.values()]
    raise UnknownNameError(
        "listing",
        what,
        ["defences", "rules", "preaggregations", "mixtures", "attacks", "tasks", "placements", "shardings"],
    )


def _header(*extra: str) -> list[str]:
    return ["name", "what", *extra, "parameters", "from"]


def _line(kind: Any, *extra: str) -> list[str]:
    return [kind.name, kind.summary, *extra, _parameters(kind), kind.paper]


def _parameters(kind: Any) -> str:
    fields = [field for field in dataclasses.fields(kind) if field.init and field.repr]  # without every rule's f
    return ", ".join(f"{field.name}={registry.value_text(field.default)}" for field in fields) or "-"


def _settings(defaults: tasks.Defaults) -> str:
    return ", ".join(f"{field.name}={getattr(defaults, field.name)}" for field in dataclasses.fields(defaults))


def _installed(kind: str, needs: bool = False) -> list[list[str]]:
    """What other packages have listed under our entry points, marked with the package. One that fails says why."""
    lines = []
    for name, point in sorted(registry.installed(kind).items()):
        package = f"package {point.dist.name} {point.dist.version}" if point.dist else f"module {point.module}"
        try:
            made = point.load()
        except Exception as problem:  # whatever somebody's module does when it is imported
            reason = shortened(f"cannot be loaded: {type(problem).__name__}: {problem}")
            lines.append([name, reason, *(["-"] if needs else []), "-", package])
            continue
        summary = getattr(made, "summary", "") or shortened((made.__doc__ or "-").strip().partition("\n")[0])
        paper = getattr(made, "paper", "-")
        lines.append([
            name,
            summary,
            *([getattr(made, "needs", "") or "-"] if needs else []),
            _parameters(made) if dataclasses.is_dataclass(made) else "-",
            package if paper == "-" else f"{paper}; {package}",
        ])  # fmt: skip
    return lines

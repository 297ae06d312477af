"""`gyroscope list`: what can be named. It needs no extra."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gyroscope._core import registry
from gyroscope._core.foreign_text import shortened

KINDS = (
    "defences",
    "rules",
    "preaggregations",
    "mixtures",
    "attacks",
    "tasks",
    "optimizers",
    "placements",
    "shardings",
)
NAMES = Path(__file__).with_name("names.json")
"""The listings of this package alone, to be shown without importing torch; see benchmarks.pages.update_rules."""
_GUARANTEES = {
    "range": "within the range of honest rows",
    "distance": "near the mean of honest rows",
    "norm": "no longer than honest rows: an adversary may steer it",
    "finite": "finite: an adversary may steer it",
    "none": "none: an adversary may steer it",
}


def add(commands: Any) -> None:
    command = commands.add_parser(
        "list",
        help="what can be named: defences, rules and what stands before them, attacks, tasks, optimizers, placements, "
        "shardings",
        description="What there is, what it needs, which parameters it has, and where it comes from. Parameters are "
        "written name:key=value,key=value, for example krum:m=1; pre-aggregations stand before a rule, for example "
        "nnm+bucketing:s=3+krum:m=1; a mixture has a / between its rules, for example random:krum/median.",
    )
    command.add_argument("what", choices=KINDS, nargs="?", help="which of them (default: all)")
    command.set_defaults(run=_list, lab=False)


def _list(options: argparse.Namespace) -> int:
    known = None if registry.extended() else json.loads(NAMES.read_text(encoding="utf-8"))
    for what in [options.what] if options.what else KINDS:
        header, lines = known[what] if known else listing(what)
        if not options.what:
            print(f"\n{_bold(what)}")
        table = text_table(header, lines)
        # A pipe has no width of its own: an entry stays a line for grep.
        if sys.stdout.isatty() and max(map(len, table)) > shutil.get_terminal_size().columns:
            print("\n".join(_narrow(header, lines, shutil.get_terminal_size().columns)))
        else:
            print("\n".join([_bold(table[0]), *table[1:]]))
    return 0


def listing(what: str) -> tuple[list[str], list[list[str]]]:
    """Return header and lines for one of KINDS; the entries of other packages come last."""
    from gyroscope import attacks, momentum, rules
    from gyroscope.runs.defences import DEFENCES
    from gyroscope.runs.variants import variants
    from gyroscope.simulation import server_optimizer, tasks
    from gyroscope.simulation.data import shards

    if what == "defences":
        return ["name", "what", "means"], [
            [each.name, each.summary, " ".join(f"--{key} {value}" for key, value in each.settings.items())]
            for each in DEFENCES.values()
        ]
    if what == "mixtures":
        return ["name", "what", "written"], [
            [order, summary, f"{order}:RULE/RULE/..."] for order, summary in rules.MIXTURES.items()
        ]
    if what == "placements":
        kinds = [*momentum.PLACEMENTS.values()]
        kinds += [kind for variant in variants() for kind in variant.extra_placements().values()]
        return ["name", "what", "from"], [[kind.name, kind.summary, kind.paper] for kind in kinds]
    tables: dict[str, tuple[Any, str, list[str]]] = {  # the table, its entry points, and attributes that are shown, too
        "rules": (rules.RULES, "rule", ["guarantee", "needs"]),
        "preaggregations": (rules.PREAGGREGATIONS, "preaggregation", ["needs"]),
        "attacks": (attacks.ATTACKS, "attack", []),
        "tasks": (tasks.TASKS, "task", ["defaults"]),
        "optimizers": (server_optimizer.OPTIMIZERS, "", []),
        "shardings": (shards.SHARDINGS, "sharding", []),
    }
    table, entry_points, more = tables[what]
    lines = [_line(kind, kind.name, more, kind.paper) for kind in table.values()]
    header = ["name", "what", *more, "parameters", "from"]
    return header, lines + (_installed(entry_points, more) if entry_points else [])


def _line(kind: Any, name: str, more: list[str], origin: str) -> list[str]:
    summary = getattr(kind, "summary", "") or shortened((kind.__doc__ or "-").strip().partition("\n")[0])
    if aliases := getattr(kind, "aliases", ()):
        summary += f" (also {', '.join(aliases)})"
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    fields = tuple(field for field in fields if field.init and field.name != "f")
    parameters = ", ".join(f"{field.name}={registry.value_text(field.default)}" for field in fields) or "-"
    return [name, summary, *(_fact(getattr(kind, attribute, None) or "-") for attribute in more), parameters, origin]


def _fact(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        return ", ".join(f"{field.name}={getattr(value, field.name)}" for field in dataclasses.fields(value))
    return _GUARANTEES.get(value, str(value))


def _installed(entry_points: str, more: list[str]) -> list[list[str]]:
    """Return what other packages list under our entry points, marked with the package. One that fails says why."""
    lines = []
    for name, point in sorted(registry.installed(entry_points).items()):
        package = f"package {point.dist.name} {point.dist.version}" if point.dist else f"module {point.module}"
        try:
            made = point.load()
        except Exception as problem:  # a foreign module may raise anything when it is imported
            reason = shortened(f"cannot be loaded: {type(problem).__name__}: {problem}")
            lines.append([name, reason, *("-" for _ in more), "-", package])
            continue
        paper = getattr(made, "paper", "-")
        lines.append(_line(made, name, more, package if paper == "-" else f"{paper}; {package}"))
    return lines


def text_table(header: list[str], lines: list[list[str]], justify: Callable[[str, int], str] = str.ljust) -> list[str]:
    """Return a line per entry, the header first; the columns are as wide as their longest text."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    return ["  ".join(map(justify, line, widths)).rstrip() for line in (header, *lines)]


def _narrow(header: list[str], lines: list[list[str]], width: int) -> list[str]:
    """The same where a line has no room for all of it: what an entry is, and below it the rest, each with its title."""
    indent = 2 + max(len(line[0]) for line in lines)
    shown = []
    for name, what, *rest in lines:
        facts = "; ".join(
            f"{title} {fact}" for title, fact in zip(header[2:], rest, strict=True) if fact not in ("", "-")
        )
        text = [piece for part in (what, facts) for piece in textwrap.wrap(part, max(10, width - indent))]
        shown.append(_bold(name) + " " * (indent - len(name)) + f"\n{' ' * indent}".join(text))
    return shown


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text

"""`gyroscope list`: what can be named."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from gyroscope._core import registry
from gyroscope._core.sanitize import shortened

if TYPE_CHECKING:
    from rich.table import Table

_ENDLESS = 10_000
KINDS = ("defences", "rules", "preaggregations", "mixtures", "attacks", "tasks", "placements", "shardings")


def add(commands: Any) -> None:
    command = commands.add_parser(
        "list",
        help="what can be named: defences, rules, what can stand before them, attacks, tasks, placements, shardings",
        description="What there is, what it needs, which parameters it has, and where it comes from. Parameters are "
        "written name:key=value,key=value, for example krum:m=1; pre-aggregations stand before a rule, for example "
        "nnm+bucketing:s=3+krum:m=1; a mixture has a / between its rules, for example random:krum/median.",
    )
    command.add_argument("what", choices=KINDS, nargs="?", help="which of them (default: all)")
    command.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    from rich.console import Console

    # A pipe has no width of its own: leave all the room there is, so that an entry stays a line for grep.
    console = Console(width=None if sys.stdout.isatty() else _ENDLESS, markup=False, highlight=False)
    for what in [options.what] if options.what else KINDS:
        header, lines = _listing(what)
        if not options.what:
            console.print(f"\n{what}", style="bold")
        table = _table(header, lines)
        wanted = console.measure(table, options=console.options.update(width=_ENDLESS)).maximum
        console.print(table if wanted <= console.width else _narrow(header, lines))
    return 0


def _listing(what: str) -> tuple[list[str], list[list[str]]]:
    """Return header and lines for one of KINDS; the entries of other packages come last."""
    from gyroscope import attacks, momentum, rules
    from gyroscope.runs.defences import DEFENCES
    from gyroscope.simulation import tasks
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
    tables: dict[str, tuple[Any, str, str]] = {  # the table, its entry points, and an attribute that is shown, too
        "rules": (rules.RULES, "rule", "needs"),
        "preaggregations": (rules.PREAGGREGATIONS, "preaggregation", "needs"),
        "attacks": (attacks.ATTACKS, "attack", ""),
        "tasks": (tasks.TASKS, "", "defaults"),
        "placements": (momentum.PLACEMENTS, "", ""),
        "shardings": (shards.SHARDINGS, "sharding", ""),
    }
    table, entry_points, more = tables[what]
    lines = [_line(kind, kind.name, more, kind.paper) for kind in table.values()]
    header = ["name", "what", *([more] if more else []), "parameters", "from"]
    return header, lines + (_installed(entry_points, more) if entry_points else [])


def _line(kind: Any, name: str, more: str, origin: str) -> list[str]:
    summary = getattr(kind, "summary", "") or shortened((kind.__doc__ or "-").strip().partition("\n")[0])
    extra = getattr(kind, more, None) or "-"
    if dataclasses.is_dataclass(extra):
        extra = ", ".join(f"{field.name}={getattr(extra, field.name)}" for field in dataclasses.fields(extra))
    fields = [field for field in dataclasses.fields(kind) if field.init] if dataclasses.is_dataclass(kind) else []
    parameters = ", ".join(f"{field.name}={registry.value_text(field.default)}" for field in fields) or "-"
    return [name, summary, *([extra] if more else []), parameters, origin]


def _installed(entry_points: str, more: str) -> list[list[str]]:
    """Return what other packages list under our entry points, marked with the package. One that fails says why."""
    lines = []
    for name, point in sorted(registry.installed(entry_points).items()):
        package = f"package {point.dist.name} {point.dist.version}" if point.dist else f"module {point.module}"
        try:
            made = point.load()
        except Exception as problem:  # a foreign module may raise anything when it is imported
            reason = shortened(f"cannot be loaded: {type(problem).__name__}: {problem}")
            lines.append([name, reason, *(["-"] if more else []), "-", package])
            continue
        paper = getattr(made, "paper", "-")
        lines.append(_line(made, name, more, package if paper == "-" else f"{paper}; {package}"))
    return lines


def _table(header: list[str], lines: list[list[str]]) -> Table:
    """Return a table with a line per entry."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in header:
        table.add_column(title, no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def _narrow(header: list[str], lines: list[list[str]]) -> Table:
    """Return the same for a narrow terminal: what an entry is, and below it the rest, each with its title."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, what, *rest in lines:
        facts = "; ".join(
            f"{title} {fact}" for title, fact in zip(header[2:], rest, strict=True) if fact not in ("", "-")
        )
        table.add_row(name, Text.assemble(what, *([("\n" + facts, "dim")] if facts else [])))
    return table

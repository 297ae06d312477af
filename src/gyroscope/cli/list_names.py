"""`gyroscope list`: what can be named."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

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

    from gyroscope.cli.tables import listing

    # A pipe has no width of its own: leave all the room there is, so that an entry stays a line for grep.
    console = Console(width=None if sys.stdout.isatty() else _ENDLESS, markup=False, highlight=False)
    for what in [options.what] if options.what else KINDS:
        header, lines = listing(what)
        if not options.what:
            console.print(f"\n{what}", style="bold")
        table = _table(header, lines)
        wanted = console.measure(table, options=console.options.update(width=_ENDLESS)).maximum
        console.print(table if wanted <= console.width else _narrow(header, lines))
    return 0


def _table(header: list[str], lines: list[list[str]]) -> Table:
    """A line per entry."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in header:
        table.add_column(title, no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def _narrow(header: list[str], lines: list[list[str]]) -> Table:
    """The same where a line has no room for all of it: what an entry is, and below it the rest, each with its title."""
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

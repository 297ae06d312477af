"""`gyroscope list`: what can be named."""

from __future__ import annotations

import argparse
import sys
from typing import Any

KINDS = ("rules", "preaggregations", "mixtures", "attacks", "tasks", "placements", "shardings")


def add(commands: Any) -> None:
    command = commands.add_parser(
        "list",
        help="what can be named: rules, what can stand before them, attacks, tasks, placements, shardings",
        description="What there is, what it needs, which parameters it has, and where it comes from. Parameters are "
        "written name:key=value,key=value, for example krum:m=1; pre-aggregations stand before a rule, for example "
        "nnm+bucketing:s=3+krum:m=1; a mixture has a / between its rules, for example random:krum/median.",
    )
    command.add_argument("what", choices=KINDS, nargs="?", help="which of them (default: all)")
    command.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from gyroscope.listing import listing

    # A pipe has no width of its own: leave all the room there is, so that an entry stays a line for grep.
    console = Console(width=None if sys.stdout.isatty() else 10_000, markup=False, highlight=False)
    for what in [options.what] if options.what else KINDS:
        header, lines = listing(what)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, title in enumerate(header):
            table.add_column(title, no_wrap=number == 0, overflow="fold")
        for line in lines:
            table.add_row(*line)
        if not options.what:
            console.print(f"\n{what}", style="bold")
        console.print(table)
    return 0

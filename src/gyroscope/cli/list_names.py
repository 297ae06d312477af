"""`gyroscope list`: what can be named. It needs no extra."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from typing import Any

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
    command.set_defaults(run=_list, lab=False)


def _list(options: argparse.Namespace) -> int:
    from gyroscope.cli.tables import listing

    for what in [options.what] if options.what else KINDS:
        header, lines = listing(what)
        if not options.what:
            print(f"\n{_bold(what)}")
        table = _table(header, lines)
        # A pipe has no width of its own: an entry stays a line for grep.
        if sys.stdout.isatty() and max(map(len, table)) > shutil.get_terminal_size().columns:
            print("\n".join(_narrow(header, lines, shutil.get_terminal_size().columns)))
        else:
            print("\n".join([_bold(table[0]), *table[1:]]))
    return 0


def _table(header: list[str], lines: list[list[str]]) -> list[str]:
    """A line per entry."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (header, *lines)]


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

"""`gyroscope demo`: an attack succeeds and fails."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gyroscope._core.errors import ConfigError


def add(commands: Any) -> None:
    command = commands.add_parser(
        "demo",
        help="see an attack succeed and fail, in under a minute",
        description="Trains a small network on 8x8 digits (no download): unattacked, then under 'A little is enough' "
        "with Krum, Median and Bulyan, with momentum at the server and at the workers.",
    )
    command.add_argument("--out", default="demo-runs", metavar="DIR", help="where to write (default: %(default)s)")
    command.add_argument("--seeds", type=int, default=3, metavar="K", help="seeds 1 to K (default: %(default)s)")
    command.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from gyroscope.experiments import demo
    from gyroscope.runs.progress import overall

    if options.seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {options.seeds}")
    with overall() as advance:
        rows, figure, seconds = demo.run(Path(options.out), range(1, options.seeds + 1), advance, overwrite=True)
    table = Table(title='Maximum accuracy on digits under "A little is enough"', title_justify="left")
    table.add_column("momentum at the")
    table.add_column("rule")
    table.add_column("accuracy (%)", justify="right")
    table.add_column("lost to the attack (points)", justify="right")
    for row in rows:
        lost = "" if row.rule == demo.BASELINE else f"{row.drop:.1f}"
        table.add_row(row.momentum, row.rule, f"{row.mean:.1f} ± {row.deviation:.1f}", lost,
                      end_section=row.rule == demo.RULES[-1])  # fmt: skip
    console = Console(highlight=False)
    console.print(table)
    console.print(f"figure: {figure[0]}   run directories: {options.out}/   {seconds:.0f} s", soft_wrap=True)
    return 0

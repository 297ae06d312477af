"""`gyroscope sweep`: a grid of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gyroscope.commands import running

_EXAMPLES = """\
a grid is a TOML file; keys are those of a run's configuration (gyroscope train --help), values may be lists:
  [base]
  task = "digits"
  momentum = ["server", "workers"]
  seed = "1-3"

  [[grid]]
  rule = ["krum", "median", "bulyan"]
  attack = "little"
  byzantine = 5

  [[grid]]                # the unattacked baseline, against which a report states what an attack cost
  rule = "average"

then:
  gyroscope sweep grid.toml --out runs/mine
  gyroscope report runs/mine
"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "sweep",
        help="run a grid of your own",
        description="Every combination of the values in a TOML file, on all cores, resumable at any point.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("grid", metavar="GRID.toml", help="the grid")
    command.add_argument("--only", action="append", default=[], metavar="PATTERN",
                         help="only runs whose name matches; may be repeated")  # fmt: skip
    running.add_options(command, None)
    command.add_argument("--executor", choices=["local", "slurm", "submitit-local"], default="local",
                         help="local: processes here; slurm: one job per run on a cluster, through submitit; "
                         "submitit-local: the same machinery on this machine (default: %(default)s)")  # fmt: skip
    command.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE",
                         help="a parameter for submitit's executor, e.g. timeout_min=60")  # fmt: skip
    command.set_defaults(run=_sweep)


def _sweep(options: argparse.Namespace) -> int:
    from gyroscope.experiments import grid

    options.out = options.out or str(Path("runs") / Path(options.grid).stem)
    setups = grid.only(grid.read(options.grid), options.only)
    if options.executor != "local" and not options.dry_run:
        return running.submit(setups, options)
    code = running.run(setups, options)
    if code == 0 and not options.dry_run:
        print(f"look at it with: gyroscope report {options.out}")
    return code

"""`gyroscope reproduce`: the whole paper in one command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gyroscope.cli import running

_EXAMPLES = """\
examples:
  the paper's 220 runs with MNIST, then its figures, its claims and an HTML page (some 16 minutes on two cores):
    gyroscope reproduce mnist

  only what one figure needs, with two seeds, and what that would take:
    gyroscope reproduce mnist --only 'mnist-little-*-f_12-*' --only 'mnist-average-*' --seeds 1-2 --dry-run

  everything on two GPUs, and CIFAR-10 at a size that a CPU can bear:
    gyroscope reproduce all --devices cuda:0,cuda:1
    gyroscope reproduce cifar10 --width 0.125 --steps 300

Interrupt it at any time; the same command goes on where it stopped and redoes nothing that is complete.
"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "reproduce",
        help="run the paper's experiments, draw its figures, check its claims",
        description="The paper's 88 setups with 5 seeds each: 440 runs, half of them with MNIST, half with CIFAR-10.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("what", nargs="?", choices=["mnist", "cifar10", "all"], default="mnist",
                         help="which half of it (default: %(default)s)")  # fmt: skip
    command.add_argument("--seeds", default="1-5", metavar="LIST",
                         help="seeds, as in 1-5 or 1,2,7 (default: %(default)s)")  # fmt: skip
    command.add_argument("--rescore", action="store_true",
                         help="also Bulyan with rescoring, the paper's text: 8 setups more per task")  # fmt: skip
    command.add_argument("--steps", type=int, metavar="T", help="rounds per run, where the paper's number is too many")
    command.add_argument("--width", type=float, metavar="W", help="of CIFAR-10's network; 1 is the paper's")
    running.add_options(command, "runs/paper")
    command.set_defaults(run=_reproduce)


def _reproduce(options: argparse.Namespace) -> int:
    from gyroscope.experiments import grid

    halves = ["mnist", "cifar10"] if options.what == "all" else [options.what]
    setups = [
        setup for task in halves for setup in grid.paper(task, options.steps, options.width, rescore=options.rescore)
    ]
    runs = grid.with_seeds(grid.only(setups, options.only), grid.parse_seeds(options.seeds))
    code = running.run(runs, options)
    if code in (0, 1) and not options.dry_run:  # some may have failed: the others are worth a look
        from gyroscope.cli import report

        report.write(Path(options.out), ["html", "md", "csv", "figures"], quiet=options.quiet)
    return code

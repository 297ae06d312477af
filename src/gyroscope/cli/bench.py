"""`gyroscope bench`: the benchmarks are in the source checkout, beside `src`, and not in the wheel."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from gyroscope._core.errors import ConfigError

_CHECKOUT = Path(__file__).parents[3]
_ELSEWHERE = (
    "the benchmarks are not part of the installed package: clone the repository, run `make demo` in it once, and call "
    ".venv/bin/gyroscope bench there"
)


def add(commands: Any) -> None:
    """Add the command of `benchmarks/`, or one that says where to find it."""
    if (_CHECKOUT / "benchmarks" / "command.py").is_file():
        if str(_CHECKOUT) not in sys.path:
            sys.path.append(str(_CHECKOUT))
        importlib.import_module("benchmarks.command").add(commands)
        return
    command = commands.add_parser(
        "bench",
        help="measure how fast the rules and the trainer are (needs a checkout)",
        description=f"{_ELSEWHERE[0].upper()}{_ELSEWHERE[1:]}.",
    )
    command.add_argument("parts", nargs="*", help=argparse.SUPPRESS)
    command.set_defaults(run=_refuse, lab=False)
    end = command.error  # of options, all of which are unknown here
    command.error = lambda message: end(_ELSEWHERE)


def _refuse(options: argparse.Namespace) -> int:
    raise ConfigError(_ELSEWHERE)

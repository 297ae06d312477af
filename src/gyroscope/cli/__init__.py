"""The command line: parse, build, call. Everything it can do, the library can do too."""

from __future__ import annotations

import argparse
import gc
import re
import sys
import traceback
import warnings
from collections.abc import Sequence

from gyroscope import __version__
from gyroscope._core.errors import GyroscopeError
from gyroscope._core.garbage import no_collection
from gyroscope._core.optional import require_lab
from gyroscope._core.registry import Named, installed
from gyroscope.cli import (
    bench,
    demo,
    flower,
    keys,
    list_names,
    operate,
    redteam,
    report,
    reproduce,
    serve,
    shards,
    sweep,
    train,
    work,
)
from gyroscope.runs.command_options import CommandParser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Exit codes: 0, 1 a bug, 2 a user's mistake, 3 lost workers or a lost server, 4 a run diverged, 130 interrupted.
    """
    fresh = "torch" not in sys.modules  # else this process is somebody else's, say a test's
    with no_collection():
        options = parser().parse_args(arguments)  # most commands import torch here
    if not fresh:
        return _run(options)
    try:
        gc.freeze()  # modules stay: no later search for garbage looks at them
        return _run(options)
    finally:
        gc.freeze()  # nor does the last one, when the process ends: a third of a second with torch and numba


def _run(options: argparse.Namespace) -> int:
    try:
        return _run_command(options)
    except Exception as problem:
        owner = _own_code(problem)
        if owner is None:
            raise
        traceback.print_exception(problem)
        print(
            f"gyroscope: error: the {owner.kind_in_errors} {owner} raised this {type(problem).__name__}: mend the line "
            "of its code in the traceback",
            file=sys.stderr,
        )
        return 1


def _own_code(problem: Exception) -> Named | None:
    """Return the rule, attack or task of somebody else's module in whose code an exception was raised."""
    owner = None
    for frame, _ in traceback.walk_tb(problem.__traceback__):
        here = frame.f_locals.get("self")
        if isinstance(here, Named) and not frame.f_globals.get("__name__", "").startswith("gyroscope."):
            owner = here
    return owner


def _run_command(options: argparse.Namespace) -> int:
    # A warning is for the user: one line, without the place in our source.
    warnings.showwarning = lambda message, *_, **__: print(f"gyroscope: warning: {message}", file=sys.stderr)
    if "" not in sys.path:
        sys.path.append("")  # so that --rule my_module:MyRule finds a module in the current directory
    try:
        if getattr(options, "lab", True):
            require_lab("this command")
        return int(options.run(options))
    except GyroscopeError as problem:
        message = options.reword(str(problem), options) if hasattr(options, "reword") else str(problem)
        print(f"gyroscope: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (MemoryError, RuntimeError) as problem:  # torch's is a RuntimeError
        if not isinstance(problem, MemoryError) and not re.search("allocate memory|out of memory", str(problem)):
            raise
        size = re.search(r"allocate ([\d.]+ ?\w+)", str(problem))
        print(
            f"gyroscope: error: there is not enough memory{f' for {size[1]}' if size else ''}: lower --batch or "
            "--workers, or choose a smaller task",
            file=sys.stderr,
        )
        return 2
    except BrokenPipeError:  # `gyroscope list rules | head`
        sys.stderr.close()
        return 0
    except OSError as problem:  # a place that the user has named
        if problem.filename is None:
            raise
        print(
            f"gyroscope: error: cannot use {problem.filename}: {problem.strerror}. What to do: name another place, or "
            "permit reading and writing there",
            file=sys.stderr,
        )
        return 2


def parser() -> argparse.ArgumentParser:
    """The whole grammar of the command line."""
    top = CommandParser(
        prog="gyroscope",
        description="Distributed training with workers that may lie: aggregation rules and what is proven of them, "
        "attacks, a search for worse ones, and momentum at the workers or at the server.",
        epilog="Begin with: gyroscope demo",
    )
    top.add_argument("--version", action="version", version=f"gyroscope {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=CommandParser)
    for command in (
        demo,
        train,
        list_names,
        redteam,
        shards,
        reproduce,
        sweep,
        report,
        serve,
        work,
        keys,
        operate,
        flower,
        bench,
    ):
        command.add(commands)
    for _, point in sorted(installed("command").items()):  # those of research, and of other packages
        try:
            point.load().add(commands)
        except Exception as problem:
            warnings.warn(f"the command {point.name!r} of {point.value} cannot be added: {problem}", stacklevel=1)
    return top

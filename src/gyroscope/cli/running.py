"""What `reproduce` and `sweep` share: options, the plan, the progress, the summary."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.errors import ConfigError

if TYPE_CHECKING:
    from gyroscope.experiments.grid import Setup
    from gyroscope.experiments.pool import JobOutcome
    from gyroscope.experiments.scheduler import RunPlan
    from gyroscope.runs.config import Config


_LISTED = 60
"""A dry run lists up to so many runs by name; of larger grids it shows the values of each setting."""


def add_options(command: Any, out: str | None) -> None:
    """Add the options of commands that run many experiments."""
    shown = out or "runs/ and the grid's name"
    command.add_argument("--only", action="append", default=[], metavar="PATTERN",
                         help="only runs whose name holds this, e.g. krum, or fits it if it has a *, e.g. "
                         "'mnist-little-*'; may be repeated")  # fmt: skip
    command.add_argument("--out", default=out, metavar="DIR", help=f"folder of the run directories (default: {shown})")
    command.add_argument("--jobs", type=int, metavar="N",
                         help="processes at a time (default: one per core, or per device named)")  # fmt: skip
    command.add_argument("--devices", metavar="LIST", help="devices to use in turn, e.g. cuda:0,cuda:1 (default: cpu)")
    command.add_argument(
        "--data-dir", metavar="DIR", help="folder that holds the data sets (built-in tasks: or set GYROSCOPE_DATA)"
    )
    command.add_argument("--dry-run", action="store_true",
                         help="show what would run, with an estimate of time and disk")  # fmt: skip
    command.add_argument("--list", action="store_true", help="in a dry run: name every run, however many there are")
    command.add_argument("--quiet", action="store_true", help="no progress")


def run(setups: Sequence[Setup], options: argparse.Namespace) -> int:
    """Run what is left of the setups; 0 when all are complete, 1 when some failed, 130 when interrupted."""
    from gyroscope.experiments import scheduler
    from gyroscope.experiments.display import display
    from gyroscope.runs.setup import usable_device

    if options.jobs is not None and options.jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {options.jobs}")
    if options.list and not options.dry_run:
        raise ConfigError("--list names the runs of a dry run: add --dry-run, or leave it out")
    for setup in setups:
        setup.config.resolve()  # every mistake shows before the first run starts
    out = Path(options.out)
    devices = scheduler.default_devices(options.jobs, options.devices)
    for name in {device or setup.config.device for device in devices for setup in setups}:
        usable_device(name)
    planned = scheduler.plan(setups, out, options.data_dir)
    if options.dry_run:
        return _dry_run(planned, len(devices), options)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)  # a cluster sends it when the time limit is near
    try:
        with display(planned, len(devices), quiet=options.quiet) as on_event:
            outcomes = scheduler.execute(planned, out, devices, on_event)
    except KeyboardInterrupt:
        print("interrupted. The same command goes on where it stopped; nothing complete is redone.", file=sys.stderr)
        return 130
    return _summary(planned, outcomes, out)


def submit(setups: Sequence[Setup], options: argparse.Namespace) -> int:
    """Send what is left of the setups to a cluster."""
    from gyroscope.experiments import scheduler, slurm

    planned = scheduler.plan(setups, Path(options.out), options.data_dir)
    where = "slurm" if options.executor == "slurm" else "local"
    submitted = slurm.submit(planned.jobs, Path(options.out), where, slurm.parse_parameters(options.slurm))
    print(f"{len(planned.complete)} of {planned.total} runs are complete; {len(submitted)} jobs submitted")
    if where == "local":
        return _summary(planned, slurm.wait(submitted), Path(options.out))
    print("Ask again with the same command: it submits only what is not complete.")
    return 0


def _dry_run(planned: RunPlan, processes: int, options: argparse.Namespace) -> int:
    from gyroscope.experiments import estimate
    from gyroscope.runs.progress import overall

    if options.list or len(planned.jobs) <= _LISTED:
        for job in planned.jobs:
            print(f"{'resume' if job.resume else 'run   '}  {job.name}")
    else:
        print_wrapped([*_overview([job.config for job in planned.jobs]), "(--list names every run)"])
    print(
        f"{len(planned.complete):,} of {planned.total:,} runs are complete, {len(planned.jobs):,} are left", flush=True
    )
    if not planned.jobs:
        return 0
    bar = overall() if sys.stderr.isatty() else contextlib.nullcontext(_print_first)
    with contextlib.nullcontext(lambda *_: None) if options.quiet else bar as advance:
        guess = estimate.estimate(planned.jobs, processes, advance)
    if guess.missing:
        print(f"no estimate for missing data sets: {', '.join(guess.missing)}; download them into a folder and name it "
              "with --data-dir or GYROSCOPE_DATA")  # fmt: skip
    if guess.kinds:
        took, of_all = estimate.duration(guess.seconds), " for the others" if guess.missing else ""
        print_wrapped([f"about {took} with {processes} processes, and {guess.megabytes:,.0f} MB of disk{of_all}; from "
                       f"{estimate.ROUNDS} rounds of each of {guess.kinds} kinds of run (by task, rule, attack and f) "
                       "and a process's start, timed just now"])  # fmt: skip
    return 0


def _overview(configs: Sequence[Config]) -> list[str]:
    """Return a line for each setting that differs: its values, in the order of the grid, with their number of runs."""
    settings = [config.resolve().experiment() for config in configs]
    lines = []
    for key in settings[0]:
        counts = Counter(str(values[key]) for values in settings)
        if len(counts) > 1:
            found = ", ".join(f"{value} ({count:,})" for value, count in counts.items())
            lines.append(f"{key}, {len(counts)} values: {found}")
    return lines


def _print_first(what: str, done: int, total: int) -> None:
    if done == 0:
        print(f"timing {total} kinds of run ...", file=sys.stderr, flush=True)


def print_wrapped(lines: Sequence[str]) -> None:
    """Print long lines, broken where the terminal ends."""
    width = shutil.get_terminal_size().columns
    for line in lines:
        print(textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def _summary(planned: RunPlan, outcomes: Sequence[JobOutcome], out: Path) -> int:
    from gyroscope.experiments import pool, scheduler
    from gyroscope.runs import run_dir

    statuses = Counter(outcome.status for outcome in outcomes)
    done = len(planned.complete) + statuses[run_dir.COMPLETE] + statuses[run_dir.DIVERGED]
    remark = f", {statuses[run_dir.DIVERGED]} of them diverged" if statuses[run_dir.DIVERGED] else ""
    print(f"{done} of {planned.total} runs are complete{remark} -> {out}")
    for outcome in (outcome for outcome in outcomes if outcome.status == pool.FAILED):
        reason = outcome.log.strip().splitlines()[-1] if outcome.log.strip() else "no log"
        print(f"failed twice: {outcome.job.name}: {reason}\n  log: {out / scheduler.FAILURES / outcome.job.name}.log",
              file=sys.stderr)  # fmt: skip
    return 0 if done == planned.total else 1

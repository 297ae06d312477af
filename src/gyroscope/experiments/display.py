"""Show a grid's progress: overall with a time estimate, and what each process does now."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator

from gyroscope.experiments.estimate import duration
from gyroscope.experiments.pool import JobOutcome, JobProgress, OnEvent
from gyroscope.experiments.scheduler import RunPlan
from gyroscope.runs import run_dir


@contextlib.contextmanager
def display(planned: RunPlan, processes: int, quiet: bool = False) -> Iterator[OnEvent]:
    """Yield a callback for the pool's events: bars on a terminal, a line per run elsewhere, nothing when quiet."""
    if quiet or not planned.jobs:
        yield lambda event: None
    elif sys.stderr.isatty():
        with _bars(planned, processes) as on_event:
            yield on_event
    else:
        done = itertools.count(len(planned.complete) + 1)

        def print_outcome(event: JobProgress | JobOutcome) -> None:
            if isinstance(event, JobOutcome):
                print(f"[{next(done)}/{planned.total}] {_describe(event)}", file=sys.stderr, flush=True)

        yield print_outcome


def _describe(outcome: JobOutcome) -> str:
    measured = f"  {outcome.measured}" if outcome.measured else ""
    return f"{outcome.job.name}  {outcome.status}{measured}  {duration(outcome.seconds)}"


@contextlib.contextmanager
def _bars(planned: RunPlan, processes: int) -> Iterator[OnEvent]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[facts]}"), progress.TimeElapsedColumn(), progress.TimeRemainingColumn(),
    )  # fmt: skip
    # The estimate counts rounds, not runs: a run of the paper can take many times longer than another.
    steps = {job.name: job.config.resolve().steps or 0 for job in planned.jobs}
    with progress.Progress(*columns, console=Console(stderr=True), speed_estimate_period=600) as bar:
        overall = bar.add_task("rounds", total=sum(steps.values()), facts="")
        lines = [bar.add_task("", total=None, facts="", visible=False) for _ in range(processes)]
        reached: dict[str, int] = {}
        ended = len(planned.complete)

        def on_event(event: JobProgress | JobOutcome) -> None:
            nonlocal ended
            name = event.job.name
            if isinstance(event, JobProgress):
                reached[name] = event.step
                line, total = lines[event.worker], steps[name]
                bar.update(
                    line, description=name, total=total, completed=event.step, facts=event.measured, visible=True
                )
            else:
                reached[name], ended = steps[name], ended + 1
                if event.status != run_dir.COMPLETE:
                    bar.console.print(_describe(event))
            bar.update(overall, completed=sum(reached.values()), facts=f"{ended}/{planned.total} runs")

        yield on_event

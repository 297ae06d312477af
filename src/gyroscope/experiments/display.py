"""What a person sees while a grid runs: overall progress with a time estimate, and what each process does now."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from gyroscope.experiments.estimate import duration
from gyroscope.experiments.pool import Now, Outcome
from gyroscope.experiments.scheduler import Plan

Told = Callable[[Now | Outcome], None]


@contextlib.contextmanager
def display(planned: Plan, processes: int, quiet: bool = False) -> Iterator[Told]:
    """Something to tell events to: bars on a terminal, a line per run elsewhere, nothing when quiet."""
    if quiet or not planned.jobs:
        yield lambda event: None
    elif sys.stderr.isatty():
        with _bars(planned, processes) as told:
            yield told
    else:
        yield _lines(planned)


def _lines(planned: Plan) -> Told:
    done = len(planned.complete)

    def told(event: Now | Outcome) -> None:
        nonlocal done
        if isinstance(event, Outcome):
            done += 1
            print(f"[{done}/{planned.total}] {describe(event)}", file=sys.stderr, flush=True)

    return told


def describe(outcome: Outcome) -> str:
    """One line on a run that has ended."""
    accuracy = "" if outcome.max_accuracy is None else f"  maximum accuracy {outcome.max_accuracy:.2%}"
    return f"{outcome.job.name}  {outcome.status}{accuracy}  {duration(outcome.seconds)}"


@contextlib.contextmanager
def _bars(planned: Plan, processes: int) -> Iterator[Told]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    # The estimate counts rounds, not runs: a run of the paper can take many times longer than another.
    total = sum(job.config.resolve().steps or 0 for job in planned.jobs)
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=600) as bar:
        overall = bar.add_task("rounds", total=total, facts="")
        lines = [bar.add_task("", total=None, facts="", visible=False) for _ in range(processes)]
        ended_rounds, ended_runs = 0, len(planned.complete)
        at: dict[str, int] = {}

        def told(event: Now | Outcome) -> None:
            nonlocal ended_rounds, ended_runs
            steps = event.job.config.resolve().steps or 0
            if isinstance(event, Now):
                at[event.job.name] = event.step
                facts = "" if event.accuracy is None else f"accuracy {event.accuracy:.1%}"
                line = lines[event.slot]
                bar.update(
                    line, description=event.job.name, total=steps, completed=event.step, facts=facts, visible=True
                )
            else:
                ended_rounds, ended_runs = ended_rounds + steps, ended_runs + 1
                at.pop(event.job.name, None)
                if event.status != "complete":
                    bar.console.print(describe(event))
            bar.update(overall, completed=ended_rounds + sum(at.values()), facts=f"{ended_runs}/{planned.total} runs")

        yield told

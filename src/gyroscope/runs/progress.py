"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from gyroscope._core.optional import extra
from gyroscope.runs.callbacks import Callback, Row


class Lines(Callback):
    """A line at every evaluation, but not more than about one a second: for logs and pipes."""

    remark = ""

    def __init__(self, stream: TextIO | None = None, interval: float = 1.0) -> None:
        self.stream = stream or sys.stderr
        self.interval = interval
        self.row: Row = {}

    def begin(self, title: str, step: int, steps: int) -> None:
        self.steps, self.started, self.first, self.said = steps, time.monotonic(), step, float("-inf")
        print(f"{title}: steps {step} to {steps}", file=self.stream, flush=True)

    def step(self, row: Row) -> None:
        self.row = row

    def evaluated(self, row: Row) -> None:
        now, step = time.monotonic(), int(row["step"] or 0)
        if now - self.said < self.interval and step != self.steps:
            return
        self.said = now
        facts = [f"step {step}/{self.steps}", describe(self.row), f"accuracy {row['accuracy']:.2%}", self.remark]
        if step > self.first:
            facts.append(f"{(step - self.first) / max(now - self.started, 1e-9):.1f} steps/s")
        print("  ".join(filter(None, facts)), file=self.stream, flush=True)


class Bar(Callback):
    """A live bar with step, loss, accuracy, ratio and steps/s, under a line that says what runs. Fits 80 columns."""

    remark = ""

    def __init__(self) -> None:
        with extra("lab", "a progress bar"):
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

        self.bar = RichProgress(
            TextColumn("{task.completed}/{task.total}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True, highlight=False),
        )

    def begin(self, title: str, step: int, steps: int) -> None:
        self.first, self.started = step, time.monotonic()
        self.accuracy: float | None = None
        self.row: Row = {}
        self.bar.start()
        self.bar.console.print(title)
        self.task = self.bar.add_task("", total=steps, completed=step, facts="")

    def step(self, row: Row) -> None:
        self.row = row
        self.refresh()

    def evaluated(self, row: Row) -> None:
        self.accuracy = float(row["accuracy"] or 0)
        self.refresh()

    def end(self) -> None:
        self.bar.stop()

    def refresh(self) -> None:
        if not self.row:
            self.bar.update(self.task, facts=self.remark)
            return
        done = int(self.row["step"] or 0) + 1
        pace = (done - self.first) / max(time.monotonic() - self.started, 1e-9)
        accuracy = "" if self.accuracy is None else f"accuracy {self.accuracy:.2%}"
        facts = "  ".join(filter(None, [describe(self.row), accuracy, f"{pace:.1f} steps/s", self.remark]))
        self.bar.update(self.task, completed=done, facts=facts)


def remark(progress: Callback | None, text: str) -> None:
    """Have something shown besides the numbers, from now on: who is missing in a run with worker processes."""
    if not isinstance(progress, (Bar, Lines)) or progress.remark == text:
        return
    progress.remark = text
    if isinstance(progress, Bar):
        progress.refresh()
    elif text:
        print(text, file=progress.stream, flush=True)


def describe(row: Row) -> str:
    """The two numbers of a step that one watches."""
    known = {"loss": row.get("loss"), "ratio": row.get("ratio_sent")}
    return "  ".join(f"{name} {value:.3g}" for name, value in known.items() if value is not None)


def choose() -> Callback:
    """Return the progress display that fits where the program runs: a bar on a terminal, else lines."""
    return Bar() if sys.stderr.isatty() else Lines()


@contextlib.contextmanager
def overall() -> Iterator[Callable[[str, int, int], None]]:
    """Progress over many runs: yields `advance(what is done now, how many are done, how many there are)`."""
    if not sys.stderr.isatty():

        def say(what: str, done: int, total: int) -> None:
            print(f"[{done}/{total}] {what}", file=sys.stderr, flush=True)

        yield say
        return
    with extra("lab", "a progress bar"):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield show

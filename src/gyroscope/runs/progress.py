"""Progress displays: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from gyroscope._core.optional import extra
from gyroscope.runs.callbacks import Callback, Row
from gyroscope.simulation.task_metric import metric_text


class _Progress(Callback):
    """The facts that a display shows."""

    measured: str = ""
    note = ""

    def begin(self, title: str, step: int, steps: int) -> None:
        self.row: Row = {}
        self.first, self.steps, self.started = step, steps, time.monotonic()

    def step(self, row: Row) -> None:
        self.row = row
        self.refresh()

    def evaluated(self, row: Row) -> None:
        self.measured = metric_text(row)
        self.refresh()

    def remark(self, text: str) -> None:
        self.note = text
        self.refresh()

    def refresh(self) -> None:
        """Update the display; a display of lines needs none."""

    def facts(self, done: int) -> str:
        """Return loss, ratio, the last evaluation, speed and the last remark, as far as they exist."""
        known = {"loss": self.row.get("loss"), "ratio": self.row.get("ratio_sent")}
        facts = [f"{name} {value:.3g}" for name, value in known.items() if value is not None]
        if self.measured:
            facts.append(self.measured)
        if done > self.first:
            facts.append(f"{(done - self.first) / max(time.monotonic() - self.started, 1e-9):.1f} steps/s")
        return "  ".join(filter(None, [*facts, self.note]))


class Lines(_Progress):
    """Print a line at every evaluation, but not more than about one a second: for logs and pipes."""

    printed = float("-inf")

    def begin(self, title: str, step: int, steps: int) -> None:
        super().begin(title, step, steps)
        print(f"{title}: steps {step} to {steps}", file=sys.stderr, flush=True)

    def evaluated(self, row: Row) -> None:
        super().evaluated(row)
        now, step = time.monotonic(), int(row["step"] or 0)
        if now - self.printed >= 1.0 or step == self.steps:
            self.printed = now
            print(f"step {step}/{self.steps}  {self.facts(step)}", file=sys.stderr, flush=True)

    def remark(self, text: str) -> None:
        if text and text != self.note:
            print(text, file=sys.stderr, flush=True)
        super().remark(text)


class Bar(_Progress):
    """Show a live bar with step and facts, under a line that says what runs; it fits 80 columns."""

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
        super().begin(title, step, steps)
        self.bar.start()
        self.bar.console.print(title)
        self.task = self.bar.add_task("", total=steps, completed=step, facts="")

    def refresh(self) -> None:
        done = int(self.row["step"] or 0) + 1 if self.row else self.first
        self.bar.update(self.task, completed=done, facts=self.facts(done))

    def end(self) -> None:
        self.bar.stop()


@contextlib.contextmanager
def overall() -> Iterator[Callable[[str, int, int], None]]:
    """Show progress over many runs: yields `advance(name of the current one, how many are done, total)`."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: print(f"[{done}/{total}] {what}", file=sys.stderr, flush=True)
        return
    with extra("lab", "a progress bar"):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)

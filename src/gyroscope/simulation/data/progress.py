"""A download bar in the shape that pooch asks for, drawn by rich on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gyroscope._core.optional import extra

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def wants_bar(progress: bool) -> bool:
    """A bar is for people: only when asked for and when stderr is a terminal, never in a log file."""
    return progress and sys.stderr is not None and sys.stderr.isatty()


class DownloadBar:
    """pooch sets `total`, then calls `update`; at the end it calls `reset`, `update(total)` and `close`."""

    def __init__(self, title: str) -> None:
        self.total = 0
        self._title = title
        self._done = 0
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def update(self, count: int) -> None:
        """Advance; the bar shows up with the first byte, so that an unreachable mirror draws nothing."""
        progress, task = self._started()
        self._done += count
        shown = min(self._done, self.total) if self.total else self._done
        progress.update(task, completed=shown, total=self.total or None)

    def reset(self) -> None:
        """Back to zero, as pooch wants it before the closing update."""
        self._done = 0

    def close(self) -> None:
        """Leave the terminal as it was; safe to call twice, and needed when the download broke off."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _started(self) -> tuple[Progress, TaskID]:
        if self._progress is None or self._task is None:
            with extra("lab", "a progress bar"):
                from rich.console import Console
                from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._task = self._progress.add_task(self._title, total=self.total or None)
            self._progress.start()
        return self._progress, self._task

"""`events.csv`: what happened to the workers of a run, one line each. The parameter server and Flower write it."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gyroscope._core.foreign_text import shortened
from gyroscope.runs.run_dir import EVENTS, disk_errors

COLUMNS = ("time", "step", "event", "worker", "who", "detail")

JOINED, LOST, REJECTED, LATE, NOT_FINITE, SKIPPED = "joined", "lost", "rejected", "late", "not finite", "skipped"
REFUSED, QUARANTINED, RELEASED = "refused", "quarantined", "released"
STARTED, STOPPED, FINISHED = "started", "stopped", "finished"

_LONGEST = 300
_TLS = " at https://"
"""In the detail of the event `started`: the address at which a parameter server with keys waits for its workers."""


class EventLog:
    """Append events to a run directory, which must exist. Resuming does not cut the log back: the events did happen."""

    def __init__(self, directory: Path, listener: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.directory, self._listener = directory, listener
        self._path = directory / EVENTS

    def add(self, step: int, event: str, worker: int | None = None, detail: str = "", who: str = "") -> None:
        """Write one event; a reader of the file sees it at once.

        `worker` is the number of a row and of a column in workers.csv, `who` the process or node that has it now. `who`
        and `detail` may be a stranger's text, so both are made printable.
        """
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        number = "" if worker is None else worker
        with disk_errors(self.directory, step):
            new = not self._path.exists()
            with open(self._path, "a", encoding="utf-8", newline="") as file:
                table = csv.writer(file, lineterminator="\n")
                if new:
                    table.writerow(COLUMNS)
                row = (now, step, event, number, _cell(who), _cell(detail))
                table.writerow(row)
        if self._listener:
            self._listener({**dict(zip(COLUMNS, row, strict=True)), "worker": worker})


def served_with_keys(directory: Path) -> bool:
    """Return whether a parameter server with keys has ever waited for this run's workers."""
    path = directory / EVENTS
    if not path.is_file():
        return False
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        return any(row[2:3] == [STARTED] and _TLS in row[-1] for row in csv.reader(file))


def _cell(text: str) -> str:
    """Return a stranger's text as one printable line that no spreadsheet takes for a formula."""
    line = shortened(text, _LONGEST)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line

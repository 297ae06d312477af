"""What happened to the workers of a run, one line each: `events.csv`, written by the server and by Flower alike."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path

from gyroscope._core.sanitize import shortened
from gyroscope.runs.run_dir import EVENTS, disk_errors

COLUMNS = ("time", "step", "event", "worker", "who", "detail")

JOINED, LOST, REJECTED, LATE, NOT_FINITE, SKIPPED = "joined", "lost", "rejected", "late", "not finite", "skipped"
STARTED, STOPPED, FINISHED = "started", "stopped", "finished"

_LONGEST = 300


class Events:
    """A log that only grows: resuming does not cut it back, because what it tells did happen.

    Events before `write_to` are kept until then; later ones can be read at once. `step` is that of the events to come.
    """

    def __init__(self) -> None:
        self.step = 0
        self._kept: list[tuple[str, ...]] = []
        self._path: Path | None = None

    def write_to(self, directory: Path) -> None:
        self._path = directory / EVENTS
        self._write()

    def add(self, event: str, worker: int | None = None, detail: str = "", who: str = "") -> None:
        """worker: its number, that is, its row and its column in workers.csv. who: the process or node behind it."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        number = "" if worker is None else str(worker)
        # Both texts may be a stranger's.
        texts = (shortened(text, _LONGEST) for text in (who, detail))
        self._kept.append((now, str(self.step), event, number, *texts))
        if self._path:
            self._write()

    def _write(self) -> None:
        assert self._path
        with disk_errors(self._path.parent, self.step):
            new = not self._path.exists()
            with open(self._path, "a", encoding="utf-8", newline="") as file:
                table = csv.writer(file, lineterminator="\n")
                if new:
                    table.writerow(COLUMNS)
                table.writerows(self._kept)
        self._kept.clear()

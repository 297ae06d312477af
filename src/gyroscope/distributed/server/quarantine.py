"""Which workers are left out: by hand, or because the rule has had no use for their rows for long."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

FILE = "quarantine.txt"
"""In the run directory: the numbers of workers that somebody has left out by hand, one per line."""
_PROBE_AFTER = 10
"""A worker that the rule has left out takes part again, on probation, after so many times the rounds of the limit."""
_LONGEST = 16
"""The time is doubled with each time, up to so many times the first."""
_LOOK_SECONDS = 1.0


class Change(NamedTuple):
    """A worker was left out, or takes part again."""

    worker: int
    out: bool
    why: str


class Quarantine:
    """Workers whose rows are not given to the rule.

    Args:
        limit: How many rounds in a row a row may be of no use before its worker is left out; 0 for never.
        most: How many workers may be left out by that limit at most. Those by hand count, too.
        by_hand: The file that somebody may write while the run goes on; None for none.
    """

    def __init__(self, limit: int = 0, most: int = 0, by_hand: Path | None = None) -> None:
        self.limit, self.most, self.by_hand = limit, most, by_hand
        self.out: dict[int, int | None] = {}
        """The workers that are left out, each with the step from which it is probed; None by hand."""
        self._useless: dict[int, int] = {}
        self._times: dict[int, int] = {}
        self._looked = -_LOOK_SECONDS
        self._seen: tuple[int, int] | None = None

    def note(self, step: int, useless: Collection[int], present: Collection[int]) -> list[Change]:
        """Take in a round, and return who is left out from now on, and who takes part again.

        Args:
            step: The round.
            useless: Workers whose row was not finite, far off, or without weight.
            present: Workers that have sent a row. Nothing is concluded of others.
        """
        changes = self._read()
        if not self.limit:
            return changes
        for worker, until in list(self.out.items()):
            if until is not None and step >= until:
                del self.out[worker]
                self._useless[worker] = self.limit - max(1, self.limit // 4)  # probation is shorter
                changes.append(Change(worker, False, "takes part again, on probation"))
        for worker in present:
            if worker in self.out:
                continue
            self._useless[worker] = self._useless.get(worker, 0) + 1 if worker in useless else 0
            if self._useless[worker] >= self.limit and len(self.out) < self.most:
                times = self._times[worker] = min(2 * self._times.get(worker, 0) or 1, _LONGEST)
                self.out[worker] = step + 1 + _PROBE_AFTER * self.limit * times
                why = f"its rows were of no use in {self._useless[worker]} rounds; probed at step {self.out[worker]}"
                changes.append(Change(worker, True, why))
        return changes

    def _read(self) -> list[Change]:
        """Follow the file. One that cannot be read changes nothing."""
        now = time.monotonic()
        if self.by_hand is None or now - self._looked < _LOOK_SECONDS:
            return []
        self._looked = now
        try:
            status = self.by_hand.stat()
            seen = (status.st_mtime_ns, status.st_size)
            if seen == self._seen:
                return []
            wanted = read_numbers(self.by_hand)
        except FileNotFoundError:
            seen, wanted = None, set()
            if self._seen is None:
                return []
        except (OSError, ValueError):
            return []
        self._seen = seen
        before = {worker for worker, until in self.out.items() if until is None}
        for worker in before - wanted:
            del self.out[worker]
            self._useless.pop(worker, None)
        self.out.update(dict.fromkeys(wanted))
        changes = [Change(worker, False, "released by hand") for worker in sorted(before - wanted)]
        return changes + [Change(worker, True, "left out by hand") for worker in sorted(wanted - before)]


def read_numbers(path: Path) -> set[int]:
    """Return the workers that the file names, `3` or `worker-3` on a line.

    Raises:
        ValueError: A line names no worker.
        OSError: The file cannot be read.
    """
    numbers = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        if text := line.partition("#")[0].strip():
            numbers.add(number_of(text))
    return numbers


def number_of(text: str) -> int:
    """Return the number in `3` or `worker-3`; ValueError for anything else."""
    found = re.fullmatch(r"(?:worker-)?(\d{1,6})", text)
    if not found:
        raise ValueError(f"{text!r} is no worker: write its number, such as 3 or worker-3")
    return int(found[1])


def write_numbers(path: Path, numbers: Collection[int]) -> None:
    """Write the file that `read_numbers` reads."""
    heading = "# Workers that are left out of this run. The server reads this file again when it has changed.\n"
    path.write_text(heading + "".join(f"{number}\n" for number in sorted(numbers)), encoding="utf-8")

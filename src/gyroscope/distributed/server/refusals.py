"""Refusals, counted by reason; a flood of them is reported in a few lines."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Literal

from gyroscope.distributed.server.link_events import Refused

Reason = Literal[
    "certificate", "crowd", "handshake", "joins", "number", "protocol", "resources", "revoked", "silence", "taken",
    "unfinished",
]  # fmt: skip
"""Why somebody is refused, in a word; docs/deploy.md says what each means."""
_WINDOW_SECONDS = 60.0
_REPORTED = 5
"""Refusals for one reason that are reported one by one in a window."""


class Refusals:
    """Counts refusals by their reason, and reports the first ones of a minute and how many others there were."""

    def __init__(self, report: Callable[[Refused], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        """How many there were so far, by reason."""
        self._report, self._clock = report, clock
        self._here: collections.Counter[str] = collections.Counter()
        self._last: dict[str, str] = {}
        self._begun = clock()

    def add(self, reason: Reason, who: str, why: str, worker: int | None = None) -> None:
        """Count a refusal.

        Args:
            reason: Why, in a word.
            who: The peer's name or address.
            why: What happened, for people.
            worker: The number that it claimed.
        """
        self.summarise()
        self.counts[reason] += 1
        self._here[reason] += 1
        self._last[reason] = who
        if self._here[reason] <= _REPORTED:
            self._report(Refused(who, why, worker))

    def summarise(self, now: bool = False) -> None:
        """Report how many were counted only, once a window is over or the server ends."""
        if not now and self._clock() - self._begun < _WINDOW_SECONDS:
            return
        for reason, count in self._here.items():
            if count > _REPORTED:
                others = count - _REPORTED
                self._report(Refused(self._last[reason], f"{reason}: {others:,} more refused, this one last"))
        self._here.clear()
        self._begun = self._clock()

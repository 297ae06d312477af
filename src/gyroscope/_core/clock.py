"""Where the time of a run goes: a clock with named laps, and one that does nothing."""

from __future__ import annotations

import time

import torch

SECTIONS = ("data", "gradients", "momentum", "attack", "rule", "update", "measures", "evaluation", "record")
"""What a run spends its time on, in the order of a round."""


class Clock:
    """Ignores every lap: what a run has that nobody profiles."""

    def start(self) -> None:
        """From here on time counts."""

    def lap(self, section: str) -> None:
        """What was done since the last lap (or the start) belongs to this section."""


UNTIMED = Clock()


class Stopwatch(Clock):
    """Adds up the seconds of each section, and counts the rounds."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything up to now."""
        self.seconds = dict.fromkeys(SECTIONS, 0.0)
        self.rounds = 0
        self.start()

    def start(self) -> None:
        self._last = self._now()

    def lap(self, section: str) -> None:
        now = self._now()
        self.seconds[section] += now - self._last
        self._last = now
        self.rounds += section == "update"

    def _now(self) -> float:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()  # or the work of one section would be counted in another
        return time.perf_counter()

    def __str__(self) -> str:
        """A table for people: seconds, milliseconds per round, and a bar for the share of each section."""
        total, rounds = sum(self.seconds.values()), max(1, self.rounds)
        lines = [f"{'where the time went':<20}{'seconds':>9}{'ms/round':>10}{'share':>8}"]
        for section, seconds in self.seconds.items():
            share = seconds / total if total else 0.0
            figures = f"{seconds:>9.2f}{1e3 * seconds / rounds:>10.2f}{share:>8.1%}"
            lines.append(f"  {section:<18}{figures}  {'#' * round(30 * share)}".rstrip())
        lines.append(f"  {'all':<18}{total:>9.2f}{1e3 * total / rounds:>10.2f}")
        return "\n".join(lines)

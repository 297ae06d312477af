"""What `benchmarks.soak` notes, what it makes of it, and the figure and the paragraph of docs/reliability.md."""

from __future__ import annotations

import csv
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from benchmarks.pages import DOCS, markers
from gyroscope.report import figures

BEGIN_MINUTES, WINDOW_SECONDS = 5.0, 120.0
"""Growth counts from here on; levels are medians over the first and the last window after it."""
MOST_BYTES, MOST_SHARE, MOST_POINTS = 5e6, 0.02, 1.0
"""How much memory the server may gain (the larger of both), and how far the accuracy may be from the clean one."""


MOST_CALM = 120.0
"""How many seconds may go by in which nothing happens to a worker."""


class Sample(NamedTuple):
    """The server at one moment."""

    seconds: float
    memory: int
    """Resident bytes."""
    descriptors: int
    threads: int
    shared: int
    """Files in /dev/shm that it has mapped."""
    step: int = 0

    @classmethod
    def of(cls, process: int, seconds: float) -> Sample:
        """Look at a process."""
        folder = Path(f"/proc/{process}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        shared = {line.split()[-1] for line in (folder / "maps").read_text().splitlines() if "/dev/shm/" in line}
        return cls(
            seconds, 1024 * int(status["VmRSS"].split()[0]), len(os.listdir(folder / "fd")), int(status["Threads"]),
            len(shared),
        )  # fmt: skip


class Verdict(NamedTuple):
    """What came out, and whether it holds."""

    minutes: float
    rounds: int
    finished: bool
    troubles: dict[str, int]
    events: dict[str, int]
    accuracy: float
    clean_accuracy: float
    memory_mb: float
    """At the end."""
    growth_mb: float
    """By a straight line through the samples, from minute 5 (of a short run: after a third) to the end."""
    levels: dict[str, tuple[float, float]]
    """Medians of descriptors, threads and shared memory in the first and the last two minutes of that span in which
    there was trouble: afterwards all workers are linked, and each has a descriptor."""
    absent: tuple[int, ...] = ()
    """The workers that were not linked when the troubles were over: they should have come back."""
    longest_calm: float = 0.0
    """The most seconds in a row in which nothing happened to any worker: a soak without trouble shows nothing."""

    @classmethod
    def of(
        cls, samples: Sequence[Sample], minutes: float, seconds: float, finished: bool, rounds: int,
        troubles: Counter[str], events: Counter[str], accuracy: float, clean: float, absent: Sequence[int],
        calm: float, quiet: float,
    ) -> Verdict:  # fmt: skip
        """Judge a run whose troubles ended so many seconds after its start."""
        begin = 60 * min(BEGIN_MINUTES, minutes / 3)
        span = [sample for sample in samples if sample.seconds >= begin]
        times = numpy.array([sample.seconds for sample in span])
        slope = numpy.polyfit(times, [float(sample.memory) for sample in span], 1)[0]
        window = min(WINDOW_SECONDS, (quiet - times[0]) / 3)
        first = [sample for sample in span if sample.seconds <= times[0] + window]
        last = [sample for sample in span if quiet - window <= sample.seconds <= quiet]
        levels = {name: (_middle(first, name), _middle(last, name)) for name in ("descriptors", "threads", "shared")}
        growth = float(slope * (times[-1] - times[0]))
        return cls(
            seconds / 60, rounds, finished, dict(troubles), dict(events), accuracy, clean, span[-1].memory / 1e6,
            growth / 1e6, levels, tuple(absent), calm,
        )  # fmt: skip

    @property
    def holds(self) -> bool:
        most = max(MOST_BYTES / 1e6, MOST_SHARE * self.memory_mb)
        near = abs(self.accuracy - self.clean_accuracy) <= MOST_POINTS / 100
        steady = self.growth_mb < most and all(b <= a for a, b in self.levels.values())
        return self.finished and near and steady and not self.absent and self.longest_calm <= MOST_CALM


def _middle(samples: Sequence[Sample], name: str) -> float:
    return float(statistics.median(getattr(sample, name) for sample in samples))


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        for row in rows:
            table.writerow([f"{value:.1f}" if isinstance(value, float) else value for value in row])


def paragraph(verdict: Verdict) -> str:
    """Return the figures as a paragraph."""
    groups = {
        "workers killed and restarted": "killed",
        "stopped and continued": "stopped",
        "spells of lying": "lies",
        "visits of strangers": "stranger",
    }
    counts = {
        text: sum(n for kind, n in verdict.troubles.items() if kind.startswith(word)) for text, word in groups.items()
    }
    points = 100 * (verdict.accuracy - verdict.clean_accuracy)
    levels = ", ".join(f"{name} {a:g} and {b:g}" for name, (a, b) in verdict.levels.items())
    back = f"Workers {verdict.absent} DID NOT COME BACK" if verdict.absent else "All workers were back in the end"
    return (
        f"**{verdict.minutes:.0f} minutes, {verdict.rounds:,} rounds**: "
        f"{', '.join(f'{n:,} {text}' for text, n in counts.items())}. The run "
        f"{'finished' if verdict.finished else 'DID NOT FINISH'}, with an accuracy of {verdict.accuracy:.1%}; the same "
        f"rounds without trouble give {verdict.clean_accuracy:.1%} ({points:+.1f} points). The server's memory was "
        f"{verdict.memory_mb:,.0f} MB at the end, and a straight line through its samples after the start gains "
        f"{verdict.growth_mb:+.1f} MB. "
        f"{back}; at most {verdict.longest_calm:.0f} s went by in which nothing happened to any of them. In the first "
        f"and the last two minutes of that span with troubles it had (medians): {levels}. "
        f"{'All of this is within the limits.' if verdict.holds else 'NOT ALL OF THIS IS WITHIN THE LIMITS.'}"
    )


def draw(samples: Sequence[Sample], troubles: Sequence[tuple[float, str, int | None]], path: Path) -> None:
    """Draw the server's memory, descriptors and threads, and rounds over time, and when something went wrong."""
    figure, ((memory,), (numbers,), (rounds,)) = figures.new_figure(3, 1, share=False, size=(9.0, 7.0))
    minutes = [sample.seconds / 60 for sample in samples]
    memory.plot(minutes, [sample.memory / 1e6 for sample in samples], color="#0072B2", label="resident memory")
    memory.set_ylabel("MB")
    memory.set_ylim(bottom=0)
    numbers.plot(minutes, [sample.descriptors for sample in samples], color="#D55E00", label="descriptors")
    numbers.plot(minutes, [sample.threads for sample in samples], "--", color="#009E73", label="threads")
    numbers.plot(minutes, [sample.shared for sample in samples], ":", color="#000000", label="files in /dev/shm")
    numbers.set_ylim(bottom=-0.5)
    rounds.plot(minutes, [sample.step for sample in samples], color="#000000", label="rounds played")
    for place, (kind, colour) in enumerate(
        {"killed": "#D55E00", "stopped": "#0072B2", "lies": "#CC79A7", "stranger": "#8A6D00"}.items()
    ):
        at = [seconds / 60 for seconds, what, _ in troubles if what.startswith(kind)]
        top = max((sample.step for sample in samples), default=1)
        rounds.plot(at, [top * (0.02 + 0.05 * place)] * len(at), "|", color=colour, label=f"{kind} ({len(at):,})")
    rounds.set_xlabel("minutes")
    for axes in (memory, numbers, rounds):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figures.save_for_page(figure, path)


def update_page(verdict: Verdict) -> None:
    """Write the paragraph into docs/reliability.md."""
    text = f"![memory, descriptors, threads and rounds over time](reliability/soak.png)\n\n{paragraph(verdict)}"
    markers.replace(DOCS / "reliability.md", {"soak": text})

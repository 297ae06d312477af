"""A large grid in a few lines: which values each setting takes, and in how many runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gyroscope.runs.config import Config


def overview(configs: Sequence[Config]) -> list[str]:
    """A line for each setting that differs: its values, in the order of the grid, each with its number of runs."""
    settings = [config.resolve().experiment() for config in configs]
    lines = []
    for key in settings[0] if settings else ():
        counts = Counter(str(values[key]) for values in settings)
        if len(counts) > 1:
            found = ", ".join(f"{value} ({count:,})" for value, count in counts.items())
            lines.append(f"{key}, {len(counts)} values: {found}")
    return lines

"""Metrics in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

Samples = Iterable[tuple[Mapping[str, str], float]]
"""Labels and values."""


def metric(name: str, kind: Literal["counter", "gauge"], help: str, samples: Samples) -> list[str]:
    """Return the lines of a metric; none where it has no samples.

    Args:
        name: The name, with its unit; a counter's ends in `_total`.
        kind: What it is.
        help: One sentence for people.
        samples: A value for each set of labels.
    """
    lines = [f"{name}{_labels(labels)} {number(value)}" for labels, value in samples]
    return [*_heading(name, kind, help), *lines] if lines else []


class Histogram:
    """How many observations there were, their sum, and how many were at most each of some bounds.

    Args:
        bounds: The bounds, in ascending order, without infinity.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    @property
    def count(self) -> int:
        """Return how many observations there were."""
        return sum(self._counts)

    def observe(self, value: float) -> None:
        """Take in an observation."""
        self._counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, help: str) -> list[str]:
        """Return the lines of this metric."""
        counts = itertools.accumulate(self._counts)
        buckets = [
            f'{name}_bucket{{le="{number(bound)}"}} {count}'
            for bound, count in zip((*self.bounds, math.inf), counts, strict=True)
        ]
        return [
            *_heading(name, "histogram", help),
            *buckets,
            f"{name}_sum {number(self.sum)}",
            f"{name}_count {self.count}",
        ]


def number(value: float) -> str:
    """Return a value with all of its digits: a counter that is rounded stands still, and then jumps."""
    if isinstance(value, int):
        return str(int(value))  # True is 1
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")


def _heading(name: str, kind: str, help: str) -> list[str]:
    text = help.replace("\\", "\\\\").replace("\n", "\\n")
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _labels(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escaped(text: str) -> str:
    """Return a label's text: a worker's name is a stranger's."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""Time several functions in turn and compare them pairwise, so that load on the machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

Timed = Callable[[], object]
OnStart = Callable[[str], None]
"""Called with the name of what is timed next."""


class Ratio(NamedTuple):
    """How many times as long one function takes as another: median and quartiles over the passes."""

    middle: float
    low: float
    high: float

    def inverse(self) -> Ratio:
        return Ratio(1 / self.middle, 1 / self.high, 1 / self.low)


class Passes(NamedTuple):
    """Seconds of each function in each pass."""

    seconds: dict[str, list[float]]

    def middle(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, yardstick: str, factor: float = 1.0) -> Ratio:
        """Return the ratio of two functions, pass by pass, times a factor."""
        pairs = zip(self.seconds[name], self.seconds[yardstick], strict=True)
        return spread([factor * ours / theirs for ours, theirs in pairs])


def spread(values: list[float]) -> Ratio:
    """Return the median and the quartiles."""
    if len(values) < 2:
        return Ratio(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Ratio(middle, low, high)


def in_turn(
    things: Mapping[str, Timed],
    budget: float,
    least: int = 5,
    most: int = 40,
    on_start: OnStart | None = None,
) -> Passes:
    """Make as many passes over all functions as fit into a budget of seconds, after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in things}
    passes, done, begin = most, -1, time.perf_counter()
    while done < passes:
        for name, thing in things.items():
            if on_start is not None:
                on_start(name)
            start = time.perf_counter()
            thing()
            if done >= 0:
                seconds[name].append(time.perf_counter() - start)
        done += 1
        if done == 1:
            one = sum(values[0] for values in seconds.values())
            passes = max(least, min(most, int((budget - (time.perf_counter() - begin)) / max(one, 1e-9))))
    return Passes(seconds)

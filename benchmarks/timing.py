"""Time several things in turn, and compare them pairwise: what disturbs one disturbs the other, too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

Timed = Callable[[], object]
Told = Callable[[str], None]
"""Is told what is being timed."""


class Ratio(NamedTuple):
    """How many times as long one thing takes as another: the middle of all passes, and the middle half of them."""

    middle: float
    low: float
    high: float

    def inverse(self) -> Ratio:
        return Ratio(1 / self.middle, 1 / self.high, 1 / self.low)


class Passes(NamedTuple):
    """Seconds of each thing in each pass."""

    seconds: dict[str, list[float]]

    def middle(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, yardstick: str, factor: float = 1.0) -> Ratio:
        """Of one thing to another, pass by pass, times a factor."""
        pairs = zip(self.seconds[name], self.seconds[yardstick], strict=True)
        return spread([factor * ours / theirs for ours, theirs in pairs])


def spread(values: list[float]) -> Ratio:
    """The median and the quartiles."""
    if len(values) < 2:
        return Ratio(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Ratio(middle, low, high)


def in_turn(
    things: Mapping[str, Timed],
    budget: float,
    least: int = 5,
    most: int = 40,
    told: Told | None = None,
) -> Passes:
    """As many passes over all things as fit into a budget of seconds. A first one warms up and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in things}
    passes, done, begin = most, -1, time.perf_counter()
    while done < passes:
        for name, thing in things.items():
            if told is not None:
                told(name)
            start = time.perf_counter()
            thing()
            if done >= 0:
                seconds[name].append(time.perf_counter() - start)
        done += 1
        if done == 1:
            one = sum(values[0] for values in seconds.values())
            passes = max(least, min(most, int((budget - (time.perf_counter() - begin)) / max(one, 1e-9))))
    return Passes(seconds)

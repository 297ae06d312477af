"""Measure how the time of a rule grows with the number of workers and with the number of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from benchmarks.results import Line
from benchmarks.timing import OnStart, Passes, Timed, in_turn, spread
from gyroscope import rules

WORKERS = (7, 15, 25, 51, 101, 255)
COLUMNS = 100_000
PARAMETERS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
ROWS = 25

PROMISES: dict[str, tuple[str, Callable[[int], float]]] = {
    "median": ("n log^2 n", lambda n: n * math.log2(n) ** 2),
    "krum": ("n^2", lambda n: float(n) ** 2),
}
"""The time of these rules grows at most like this function of n."""


def in_workers(budget: float, on_start: OnStart | None = None) -> list[Line]:
    """Return nanoseconds per coordinate for each n, and the measured growth divided by the promised one."""
    things = {f"{name}, n = {n}": thing for n in WORKERS for name, thing in _rules(n, COLUMNS).items()}
    passes = in_turn(things, budget, on_start=on_start)
    lines = []
    for name in PROMISES:
        for n in WORKERS:
            key = f"{name}, n = {n}"
            nanoseconds = spread([1e9 * value / COLUMNS for value in passes.seconds[key]])
            lines.append(Line("growth in n", key, n, COLUMNS, nanoseconds.middle, "ns/column", *nanoseconds[1:]))
    for name in PROMISES:
        lines += [_grown(passes, name, start, WORKERS[-1]) for start in (7, 25)]
    return lines


def _grown(passes: Passes, name: str, start: int, end: int) -> Line:
    words, promise = PROMISES[name]
    ratio = passes.ratio(f"{name}, n = {end}", f"{name}, n = {start}", promise(start) / promise(end))
    what = f"{name}: growth from n = {start} to {end} / that of {words}"
    return Line("growth in n", what, None, None, ratio.middle, "x", ratio.low, ratio.high, limit=1.0)


def in_parameters(budget: float, on_start: OnStart | None = None) -> list[Line]:
    """Return milliseconds for each d."""
    lines = []
    for d in PARAMETERS:
        rows = torch.randn(ROWS, d)
        things: dict[str, Timed] = {"mean": lambda rows=rows: rows.mean(dim=0)}  # type: ignore[misc]
        for name, rule in rules.RULES.items():
            things[name] = lambda rule=rule, rows=rows: rule()(rows, 5, rules.RuleContext(trusted=rows[0]))  # type: ignore[misc]
        passes = in_turn(things, budget / len(PARAMETERS), on_start=on_start)
        for name in ("mean", *(name for name in rules.RULES if name != "average")):
            milliseconds = spread([1e3 * value for value in passes.seconds[name]])
            lines.append(Line("growth in d", f"{name}, d = {d}", ROWS, d, milliseconds.middle, "ms", *milliseconds[1:]))
    return lines


def _rules(n: int, d: int) -> dict[str, Timed]:
    rows = torch.randn(n, d)
    f = (n - 3) // 4
    return {name: (lambda rule=rules.RULES[name]: rule()(rows, f)) for name in PROMISES}  # type: ignore[misc]

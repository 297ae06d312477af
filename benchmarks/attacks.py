"""Measure each attack beside the least that it needs, and those that search beside the rule that they know."""

from __future__ import annotations

import functools

from benchmarks import floors, rules
from benchmarks.results import Line, ratio_line
from benchmarks.timing import OnStart, Passes, Timed, in_turn
from gyroscope import attacks
from gyroscope._linalg import memory
from gyroscope.rules import parse

PLAIN = ("little", "empire", "min-max", "min-sum", "mimic", "sign-flip", "byzmean", "zero", "nan", "inf")
"""They read the honest rows once, and write their own."""
SEARCHES = ("little:factor=auto", "empire:factor=auto")
BOUNDED = ("min-max", "min-sum")
"""They read the distances between honest rows, as the rule does."""
LIMIT = 3.0
"""A search costs at most this many times the configured rule, and so does an attack that reads distances."""


def measure(shape: tuple[int, int], budget: float, on_start: OnStart | None = None) -> list[Line]:
    """Measure every attack at one size, with krum as the rule that it knows."""
    n = shape[0]
    f = rules.BYZANTINE[n]
    memory.keep_freed_memory()
    rows, plain = rules.drawn(shape), rules.far()
    honest = rows[: n - f]
    things: dict[str, Timed] = {floors.READ: lambda: plain.sum(), "krum": lambda: parse("krum")(rows, f)}
    for name in (*PLAIN, *SEARCHES):
        things[name] = functools.partial(attacks.parse(name), honest, f, rule="krum")
    passes = in_turn(things, budget, on_start=on_start)
    lines = []
    for name in PLAIN:
        least = [seconds * shape[0] * shape[1] / rules.FAR for seconds in passes.seconds[floors.READ]]
        lines.append(_line(Passes({name: passes.seconds[name], "its floor": least}), name, "its floor", shape, None))
    return lines + [_line(passes, name, "krum", shape, LIMIT) for name in (*BOUNDED, *SEARCHES)]


def _line(passes: Passes, name: str, other: str, shape: tuple[int, int], limit: float | None) -> Line:
    times = (passes.middle(name), passes.middle(other))
    n, d = shape
    return ratio_line("attacks", f"{name} / {other}", passes.ratio(name, other), n=n, d=d, times=times, limit=limit)

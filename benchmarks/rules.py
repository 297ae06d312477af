"""Measure each rule at the paper's two sizes, beside torch's operations and other libraries' rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import floors, other_libraries
from benchmarks.results import Line, ratio_line
from benchmarks.timing import OnStart, Passes, Timed, in_turn
from gyroscope import rules
from gyroscope._linalg import memory
from gyroscope._linalg.distances import squared_distances

SMALL, LARGE = (51, 79_510), (25, 1_310_922)
"""Workers and parameters of the paper's two tasks."""
BYZANTINE = {51: 12, 25: 5}

MEAN, MEDIAN, GRAM = "torch.mean(dim=0)", "torch.median(dim=0)", "rows @ rows.T"

LIMITS = {
    (LARGE, "median", MEAN): 2.5,
    (SMALL, "median", MEDIAN): 1 / 15,
    (SMALL, "median", "byzfl Median"): 1 / 60,
    (SMALL, "krum", GRAM): 2.5,
    (LARGE, "krum", GRAM): 2.5,
    (SMALL, "krum", "byzfl MultiKrum"): 1 / 3,
    (LARGE, "krum", "byzfl MultiKrum"): 1 / 10,
    (LARGE, "bulyan", "krum"): 3.0,
}
"""The promises: the first takes at most this many times as long as the second."""

MOST_WORKERS = {"smea": 25}
"""The largest n of rules that search among subsets: random rows are their worst case."""

FAR = LARGE[0] * LARGE[1]
"""Values of the matrix whose plain read is the measure of all passes."""

MORE = (
    "smea:limit=1",
    "flame:linkage=ball",
    "dnc:robust=true",
    "nnm+krum",
    "nnm+bulyan",
    "nnm+mda",
    "nnm+caf",
)
"""Repaired forms, compositions, and smea without its search among subsets, besides the rules themselves."""

COMPOSED = ("nnm+median", "nnm+trimmed-mean")
"""Compositions that are listed with the rules: nobody promises anything of them."""

SIBLINGS = {
    "median": (MEDIAN, "byzfl Median"),
    "krum": (GRAM, "byzfl MultiKrum", "torchjd Krum"),
    "bulyan": ("krum",),
}
"""What each rule is compared with besides the mean."""


def measure(shape: tuple[int, int], budget: float, on_start: OnStart | None = None) -> list[Line]:
    """Measure every rule at one size."""
    n = shape[0]
    memory.keep_freed_memory()  # as a run and a server do
    rows = drawn(shape)
    passes = in_turn(things(rows, BYZANTINE[n]), budget, on_start=on_start)
    lines = [_line(passes, name, MEAN, shape) for name in (*rules.RULES, *COMPOSED) if name in passes.seconds]
    for name, others in SIBLINGS.items():
        lines += [_line(passes, name, other, shape) for other in others if other in passes.seconds]
    lines += [line for name in passes.seconds if (line := _beside_its_floor(passes, name, shape))]
    theirs = [name for name in other_libraries.rules(n, BYZANTINE[n]) if name in passes.seconds]
    return lines + [_line(passes, name, MEAN, shape) for name in theirs]


def drawn(shape: tuple[int, int]) -> Tensor:
    """Return random rows, in memory as a run and a server allocate it."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(shape[0]))
    return memory.table(*shape, like=drawn).copy_(drawn)


def far() -> Tensor:
    """Return the matrix whose plain read is the measure of all passes, in memory like that of the rows."""
    return memory.prefer_large_pages(torch.empty(FAR)).fill_(1.0)


def things(rows: Tensor, f: int) -> dict[str, Timed]:
    """Return what is measured, by name."""
    n = rows.shape[0]
    plain = far()
    found: dict[str, Timed] = {
        MEAN: lambda: rows.mean(dim=0),
        MEDIAN: lambda: rows.median(dim=0),
        GRAM: lambda: rows @ rows.T,
        floors.READ: lambda: plain.sum(),
        "a plain read of the rows": lambda: rows.sum(),
        floors.TABLE: lambda: squared_distances(rows),
    }
    for name, rule in rules.RULES.items():
        if rule().min_workers(f) <= n <= MOST_WORKERS.get(name, n):
            found[name] = _call(rule(), rows, f, rules.RuleContext(trusted=rows[0]))
    for name in (*MORE, *COMPOSED):
        if rules.parse(name).min_workers(f) <= n:
            found[name] = _call(rules.parse(name), rows, f)
    for name, stage in rules.PREAGGREGATIONS.items():
        found[name] = _call(stage(), rows, f)
    for name, other in other_libraries.rules(n, f).items():
        found[name] = _call(other, rows)
    return found


def _call(function: Callable[..., Any], *arguments: Any) -> Timed:
    return lambda: function(*arguments)


def _line(passes: Passes, name: str, yardstick: str, shape: tuple[int, int]) -> Line:
    times = (passes.middle(name), passes.middle(yardstick))
    limit = LIMITS.get((shape, name, yardstick))
    n, d = shape
    return ratio_line(
        "rules", f"{name} / {yardstick}", passes.ratio(name, yardstick), n=n, d=d, times=times, limit=limit
    )


def _beside_its_floor(passes: Passes, name: str, shape: tuple[int, int]) -> Line | None:
    """Return how many times the least that its definition needs something takes; None where that is not known."""
    floor = floors.of(name, shape[1])
    if floor is None:
        return None
    part = shape[0] * shape[1] / FAR
    reads = [seconds * part for seconds in passes.seconds[floors.READ]]
    pairs = list(zip(reads, passes.seconds[floors.TABLE], strict=True))
    least = [floor.seconds(read, table) for read, table in pairs]
    limit, against = floors.limit(name), "its floor"
    if floors.by_table(name):
        limit, against = 1.0, f"1.5 {floors.TABLE} + its passes"
        least = [floor._replace(tables=1.5).seconds(read, table) for read, table in pairs]
    both = Passes({name: passes.seconds[name], against: least})
    times = (both.middle(name), both.middle(against))
    n, d = shape
    return ratio_line("floors", f"{name} / {against}", both.ratio(name, against), n=n, d=d, times=times, limit=limit)

"""How much each worker counts, where they hold unequal amounts of data: whole numbers of copies of its row.

A rule that depends on the rows only as a multiset, and in which two copies of a row mean that it counts twice, gets its
weighted form by being given copies: the average, the median and the trimmed mean of each coordinate, the geometric
median. What the rule guarantees holds with the copies of the f workers that count most as its number of Byzantine rows.
In a rule that looks at a row's neighbours, copies would vouch for one another; such rules take no weights.

An adversary would claim much data. So nobody counts more than `CAP` times the median worker, which fewer than half of
the workers cannot move beyond what honest ones hold; and nobody counts less than 1 / `GRAIN` of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from gyroscope import rules
from gyroscope._core.errors import ConfigError, InfeasibleError

EQUAL, SIZES = "equal", "sizes"
CAP = 3
GRAIN = 2
"""The copies of the median worker: weights are multiples of one half of its."""
RULES = ("average", "median", "trimmed-mean", "geometric-median")


def check(text: str, rule: str, workers: int, absent: str) -> None:
    """Raise a ConfigError where these weights, or weights with this rule, do not exist."""
    if text == EQUAL:
        return
    if text != SIZES:
        numbers(text, workers)
    name = rules.parse(rule).name
    if name not in RULES:
        raise ConfigError(
            f"the rule {name} has no form with weights: use worker_weights = equal, or one of {', '.join(RULES)}"
        )
    if absent == "left-out":
        raise ConfigError(
            "worker_weights have no form with absent = left-out, where each round has another sum of weights: use "
            "absent = momentum, or worker_weights = equal"
        )


def numbers(text: str, workers: int) -> list[float]:
    """Return the numbers that a text such as `2,1,1` holds, one for each worker."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != workers or not all(0 < value < math.inf for value in found):
        raise ConfigError(
            f"worker_weights must be equal, sizes, or a positive number for each of the {workers} workers, separated "
            f"by commas, got {text!r}"
        )
    return found


def of(text: str, sizes: Sequence[int] | None, workers: int) -> tuple[int, ...] | None:
    """Return how many copies of each worker's row the rule is given; None for one of each.

    Args:
        text: `equal`, `sizes`, or a number for each worker.
        sizes: how many samples each worker holds; None where all hold all.
        workers: n.
    """
    if text == EQUAL:
        return None
    if text == SIZES and sizes is None:
        raise ConfigError(
            "worker_weights = sizes is for workers with samples of their own, and here all hold all: set shards, or "
            "give a number for each worker"
        )
    found = copies(sizes if text == SIZES and sizes is not None else numbers(text, workers))
    return None if set(found) == {1} else found


def copies(weights: Sequence[float]) -> tuple[int, ...]:
    """Return each weight as a number of copies, `GRAIN` for the (lower) median weight, from 1 to `CAP` times that."""
    middle = statistics.median_low(weights)
    found = [max(1, round(GRAIN * min(weight / middle, CAP))) for weight in weights]
    common = math.gcd(*found)
    return tuple(count // common for count in found)


def byzantine(found: Sequence[int], f: int) -> int:
    """Return how many copies f workers have at most."""
    return sum(sorted(found, reverse=True)[:f])


def check_feasible(found: Sequence[int], rule: rules.Rule, f: int) -> None:
    """Raise an InfeasibleError where the f workers that count most count for more than the rule tolerates."""
    n, most = sum(found), byzantine(found, f)
    if rule.resilient and rule.min_workers(most) > n:
        raise InfeasibleError(
            f"the {f} workers with the largest weights have {most} of {n} copies, and the rule {rule.name} needs "
            f"{rule.min_workers(most)} copies to tolerate so many: lower declared_byzantine, or use worker_weights = "
            "equal"
        )

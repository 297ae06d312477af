"""Which comparisons put n values in order, or find one of them: plans that do not depend on the values.

A plan works on wires, one per row, and has three stages:

1. leaves: runs of at most LEAF neighbouring wires, each sorted while it fits in the processor's registers;
2. comparators: pairs (low, high) that merge the sorted runs, two at a time (Batcher's odd-even merge). Merging moves
   no value just to have it in its place: `order` says on which wire each rank ends up;
3. for a selection, the last merge is not done. The value of rank k in the union of two sorted runs a and b is the
   least of max(a[i], b[k-1-i]) over all i, which costs n operations, where the merge costs n log n.

Comparators that no wanted rank depends on are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

LEAF = 16
"""Rows sorted at once in registers: a vector processor has 16 or 32 of them."""

Comparator = tuple[int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A network as the arrays that the compiled kernels walk through."""

    leaves: NDArray[np.int64]
    """(leaves, 2): first wire and number of wires."""
    comparators: NDArray[np.int64]
    """(comparators, 2): the wire that gets the smaller value, the wire that gets the larger."""
    order: NDArray[np.int64]
    """The wire of each rank (empty for a selection)."""
    candidates: NDArray[np.int64]
    """(candidates, 2): a selected value is the least of its pairs' larger values (empty for a sort)."""
    bounds: NDArray[np.int64]
    """Value i is selected from the candidates bounds[i], ..., bounds[i + 1] - 1."""


@functools.lru_cache(maxsize=256)
def sorting(n: int, first: int, last: int) -> Plan:
    """Sort n wires such that the ranks first, ..., last - 1 are right."""
    leaves, runs = _leaves(n, 1)
    comparators: list[Comparator] = []
    order = _merge_all(runs, comparators)
    return _plan(leaves, _needed(comparators, set(order[first:last])), order, [], [])


@functools.lru_cache(maxsize=256)
def selection(n: int, ranks: tuple[int, ...]) -> Plan:
    """Find the values of some ranks (from 0) among n wires."""
    leaves, runs = _leaves(n, 2)  # a selection crosses two runs
    comparators: list[Comparator] = []
    half = (len(runs) + 1) // 2
    left = _merge_all(runs[:half], comparators)
    right = _merge_all(runs[half:], comparators)
    candidates: list[Comparator] = []
    bounds = [0]
    for rank in ranks:
        for taken in range(max(0, rank + 1 - len(right)), min(len(left), rank + 1) + 1):
            # If the rank + 1 smallest are `taken` of the left run and the others of the right, the last is at an end.
            ends = [run[count - 1] for run, count in ((left, taken), (right, rank + 1 - taken)) if count > 0]
            candidates.append((ends[0], ends[-1]))
        bounds.append(len(candidates))
    wanted = {wire for pair in candidates for wire in pair}
    return _plan(leaves, _needed(comparators, wanted), [], candidates, bounds)


@functools.cache
def small_sort(size: int) -> tuple[Comparator, ...]:
    """Comparators that sort `size` wires in place: wire i ends up with rank i."""
    comparators: list[Comparator] = []
    _exchange_sort(list(range(size)), comparators)
    return tuple(comparators)


def _exchange_sort(wires: Sequence[int], comparators: list[Comparator]) -> None:
    """Batcher's merge exchange (Knuth, volume 3, algorithm 5.2.2M): sorts any number of wires in place."""
    n = len(wires)
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, distance = top, 0, p
        while True:
            comparators += [(wires[i], wires[i + distance]) for i in range(n - distance) if i & p == r]
            if q == p:
                break
            distance, q, r = q - p, q // 2, p
        p //= 2


def _leaves(n: int, least: int) -> tuple[list[Comparator], list[list[int]]]:
    """n wires in runs of nearly the same length: the fewest, but `least` of them where n allows."""
    count = max(-(-n // LEAF), min(n, least))
    bounds = [n * i // count for i in range(count + 1)]
    spans = list(itertools.pairwise(bounds))
    return [(start, end - start) for start, end in spans], [list(range(start, end)) for start, end in spans]


def _merge_all(runs: list[list[int]], comparators: list[Comparator]) -> list[int]:
    """Merge sorted runs as a balanced tree."""
    if not runs:
        return []
    if len(runs) == 1:
        return runs[0]
    half = (len(runs) + 1) // 2
    return _merge(_merge_all(runs[:half], comparators), _merge_all(runs[half:], comparators), comparators)


def _merge(left: list[int], right: list[int], comparators: list[Comparator]) -> list[int]:
    """Batcher's odd-even merge of two sorted runs of any lengths; returns the wires in order of rank."""
    if not left or not right:
        return left or right
    if len(left) == len(right) == 1:
        comparators.append((left[0], right[0]))
        return [left[0], right[0]]
    even = _merge(left[::2], right[::2], comparators)
    odd = _merge(left[1::2], right[1::2], comparators)
    order = [even[0]]
    for low, high in zip(odd, even[1:], strict=False):
        comparators.append((low, high))
        order += [low, high]
    paired = (len(order) - 1) // 2
    return order + odd[paired:] + even[1 + paired :]


def _needed(comparators: list[Comparator], wanted: Collection[int]) -> list[Comparator]:
    """The comparators on which the values of the wanted wires depend."""
    live = set(wanted)
    kept = []
    for low, high in reversed(comparators):
        if low in live or high in live:
            live |= {low, high}
            kept.append((low, high))
    return kept[::-1]


def _plan(
    leaves: list[Comparator],
    comparators: list[Comparator],
    order: list[int],
    candidates: list[Comparator],
    bounds: list[int],
) -> Plan:
    def whole(values: Sequence[int]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64)

    def pairs(values: Sequence[Comparator]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64).reshape(-1, 2)

    return Plan(pairs(leaves), pairs(comparators), whole(order), pairs(candidates), whole(bounds))

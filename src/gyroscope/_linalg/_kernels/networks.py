"""Which comparisons put n values in order, or find one of them: plans that do not depend on the values.

A plan works on wires, one per row, and has three stages:

1. leaves: runs of at most LEAF neighbouring wires, each sorted while it fits in the processor's registers;
2. merges of the sorted runs, two at a time (Batcher's odd-even merge). What is too long for the registers is taken
   apart: the merge of every other wire, that of the wires between, and single comparators, which are merges of one wire
   with another. Merging moves no value just to have it in its place: `order` says on which wire each rank ends up;
3. for a selection, the last merge is not done. The value of rank k in the union of two sorted runs a and b is the
   least of max(a[i], b[k-1-i]) over all i, which costs n operations, where the merge costs n log n.

Merges that no wanted rank depends on are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

LEAF = 16
"""Rows sorted at once in registers: a vector processor has 16 or 32 of them."""
RUN = LEAF // 2
"""The longest sorted runs, two of which are merged in registers."""

Comparator = tuple[int, int]
Merge = tuple[Sequence[int], Sequence[int]]
"""The wires of two sorted runs, in order."""


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A network as the arrays that the compiled kernels walk through."""

    leaves: NDArray[np.int64]
    """(leaves, 2): first wire and number of wires."""
    merges: NDArray[np.int64]
    """(merges, 3): where in `wires` it begins, and how long the two runs are: at most RUN each."""
    wires: NDArray[np.int64]
    """The wires of the first run of the first merge in order, then of its second run, and so on."""
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
    merges: list[Merge] = []
    order = _merge_all(runs, merges)
    return _plan(leaves, _needed(merges, set(order[first:last])), order, [], [])


@functools.lru_cache(maxsize=256)
def selection(n: int, ranks: tuple[int, ...]) -> Plan:
    """Find the values of some ranks (from 0) among n wires."""
    leaves, runs = _leaves(n, 2)  # a selection crosses two runs
    merges: list[Merge] = []
    half = (len(runs) + 1) // 2
    left = _merge_all(runs[:half], merges)
    right = _merge_all(runs[half:], merges)
    candidates: list[Comparator] = []
    bounds = [0]
    for rank in ranks:
        for taken in range(max(0, rank + 1 - len(right)), min(len(left), rank + 1) + 1):
            # If the rank + 1 smallest are `taken` of the left run and the others of the right, the last is at an end.
            ends = [run[count - 1] for run, count in ((left, taken), (right, rank + 1 - taken)) if count > 0]
            candidates.append((ends[0], ends[-1]))
        bounds.append(len(candidates))
    wanted = {wire for pair in candidates for wire in pair}
    return _plan(leaves, _needed(merges, wanted), [], candidates, bounds)


_SHORT = (
    # 13 wires, 45 comparators
    "0c 1a 29 37 5b 68 16 23 4b 79 8a 04 12 36 78 9a bc 46 59 8b ac 05 38 47 6b 9a 01 25 69 78 ab 13 24 56 9a 12 "
    "34 57 68 23 45 67 89 34 56 ",
    # 16 wires, 60 comparators (Green 1969)
    "01 23 45 67 89 ab cd ef 02 13 46 57 8a 9b ce df 04 15 26 37 8c 9d ae bf 08 19 2a 3b 4c 5d 6e 7f 5a 69 3c de "
    "48 7b 12 14 7d 28 be 24 56 9a bd 38 7c 68 ac 35 79 34 56 78 9a bc 67 89 ",
)
"""Sorting networks shorter than Batcher's, the shortest known: two wires in hexadecimal digits per comparator."""


@functools.cache
def small_sort(size: int) -> tuple[Comparator, ...]:
    """Comparators that sort `size` wires in place: wire i ends up with rank i."""
    comparators: list[Comparator] = []
    _exchange_sort(list(range(size)), comparators)
    found = [comparators]
    for text in _SHORT:
        network = [(int(pair[0], 16), int(pair[1], 16)) for pair in text.split()]
        if size <= 1 + max(high for _, high in network):
            # Wires that nobody uses hold +inf, so to say: they lie at the end, and a comparator leaves it there.
            found.append([(low, high) for low, high in network if high < size])
    shortest = min(found, key=len)
    return tuple(shortest)


@functools.cache
def small_merge(left: int, right: int) -> tuple[tuple[Comparator, ...], tuple[int, ...]]:
    """Comparators that merge the sorted wires 0, ..., left - 1 with as many as `right` after them; each rank's wire."""
    comparators: list[Comparator] = []
    order = _odd_even(list(range(left)), list(range(left, left + right)), comparators)
    return tuple(comparators), tuple(order)


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


def _merge_all(runs: list[list[int]], merges: list[Merge]) -> list[int]:
    """Merge sorted runs as a balanced tree; returns the wires in order of rank."""
    if not runs:
        return []
    if len(runs) == 1:
        return runs[0]
    half = (len(runs) + 1) // 2
    return _merge(_merge_all(runs[:half], merges), _merge_all(runs[half:], merges), merges)


def _merge(left: list[int], right: list[int], merges: list[Merge]) -> list[int]:
    """Merge two sorted runs of any lengths by merges that fit into the registers."""
    if not left or not right:
        return left or right
    if max(len(left), len(right)) <= RUN:
        merges.append((left, right))
        wires = left + right
        return [wires[place] for place in small_merge(len(left), len(right))[1]]
    even, odd = _merge(left[::2], right[::2], merges), _merge(left[1::2], right[1::2], merges)
    return _interleave(even, odd, lambda low, high: merges.append(([low], [high])))


def _odd_even(left: list[int], right: list[int], comparators: list[Comparator]) -> list[int]:
    """Batcher's odd-even merge of two sorted runs, comparator by comparator."""
    if not left or not right:
        return left or right
    if len(left) == len(right) == 1:
        comparators.append((left[0], right[0]))
        return [left[0], right[0]]
    even, odd = _odd_even(left[::2], right[::2], comparators), _odd_even(left[1::2], right[1::2], comparators)
    return _interleave(even, odd, lambda low, high: comparators.append((low, high)))


def _interleave(even: list[int], odd: list[int], compare: Callable[[int, int], None]) -> list[int]:
    """The last step of an odd-even merge: of the merged odd places and the merged even ones but the first, each two."""
    order = [even[0]]
    for low, high in zip(odd, even[1:], strict=False):
        compare(low, high)
        order += [low, high]
    paired = (len(order) - 1) // 2
    return order + odd[paired:] + even[1 + paired :]


def _needed(merges: list[Merge], wanted: Collection[int]) -> list[Merge]:
    """The merges on which the values of the wanted wires depend."""
    live = set(wanted)
    kept = []
    for left, right in reversed(merges):
        if not live.isdisjoint(left) or not live.isdisjoint(right):
            live.update(left, right)
            kept.append((left, right))
    return kept[::-1]


def _plan(
    leaves: list[Comparator],
    merges: list[Merge],
    order: list[int],
    candidates: list[Comparator],
    bounds: list[int],
) -> Plan:
    def whole(values: Sequence[int]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64)

    def pairs(values: Sequence[Comparator]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64).reshape(-1, 2)

    wires = [[*left, *right] for left, right in merges]
    starts = itertools.accumulate((len(each) for each in wires), initial=0)
    sizes = [(start, len(left), len(right)) for start, (left, right) in zip(starts, merges, strict=False)]
    return Plan(
        pairs(leaves), np.array(sizes, dtype=np.int64).reshape(-1, 3), whole([wire for each in wires for wire in each]),
        whole(order), pairs(candidates), whole(bounds),
    )  # fmt: skip

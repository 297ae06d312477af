"""Comparator networks that sort n values or select some of them, by comparisons that do not depend on the values.

A network works on wires, one per row, in three stages:

1. leaves: runs of at most LEAF neighbouring wires, each sorted in registers;
2. merges of two sorted runs each (Batcher's odd-even merge). A merge that does not fit in the registers is split into
   the merge of every other wire, the merge of the wires between, and single comparators, which are merges of one wire
   with another. A merge does not move values to their final wires: `order` tells on which wire each rank ends up;
3. for a selection, a search instead of the last merge. The value of rank k in the union of two sorted runs a and b is
   the least of max(a[i], b[k-1-i]) over all i, which costs n operations, where the merge costs n log n.

Merges that no requested rank depends on are left out.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAF = 26
"""Rows sorted at once in registers: CPUs have 32 vector registers, or 16, where some values wait in the cache. Half of
the paper's 51 rows."""
RUN = 8
"""The longest runs of which two are merged in registers."""

Comparator = tuple[int, int]
Merge = tuple[Sequence[int], Sequence[int]]
"""The wires of two sorted runs, in order."""


class ComparatorNetwork(NamedTuple):
    """A network as the int64 arrays that the compiled kernels walk through."""

    leaves: NDArray[np.int64]
    """(leaves, 2): first wire and number of wires."""
    merges: NDArray[np.int64]
    """(merges, 3): the start of its wires in `wires`, and the lengths of the two runs: at most RUN each."""
    wires: NDArray[np.int64]
    """The wires of the first run of the first merge in order, then of its second run, and so on."""
    order: NDArray[np.int64]
    """The wire of each rank (empty for a selection)."""
    candidates: NDArray[np.int64]
    """(candidates, 2): a selected value is the least of its pairs' larger values (empty for a sort)."""
    bounds: NDArray[np.int64]
    """Value i is selected from the candidates bounds[i], ..., bounds[i + 1] - 1."""


@functools.lru_cache(maxsize=256)
def sorting(n: int, first: int, last: int) -> ComparatorNetwork:
    """Return a network that sorts n wires so far that the ranks first, ..., last - 1 are right."""
    runs = _runs(n, 1)
    merges: list[Merge] = []
    order = _merge_all(runs, merges)
    return _network(runs, _needed(merges, set(order[first:last])), order, [], [])


@functools.lru_cache(maxsize=256)
def selection(n: int, ranks: tuple[int, ...]) -> ComparatorNetwork:
    """Return a network that finds the values of some ranks (from 0) among n wires."""
    runs = _runs(n, 2)  # a selection crosses two runs
    merges: list[Merge] = []
    half = (len(runs) + 1) // 2
    left = _merge_all(runs[:half], merges)
    right = _merge_all(runs[half:], merges)
    candidates: list[Comparator] = []
    bounds = [0]
    for rank in ranks:
        for taken in range(max(0, rank + 1 - len(right)), min(len(left), rank + 1) + 1):
            # If the rank + 1 smallest values are `taken` of the left run and the others of the right run, the largest
            # of them is the last value taken of one of the runs.
            ends = [run[count - 1] for run, count in ((left, taken), (right, rank + 1 - taken)) if count > 0]
            candidates.append((ends[0], ends[-1]))
        bounds.append(len(candidates))
    wanted = {wire for pair in candidates for wire in pair}
    return _network(runs, _needed(merges, wanted), [], candidates, bounds)


_SHORT = (
    # 13 wires, 45 comparators
    "0c 1a 29 37 5b 68 16 23 4b 79 8a 04 12 36 78 9a bc 46 59 8b ac 05 38 47 6b 9a 01 25 69 78 ab 13 24 56 9a 12 "
    "34 57 68 23 45 67 89 34 56 ",
    # 16 wires, 60 comparators (Green 1969)
    "01 23 45 67 89 ab cd ef 02 13 46 57 8a 9b ce df 04 15 26 37 8c 9d ae bf 08 19 2a 3b 4c 5d 6e 7f 5a 69 3c de "
    "48 7b 12 14 7d 28 be 24 56 9a bd 38 7c 68 ac 35 79 34 56 78 9a bc 67 89 ",
)
"""Sorting networks shorter than Batcher's, the shortest known: two hexadecimal wire numbers per comparator."""


@functools.cache
def small_sort(size: int) -> tuple[Comparator, ...]:
    """Return comparators that sort `size` wires in place: wire i ends up with rank i."""
    found = [_exchange_sort(size)]
    for text in _SHORT:
        network = [(int(pair[0], 16), int(pair[1], 16)) for pair in text.split()]
        if size <= 1 + max(high for _, high in network):
            # Unused wires count as +inf: they are the last ones, and no comparator changes them.
            found.append([(low, high) for low, high in network if high < size])
    if size > LEAF // 2:
        half = size // 2
        merge, order = small_merge(half, size - half)
        network = [*small_sort(half), *((low + half, high + half) for low, high in small_sort(size - half)), *merge]
        found.append([(order.index(low), order.index(high)) for low, high in network])
    shortest = min(found, key=len)
    return tuple(shortest)


@functools.cache
def small_merge(left: int, right: int) -> tuple[tuple[Comparator, ...], tuple[int, ...]]:
    """Return comparators that merge sorted runs of the first `left` and next `right` wires, and each rank's wire."""
    merges: list[Merge] = []
    order = _merge(list(range(left)), list(range(left, left + right)), merges, longest=1)
    return tuple((low[0], high[0]) for low, high in merges), tuple(order)


def _exchange_sort(n: int) -> list[Comparator]:
    """Return Batcher's merge exchange (Knuth, volume 3, algorithm 5.2.2M), which sorts n wires in place."""
    comparators: list[Comparator] = []
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, distance = top, 0, p
        while True:
            comparators += [(i, i + distance) for i in range(n - distance) if i & p == r]
            if q == p:
                break
            distance, q, r = q - p, q // 2, p
        p //= 2
    return comparators


def _runs(n: int, least: int) -> list[list[int]]:
    """Split n wires into runs of nearly equal length, but at least `least` runs where n allows.

    Their number is a power of two: merges of runs of about one length need the fewest comparators.
    """
    count = max(1 << (-(-n // LEAF) - 1).bit_length(), min(n, least))
    bounds = [n * i // count for i in range(count + 1)]
    return [list(range(start, end)) for start, end in itertools.pairwise(bounds)]


def _merge_all(runs: list[list[int]], merges: list[Merge]) -> list[int]:
    """Merge sorted runs as a balanced tree; return the wires in order of rank."""
    if not runs:
        return []
    if len(runs) == 1:
        return runs[0]
    half = (len(runs) + 1) // 2
    return _merge(_merge_all(runs[:half], merges), _merge_all(runs[half:], merges), merges)


def _merge(left: list[int], right: list[int], merges: list[Merge], longest: int = RUN) -> list[int]:
    """Append Batcher's odd-even merge of two sorted runs, as merges of runs of at most `longest` wires.

    Returns:
        The wires in order of rank.
    """
    if not left or not right:
        return left or right
    if max(len(left), len(right)) <= longest:
        merges.append((left, right))
        wires = left + right
        return wires if longest == 1 else [wires[place] for place in small_merge(len(left), len(right))[1]]
    even, odd = (_merge(left[k::2], right[k::2], merges, longest) for k in (0, 1))
    order = [even[0]]
    for low, high in zip(odd, even[1:], strict=False):
        merges.append(([low], [high]))
        order += [low, high]
    paired = (len(order) - 1) // 2
    return order + odd[paired:] + even[1 + paired :]


def _needed(merges: list[Merge], wanted: Collection[int]) -> list[Merge]:
    """Return the merges on which the values of the wanted wires depend."""
    live = set(wanted)
    kept = []
    for left, right in reversed(merges):
        if not live.isdisjoint(left) or not live.isdisjoint(right):
            live.update(left, right)
            kept.append((left, right))
    return kept[::-1]


def _network(
    runs: list[list[int]], merges: list[Merge], order: list[int], candidates: list[Comparator], bounds: list[int]
) -> ComparatorNetwork:
    def array(values: Sequence[object], *width: int) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64).reshape(-1, *width)

    wires = [[*left, *right] for left, right in merges]
    starts = itertools.accumulate((len(each) for each in wires), initial=0)
    sizes = [(start, len(left), len(right)) for start, (left, right) in zip(starts, merges, strict=False)]
    flat_wires = [wire for each in wires for wire in each]
    leaves = [(run[0], len(run)) for run in runs]
    return ComparatorNetwork(
        array(leaves, 2), array(sizes, 3), array(flat_wires), array(order), array(candidates, 2), array(bounds)
    )

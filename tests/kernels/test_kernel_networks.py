"""The networks on their own, by the zero-one principle: what sorts all zeros and ones sorts everything."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from gyroscope.kernels import networks


def run(plan: networks.Plan, values: list[int]) -> list[int]:
    values = list(values)
    for start, size in plan.leaves:
        values[start : start + size] = sorted(values[start : start + size])
    for start, number in plan.pairs:
        left, right = networks.PAIRS[number]
        values[start : start + left + right] = merged(values[start : start + left], values[start + left :][:right])
    for low, high in plan.comparators:
        values[low], values[high] = sorted((values[low], values[high]))
    return values


def merged(left: list[int], right: list[int]) -> list[int]:
    lower = networks.merge_two(left, right, False, min, max)
    assert len(lower) == networks.LEAF
    return lower + networks.merge_two(left, right, True, min, max)


def inputs(n: int) -> list[list[int]]:
    if n <= 10:
        return [list(bits) for bits in itertools.product((0, 1), repeat=n)]
    source = random.Random(n)
    return [[source.randrange(n) for _ in range(n)] for _ in range(30)]


@pytest.mark.parametrize("size", range(networks.LEAF + 1))
def test_the_small_sorts_sort(size: int) -> None:
    for values in map(list, itertools.product((0, 1), repeat=min(size, 12))):
        values += [0, 1, 0, 1][: size - len(values)]
        ordered = sorted(values)
        for low, high in networks.small_sort(size):
            values[low], values[high] = sorted((values[low], values[high]))
        assert values == ordered


@pytest.mark.parametrize(("left", "right"), networks.PAIRS)
def test_two_leaves_are_merged(left: int, right: int) -> None:
    """Sorted runs of zeros and ones are all there are to try."""
    for zeros, others in itertools.product(range(left + 1), range(right + 1)):
        runs = [0] * zeros + [1] * (left - zeros), [0] * others + [1] * (right - others)
        assert merged(*runs) == sorted(runs[0] + runs[1])


@pytest.mark.parametrize("n", [*range(1, 70), 100, 255, 300])
def test_a_sort_puts_each_rank_on_its_wire(n: int) -> None:
    plan, middle = networks.sorting(n, 0, n), networks.sorting(n, n // 4, n - n // 4)
    for values in inputs(n):
        ordered = sorted(values)
        wires = run(plan, values)
        assert [wires[wire] for wire in plan.order] == ordered
        wires = run(middle, values)
        assert [wires[wire] for wire in middle.order[n // 4 : n - n // 4]] == ordered[n // 4 : n - n // 4]


@pytest.mark.parametrize("n", [*range(1, 70), 100, 255, 300])
def test_a_selection_finds_its_ranks(n: int) -> None:
    ranks = (0, (n - 1) // 2, n // 2, n - 1)
    plan = networks.selection(n, ranks)
    for values in inputs(n):
        wires, ordered = run(plan, values), sorted(values)
        for rank, begin, end in zip(ranks, plan.bounds, plan.bounds[1:], strict=False):
            assert min(max(wires[a], wires[b]) for a, b in plan.candidates[begin:end]) == ordered[rank]


def test_a_selection_needs_fewer_comparators_than_a_sort() -> None:
    for n in (33, 51, 255):  # the merges of leaves apart, which are the same
        assert len(networks.selection(n, (n // 2,)).comparators) < len(networks.sorting(n, 0, n).comparators)


def comparators_of_a_merge(left: int, right: int) -> float:
    calls: list[int] = []

    def least(a: int, b: int) -> int:
        calls.append(1)
        return min(a, b)

    for upper in (False, True):
        networks.merge_two(list(range(left)), list(range(right)), upper, least, least)
    return len(calls) / 2  # a comparator is a minimum and a maximum


def test_comparators_are_at_most_a_quarter_of_n_log2_n() -> None:
    for n in (16, 25, 51, 64, 100, 255, 256, 300, 1024):
        plan = networks.sorting(n, 0, n)
        work = len(plan.comparators) + sum(len(networks.small_sort(int(size))) for _, size in plan.leaves)
        work += sum(comparators_of_a_merge(*networks.PAIRS[number]) for _, number in plan.pairs)
        assert work <= n * math.ceil(math.log2(n)) ** 2 / 4

"""Comparator networks, by the zero-one principle: a network that sorts all zeros and ones sorts everything."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from gyroscope._linalg._kernels import sorting_networks


def run(plan: sorting_networks.ComparatorNetwork, values: list[int]) -> list[int]:
    values = list(values)
    for start, size in plan.leaves:
        values[start : start + size] = sorted(values[start : start + size])
    for first, left, right in plan.merges:
        wires = plan.wires[first : first + left + right]
        for low, high in sorting_networks.small_merge(int(left), int(right))[0]:
            a, b = wires[low], wires[high]
            values[a], values[b] = sorted((values[a], values[b]))
    return values


def comparators(plan: sorting_networks.ComparatorNetwork) -> int:
    return sum(len(sorting_networks.small_merge(int(left), int(right))[0]) for _, left, right in plan.merges)


def inputs(n: int) -> list[list[int]]:
    if n <= 10:
        return [list(bits) for bits in itertools.product((0, 1), repeat=n)]
    source = random.Random(n)
    return [[source.randrange(n) for _ in range(n)] for _ in range(30)]


@pytest.mark.parametrize("size", range(sorting_networks.LEAF + 1))
def test_the_small_sorts_sort(size: int) -> None:
    """Try all inputs of zeros and ones: bit k of a wire is its value for the input whose bits are those of k."""
    words = np.arange(max(1, 2**size // 64), dtype=np.uint64)
    within_word = [sum(1 << k for k in range(64) if k >> wire & 1) for wire in range(6)]
    wires = [
        np.full_like(words, within_word[wire]) if wire < 6 else -(words >> np.uint64(wire - 6) & np.uint64(1))
        for wire in range(size)
    ]
    for low, high in sorting_networks.small_sort(size):
        wires[low], wires[high] = wires[low] & wires[high], wires[low] | wires[high]
    for low, high in itertools.pairwise(wires):
        assert not (low & ~high).any()


@pytest.mark.parametrize("left", range(sorting_networks.RUN + 1))
@pytest.mark.parametrize("right", range(sorting_networks.RUN + 1))
def test_the_small_merges_merge(left: int, right: int) -> None:
    network, order = sorting_networks.small_merge(left, right)
    for ones_left, ones_right in itertools.product(range(left + 1), range(right + 1)):
        values = [0] * (left - ones_left) + [1] * ones_left + [0] * (right - ones_right) + [1] * ones_right
        ordered = sorted(values)
        for low, high in network:
            values[low], values[high] = sorted((values[low], values[high]))
        assert [values[wire] for wire in order] == ordered


@pytest.mark.parametrize("n", [*range(1, 70), 100, 255, 300])
def test_a_sort_puts_each_rank_on_its_wire(n: int) -> None:
    plan, middle = sorting_networks.sorting(n, 0, n), sorting_networks.sorting(n, n // 4, n - n // 4)
    for values in inputs(n):
        ordered = sorted(values)
        wires = run(plan, values)
        assert [wires[wire] for wire in plan.order] == ordered
        wires = run(middle, values)
        assert [wires[wire] for wire in middle.order[n // 4 : n - n // 4]] == ordered[n // 4 : n - n // 4]


@pytest.mark.parametrize("n", [*range(1, 70), 100, 255, 300])
def test_a_selection_finds_its_ranks(n: int) -> None:
    ranks = (0, (n - 1) // 2, n // 2, n - 1)
    plan = sorting_networks.selection(n, ranks)
    for values in inputs(n):
        wires, ordered = run(plan, values), sorted(values)
        for rank, begin, end in zip(ranks, plan.bounds, plan.bounds[1:], strict=False):
            assert min(max(wires[a], wires[b]) for a, b in plan.candidates[begin:end]) == ordered[rank]


def test_a_selection_needs_fewer_comparators_than_a_sort() -> None:
    for n in (33, 51, 255):
        assert comparators(sorting_networks.selection(n, (n // 2,))) < comparators(sorting_networks.sorting(n, 0, n))


def test_comparators_are_at_most_a_quarter_of_n_log2_n() -> None:
    for n in (16, 25, 51, 64, 100, 255, 256, 300, 1024):
        plan = sorting_networks.sorting(n, 0, n)
        work = comparators(plan) + sum(len(sorting_networks.small_sort(int(size))) for _, size in plan.leaves)
        assert work <= n * math.ceil(math.log2(n)) ** 2 / 4

"""Minimum-diameter averaging: the search finds what trying all subsets finds, also if that would take years."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import normal, seeds

from gyroscope._linalg.distances import squared_distances
from gyroscope.rules import MDA, mda
from gyroscope.rules.mda import Distances, smallest_diameter


def by_trying(table: Distances, size: int) -> list[int]:
    """The lexicographically smallest of all subsets with the smallest diameter."""
    subsets = itertools.combinations(range(len(table)), size)
    return list(min(subsets, key=lambda subset: (diameter(table, subset), subset)))


def diameter(table: Distances, subset: tuple[int, ...] | list[int]) -> float:
    return max(table[i][j] for i in subset for j in subset)


def table_of(n: int, values: int, seed: int) -> Distances:
    """Return a table of whole numbers, not necessarily distances between points, many of them equal."""
    generator = torch.Generator().manual_seed(seed)
    upper = torch.randint(values, (n, n), generator=generator).triu(1)
    return (upper + upper.T).double().tolist()


@given(n=st.integers(1, 9), part=st.floats(0, 1), values=st.sampled_from([2, 3, 6, 100]), seed=seeds)
@settings(max_examples=150)
def test_finds_what_trying_all_subsets_finds(n: int, part: float, values: int, seed: int) -> None:
    table, size = table_of(n, values, seed), 1 + int(part * (n - 1))
    assert smallest_diameter(table, size) == by_trying(table, size)


@pytest.mark.parametrize("d", [2, 10, 1000])
@pytest.mark.parametrize(("n", "f"), [(30, 10), (51, 24)])
def test_many_rows_between_which_all_distances_are_alike(n: int, f: int, d: int) -> None:
    """On a sphere no row is nearer to the middle than another. 30 over 10 are 30 million subsets, 51 over 24 10^14."""
    rows = torch.nn.functional.normalize(normal(n, d, seed=d))
    table = squared_distances(rows).tolist()
    chosen = smallest_diameter(table, n - f)
    assert chosen == sorted(set(chosen)) and len(chosen) == n - f
    assert_no_swap_helps(table, chosen)


def assert_no_swap_helps(table: Distances, chosen: list[int]) -> None:
    """Check a necessary condition: no other row in place of one of the chosen gives a smaller diameter."""
    best = diameter(table, chosen)
    for out, new in itertools.product(chosen, set(range(len(table))) - set(chosen)):
        assert diameter(table, [*(row for row in chosen if row != out), new]) >= best


def cubic_graph(n: int, seed: int) -> list[tuple[int, int]]:
    """The edges of a graph in which every one of n nodes has three."""
    generator = random.Random(seed)
    while True:
        ends = [node for node in range(n) for _ in range(3)]
        generator.shuffle(ends)
        edges = {(min(pair), max(pair)) for pair in zip(ends[::2], ends[1::2], strict=True)}
        if len(edges) == 3 * n // 2 and all(a != b for a, b in edges):
            return sorted(edges)


def test_a_graph_that_leaves_much_to_decide() -> None:
    """Each of 40 rows is too far from three others; 12 are near to all. 22 are too few to leave out, 23 are enough."""
    n = 52
    table = [[0.0 if i == j else 1.0 for j in range(n)] for i in range(n)]
    for i, j in cubic_graph(40, seed=1):
        table[i][j] = table[j][i] = 1.5
    assert diameter(table, smallest_diameter(table, n - 23)) == 1.0
    assert diameter(table, smallest_diameter(table, n - 22)) == 1.5
    assert smallest_diameter(table, n - 22) == list(range(30))


@given(n=st.integers(3, 11), part=st.floats(0, 1), d=st.integers(1, 4), seed=seeds)
def test_at_its_limit_the_diameter_is_at_most_twice_the_smallest(n: int, part: float, d: int, seed: int) -> None:
    rows, size = normal(n, d, seed), 1 + int(part * (n - 1))
    table = squared_distances(rows).tolist()
    chosen = smallest_diameter(table, size, limit=1)
    assert chosen == sorted(set(chosen)) and len(chosen) == size
    assert diameter(table, chosen) <= 4 * diameter(table, by_trying(table, size))  # of squares


def test_the_search_stops_at_its_limit_and_takes_no_more_steps_than_the_worst_case() -> None:
    """Graphs with three partners for each row leave the most to decide."""
    for seed, (n, f) in itertools.product(range(5), [(26, 10), (26, 12), (52, 22), (52, 23)]):
        table = [[0.0 if i == j else 1.0 for j in range(n)] for i in range(n)]
        for i, j in cubic_graph(n - 12, seed):
            table[i][j] = table[j][i] = 1.5
        exact, bound = smallest_diameter(table, n - f), mda._worst_case(n, f)
        assert smallest_diameter(table, n - f, bound) == exact
        assert diameter(table, smallest_diameter(table, n - f, 5)) <= 2 * diameter(table, exact)


@pytest.mark.parametrize("f", [1, 4, 10])
def test_f_copies_far_away_are_left_out_and_f_copies_of_an_honest_row_are_not(f: int) -> None:
    n = 3 * f
    rows = normal(n, 50, seed=f)
    rows[::3] = 1000 * rows[0]
    weight = MDA()(rows, f).weight
    assert weight is not None and weight[::3].sum() == 0
    rows[::3] = rows[1]
    weight = MDA()(rows, f).weight
    assert weight is not None and (weight[::3] > 0).all() and weight[1] > 0


def test_of_equal_subsets_the_lexicographically_smallest() -> None:
    rows = torch.tensor([[0.0], [5.0], [1.0], [6.0], [10.0], [11.0]])
    weight = MDA()(rows[:5], 2).weight
    assert weight is not None and weight.nonzero().flatten().tolist() == [0, 1, 2]  # {1, 3, 4} is as wide
    assert smallest_diameter(squared_distances(rows).tolist(), 2) == [0, 2]
    weight = MDA()(torch.ones(7, 2), 3).weight
    assert weight is not None and weight.nonzero().flatten().tolist() == [0, 1, 2, 3]


def test_with_more_than_f_bad_rows_the_result_shows_it() -> None:
    rows = normal(5, 3, seed=0)
    rows[3:] = torch.nan
    assert MDA()(rows, 2).vector.isfinite().all()
    assert MDA()(rows, 1).vector.isnan().all()

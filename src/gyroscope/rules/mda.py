"""Minimum-diameter averaging: the mean of the n-f rows that are nearest to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg._kernels import accelerated_by, subsets, switched_on
from gyroscope.rules._spectral import Array, table_of
from gyroscope.rules.base import SelectionRule

Distances = Sequence[Sequence[float]] | Array

_STEPS = 50_000
"""How many steps the search may take: about two seconds for n = 51."""


@dataclasses.dataclass(frozen=True)
class MDA(SelectionRule):
    """The mean of the n-f rows whose diameter, the largest distance between two of them, is smallest. n >= 2f + 1.

    Of several such subsets the rule takes the lexicographically smallest: the one with the lowest row number, of these
    the one with the next lowest, and so on. Other names: "brute", because one can try all subsets. Here a search that
    branches on rows to leave out (see `smallest_diameter`) finds the subset exactly, and for n = 30, f = 10 in
    milliseconds instead of 30 million tries.

    The search ends after `limit` steps, so that no rows can stop the rule. Then it takes the best of the n subsets that
    are a row and its n-f-1 nearest ones. Its diameter is at most twice the smallest: the nearest ones of a row of the
    best subset are within that subset's diameter of the row. The search is at worst exponential in f (about 1.47^f
    steps for each of n + 2 log2 n questions), so it completes for certain up to f = 15 for n = 51. For n = 51 and
    f = 24, the hardest rows that were tried take some hundred steps.

    Guarantee: let R be the distance of the farthest honest row from the honest mean. Honest rows have a diameter of at
    most 2R, so the subset has too. It holds an honest row (n-f > f), so all of it is within 3R of the mean, and its
    honest rows (all but at most f) within R: the result is within (1 + 2f/(n-f)) R if the search completes for
    certain. If not, the diameter is at most 4R, and the result is within (1 + 4f/(n-f)) R.

    A row with a NaN or an infinity is infinitely far from all others; as long as there are at most f, the subset leaves
    them out. Cost: n(n-1)/2 distances, O(n^2 d), and the search, on the host. Weights: 1/(n-f) for the rows of the
    subset.
    """

    limit: int = registry.count(_STEPS)

    name = "mda"
    aliases = ("minimum-diameter-averaging",)
    summary = "the mean of the n-f rows of smallest diameter, by a search with a limit"
    needs = "n >= 2f + 1"
    paper = "El Mhamdi et al. 2018"
    guarantee = "distance"
    unsupported: ClassVar = {"asynchronous": "the search runs on the host"}

    def bound_factor(self, n: int, f: int) -> float:
        return 1 + (2 if _worst_case(n, f) <= self.limit else 4) * f / (n - f)

    def choose(self, table: Tensor, f: int) -> Tensor:
        return torch.tensor(smallest_diameter(table_of(table), len(table) - f, self.limit), device=table.device)


def smallest_diameter(table: Distances, size: int, limit: int = _STEPS) -> list[int]:
    """Return the rows of the subset; of several with the same diameter, the lexicographically smallest.

    After `limit` steps, return the row with its nearest ones that have the smallest diameter.

    Whether rows can be left out so that no two of the others are farther apart than r is a question about a graph: join
    the pairs that are too far apart, and look for at most f rows that touch every edge, a vertex cover. While some row
    has three or more edges, either it is left out or all its partners are; f allows few such choices, and simple bounds
    end most of them early. So the search takes about 1.47^f steps at worst, where trying all subsets takes n over f.

    A set of rows is an integer with one bit per row; a kernel takes the same steps for up to 64 rows.
    """
    squares = np.asarray(table, dtype=np.float64)
    nearest = np.argsort(squares, axis=1, kind="stable")[:, :size]
    places = nearest[:, :, None] * len(squares) + nearest[:, None, :]
    widths = squares.reshape(-1).take(places).max(axis=(1, 2))
    # Each row of the subset has size - 1 others within the diameter. Any row with its nearest ones is an upper bound.
    low = np.sort(np.take_along_axis(squares, nearest[:, -1:], axis=1)[:, 0])[size - 1]
    candidates = np.unique(squares[(squares >= low) & (squares <= widths.min())])
    found = _search(squares, candidates, size, limit)
    return sorted(nearest[widths.argmin()].tolist()) if found is None else found


def _worst_case(n: int, f: int) -> int:
    """Return a bound on the steps: n + 2 log2 n questions, each with one branch for f - 1 rows and one for f - 3."""
    steps = [0, 0, 0]
    for _ in range(f + 1):
        steps.append(1 + steps[-1] + steps[-3])
    return steps[-1] * (n + (n * n).bit_length())


@accelerated_by(subsets.smallest_diameter, lambda table, *_: len(table) <= subsets.MOST and switched_on())
def _search(table: Array, candidates: Array, size: int, limit: int) -> list[int] | None:
    """Return the exact subset, whose diameter is one of the sorted candidates; None if `limit` steps do not suffice."""
    steps = iter(range(limit))
    try:
        return _lowest(_far(table, _diameter(table, candidates, size, steps)), size, steps)
    except StopIteration:
        return None


def _lowest(far: list[int], size: int, steps: Iterator[int]) -> list[int]:
    """Return the lowest `size` rows of which no two are too far apart."""
    n = len(far)
    chosen: list[int] = []
    left = (1 << n) - 1  # the rows not yet decided on
    spare = n - size
    for row in range(n):
        if len(chosen) == size:
            break
        if not left >> row & 1:
            continue
        left &= ~(1 << row)
        partners = far[row] & left
        # Take the row if all rows too far from it can be left out, with enough others to choose from.
        if _coverable(far, left & ~partners, spare - partners.bit_count(), steps):
            chosen.append(row)
            left &= ~partners
            spare -= partners.bit_count()
        else:
            spare -= 1
    return chosen


def _diameter(table: Array, candidates: Array, size: int, steps: Iterator[int]) -> float:
    """Return the smallest candidate r for which some `size` rows are within r of each other, by a binary search."""
    n = len(table)
    everyone, spare = (1 << n) - 1, n - size
    first, last = 0, len(candidates) - 1
    while first < last:
        middle = (first + last) // 2
        if _coverable(_far(table, candidates[middle]), everyone, spare, steps):
            last = middle
        else:
            first = middle + 1
    return float(candidates[first])


def _far(table: Array, limit: float) -> list[int]:
    """Return, for each row, the rows that are farther from it than the limit."""
    return [sum(1 << j for j, value in enumerate(line) if value > limit) for line in table.tolist()]


def _coverable(far: list[int], rows: int, spare: int, steps: Iterator[int]) -> bool:
    """Return whether leaving out at most `spare` of these rows leaves no two that are too far apart."""
    while spare >= 0:
        next(steps)
        degrees = {row: (far[row] & rows).bit_count() for row in _members(rows)}
        rows = sum(1 << row for row, degree in degrees.items() if degree)  # a row without edges may stay
        if not rows:
            return True
        row, degree = max(degrees.items(), key=lambda item: item[1])
        edges = sum(degrees.values()) // 2
        if edges > sum(sorted(degrees.values(), reverse=True)[:spare]):
            return False  # more edges than any `spare` rows touch
        if degree <= 2:
            return _cost_of_paths(far, rows) <= spare
        leaf = next((one for one, count in degrees.items() if count == 1), None)
        if leaf is not None:  # leaving out its partner is at least as good
            rows &= ~(far[leaf] & rows)
            spare -= 1
            continue
        if degree <= spare:  # otherwise the row must go: its partners are too many to leave out
            partners = far[row] & rows
            if _coverable(far, rows & ~partners & ~(1 << row), spare - degree, steps):
                return True
        rows &= ~(1 << row)
        spare -= 1
    return False


def _cost_of_paths(far: list[int], rows: int) -> int:
    """Return how many rows must go if no row has more than two edges: half of each path or cycle."""
    cost = 0
    while rows:
        piece, grown = 0, rows & -rows
        while grown != piece:
            piece = grown
            for row in _members(piece):
                grown |= far[row] & rows
        edges = sum((far[row] & piece).bit_count() for row in _members(piece)) // 2
        length = piece.bit_count()
        cost += (length + 1) // 2 if edges == length else length // 2
        rows &= ~piece
    return cost


def _members(rows: int) -> list[int]:
    found = []
    while rows:
        bit = rows & -rows
        found.append(bit.bit_length() - 1)
        rows ^= bit
    return found

"""Minimum-diameter averaging: the mean of the n-f rows that are nearest to each other."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._linalg.distances import squared_distances
from gyroscope.rules.base import Aggregate, Rule
from gyroscope.rules.diameter import smallest_diameter
from gyroscope.rules.selection import mean_of


@dataclasses.dataclass(frozen=True)
class MDA(Rule):
    """The mean of the n-f rows whose diameter, the largest distance between two of them, is smallest. n >= 2f + 1.

    Of several such subsets the lexicographically smallest is taken: the one with the lowest row number, of these the
    one with the next lowest, and so on. Also known as "brute", because one can try all subsets; here the subset is
    found by a search that branches on rows to leave out (see `diameter`), exactly, and for n = 30, f = 10 in
    milliseconds instead of 30 million tries.

    Guarantee: where R is the distance of the farthest honest row from the honest mean, honest rows have a diameter of
    at most 2R, so the subset has too. It holds an honest row (n-f > f), so all of it is within 3R of the mean, and its
    honest rows (all but f at most) within R: the result is within (1 + 2f/(n-f)) R. Of the factors of
    all rules here it grows the least with f.

    A row that holds a NaN or an infinity is infinitely far from all others; while at most f are so, they are left out.
    Cost: n(n-1)/2 distances, O(n^2 d), and the search, on the host, at worst exponential in f (about 1.47^f steps).
    Weights: 1/(n-f) for the rows of the subset.
    """

    name = "mda"
    summary = "the mean of the n-f rows of smallest diameter, found exactly"
    needs = "n >= 2f + 1"
    paper = "El Mhamdi et al. 2018"
    reads = "distances"
    promise = "distance"
    lacks: ClassVar = {"asynchronous": "the search runs on the host"}

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def reach(self, n: int, f: int) -> float:
        return 1 + 2 * f / (n - f)

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self.combine(rows, f, squared_distances(rows))

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        chosen = smallest_diameter(table.tolist(), rows.shape[0] - f)
        return mean_of(rows, torch.tensor(chosen, device=rows.device))

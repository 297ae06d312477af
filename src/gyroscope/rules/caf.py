"""CAF, the covariance-bound agnostic filter: what deviates most in the widest direction loses its weight."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg.distances import squared_distances
from gyroscope.rules import spectral
from gyroscope.rules.base import Aggregate, Rule
from gyroscope.rules.median import Median

_NOTHING = 1e-9
"""Of the weight 1 that a row starts with."""


@dataclasses.dataclass(frozen=True)
class CAF(Rule):
    """The weighted mean of least spread that a filter meets on its way. Needs n >= 2f + 1.

    All rows start with weight 1. Then, as long as more than n-2f of the weight is left: find the direction v in which
    the weighted rows spread most (the top eigenvector of their covariance) and how much (its eigenvalue); multiply the
    weight of row i by 1 - t_i / max t, where t_i is the square of its deviation from the weighted mean along v. The
    result is the weighted mean that had the smallest top eigenvalue. (With f = 0 only the first one is looked at: the
    mean of all rows.)

    Guarantee: nobody has to know how far honest rows spread, only f. While Byzantine rows stick out, each step takes
    more weight from them than from honest ones; so some mean is met whose top eigenvalue is at most a = 2 (n-f)/(n-2f)
    times the square of the radius R of the honest rows (their largest distance from their mean), at a distance of at
    most (sqrt(a f/(n-f)) + sqrt(f/(n-2f))) R from their mean. A later mean of smaller eigenvalue keeps at least the
    fraction (n-2f)/n of that weight, so lies within sqrt(a n/(n-2f)) R of it. The sum is the `reach`.

    A row that holds a NaN or an infinity starts without weight. Cost: n(n-1)/2 distances, O(n^2 d), and at most n
    eigenproblems of size n, whatever d is. Weights: those of the mean that was best; of equals the first.

    Who does what: ByzFL finds v by a single step of the power method from a random vector, so its result is random;
    here the eigenvector is exact. Where two directions are exactly as wide, which one comes first is up to rounding.
    """

    name = "caf"
    summary = "filters along the direction of largest variance; the mean that had the smallest such variance"
    needs = "n >= 2f + 1"
    paper = "Allouah et al. 2025"
    weaker = Median
    reads = "distances"
    promise = "distance"
    lacks: ClassVar = {"asynchronous": "the host finds the eigenvectors and decides when to stop"}

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def reach(self, n: int, f: int) -> float:
        if f == 0:
            return 0.0
        excess = 2 * (n - f) / (n - 2 * f)
        return math.sqrt(excess * n / (n - 2 * f)) + math.sqrt(excess * f / (n - f)) + math.sqrt(f / (n - 2 * f))

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self.combine(rows, f, squared_distances(rows))

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        shares = filtered(spectral.table_of(table), f)
        weight = torch.from_numpy(shares).to(rows.device)
        return Aggregate(spectral.mean_with(rows, weight), weight)


def filtered(table: spectral.Array, f: int) -> spectral.Array:
    """(n,): each row's share in the mean of smallest top eigenvalue."""
    n = len(table)
    weight = np.zeros(n)
    weight[spectral.comparable(table)] = 1.0
    best, smallest = weight / weight.sum(), math.inf
    while True:
        left = weight.nonzero()[0]
        shares = weight[left] / weight[left].sum()
        spread = spectral.spread(table[np.ix_(left, left)], shares)
        if spread.variance < smallest:
            smallest = spread.variance
            best = np.zeros(n)
            best[left] = shares
        weight[left] *= 1 - spread.outlyingness
        # Rows as far out as the farthest lose all, too; what rounding leaves them would make them the farthest again.
        weight[weight < _NOTHING] = 0.0
        if spread.variance == 0 or weight.sum() <= n - 2 * f:
            return np.asarray(best)

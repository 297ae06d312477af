"""CAF, the covariance-bound agnostic filter: rows that deviate most along the widest direction lose their weight."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg import matrix
from gyroscope.rules import _spectral
from gyroscope.rules._spectral import Array
from gyroscope.rules.base import Aggregate, DistanceRule
from gyroscope.rules.median import Median

_NOTHING = 1e-9
"""A weight below this is zero; every row starts with the weight 1."""


@dataclasses.dataclass(frozen=True)
class CAF(DistanceRule):
    """The weighted mean of least spread that a filter passes through. Needs n >= 2f + 1.

    All rows start with weight 1. As long as more than n-2f of the weight is left, the rule finds the direction v in
    which the weighted rows spread most (the top eigenvector of their covariance) and how much (its eigenvalue), and
    multiplies the weight of row i by 1 - t_i / max t, where t_i is the square of its deviation from the weighted mean
    along v. The result is the weighted mean that had the smallest top eigenvalue. (With f = 0 it is the first one: the
    mean of all rows.)

    Guarantee: the rule needs to know f, but not how far honest rows spread. While Byzantine rows stick out, each step
    takes more weight from them than from honest ones; so the filter reaches a mean whose top eigenvalue is at most
    a = 2 (n-f)/(n-2f) times the square of the radius R of the honest rows (their largest distance from their mean), at
    a distance of at most (sqrt(a f/(n-f)) + sqrt(f/(n-2f))) R from their mean. A later mean of smaller eigenvalue keeps
    at least the fraction (n-2f)/n of that weight, so it is within sqrt(a n/(n-2f)) R of it. The sum is the
    `bound_factor`.

    A row with a NaN or an infinity starts without weight. Cost: n(n-1)/2 distances, O(n^2 d), and at most n
    eigenproblems of size n, independent of d. Weights: those of the best mean; of equal ones the first.

    Other implementations: ByzFL finds v by a single step of the power method from a random vector, so its result is
    random; here the eigenvector is exact. If two directions are exactly as wide, rounding decides which comes first.
    ByzFL takes max t over all rows, this rule over the rows that have weight left: with an exact eigenvector, 55 of 200
    random cases differ, and 5 do not end in ByzFL's way, because the row of largest t has no weight to lose.
    """

    name = "caf"
    aliases = ("covariance-bound-agnostic-filter",)
    summary = "filters along the direction of largest variance; the mean that had the smallest such variance"
    needs = "n >= 2f + 1"
    paper = "Allouah et al. 2025"
    fallback = Median
    guarantee = "distance"
    unsupported: ClassVar = {"asynchronous": "the host finds the eigenvectors and decides when to stop"}

    def bound_factor(self, n: int, f: int) -> float:
        if f == 0:
            return 0.0
        excess = 2 * (n - f) / (n - 2 * f)
        return math.sqrt(excess * n / (n - 2 * f)) + math.sqrt(excess * f / (n - f)) + math.sqrt(f / (n - 2 * f))

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        weight = torch.from_numpy(filtered(_spectral.table_of(table), f)).to(rows.device)
        chosen = weight.nonzero().flatten()
        shares = weight[chosen]
        equal = bool((shares == shares[0]).all())
        return Aggregate(matrix.mean_of(rows, chosen) if equal else matrix.weighted_sum(rows, weight), weight)

    def combine_mixed(self, rows: Tensor, shares: Tensor, f: int, table: Tensor) -> Aggregate:
        weight = torch.from_numpy(filtered(_spectral.table_of(table), f)).to(rows.device)
        return Aggregate(matrix.weighted_sum(rows, weight @ shares), weight)


def filtered(table: Array, f: int, votes: Array | None = None) -> Array:
    """Return (n,): each row's share in the mean of smallest top eigenvalue.

    Args:
        table: (n, n) squared distances.
        f: How many rows may be Byzantine.
        votes: (n,), the weights to start with in place of 1; the filter ends when (n-2f)/n of them is left. Then what
            counts is the eigenvalue divided by the square root of the weight that is left.
    """
    n = len(table)
    weight, usable = np.zeros(n), _spectral.comparable(table)
    weight[usable] = 1.0 if votes is None else votes[usable]
    least = n - 2 * f if votes is None else float(votes.sum()) * (n - 2 * f) / n
    best, smallest = weight / weight.sum(), math.inf
    while True:
        left = weight.nonzero()[0]
        shares = weight[left] / weight[left].sum()
        spread = _spectral.spread(table, shares, left)
        size = spread.variance if votes is None else spread.variance / math.sqrt(weight.sum())
        if size < smallest:
            smallest = size
            best = np.zeros(n)
            best[left] = shares
        weight[left] *= 1 - spread.outlyingness
        # Rows as far out as the farthest lose all their weight; a rest from rounding would make them farthest again.
        weight[weight < _NOTHING] = 0.0
        if spread.variance == 0 or weight.sum() <= least:
            return np.asarray(best)

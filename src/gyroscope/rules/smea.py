"""SMEA, the smallest maximum eigenvalue averaging: the mean of the n-f rows that spread least in any direction."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope.rules import _smea_search, _spectral
from gyroscope.rules._selected_mean import mean_of
from gyroscope.rules.base import Aggregate, DistanceRule
from gyroscope.rules.median import Median


@dataclasses.dataclass(frozen=True)
class SMEA(DistanceRule):
    """The mean of the n-f rows whose covariance has the smallest largest eigenvalue. Needs n >= 2f + 1.

    Guarantee: the chosen rows spread at most as much, in any direction, as any n-f honest ones do, so their variance in
    a direction is at most the square of the radius R of the honest rows (their largest distance from their mean).
    Removing a fraction e of the rows of a set moves its mean by at most sqrt(e/(1-e)) standard deviations. At least
    n-2f of the chosen rows are honest, and either set, the chosen and the honest, has at most f rows besides these: the
    result is at most 2 sqrt(f/(n-2f)) R from the honest mean. A row with a NaN or an infinity is infinitely far from
    all others and never chosen.

    Cost: n(n-1)/2 distances, O(n^2 d), and an exact search by branch and bound, independent of d. In the worst case,
    rows that differ at random in many directions alike, it grows like the number of subsets: milliseconds for n = 15
    and f = 6, seconds for n = 30 and f = 10, infeasible for n = 51 and f = 12. If few directions dominate, or Byzantine
    rows agree, it takes a second or much less even then. After `limit` subsets, partial ones included, which take ten
    to twenty seconds, the rule raises an error; `caf` has a similar guarantee without a search.

    Weights: 1/(n-f) for the chosen rows. Of subsets with equal eigenvalues (to 1e-10) the rule takes the one with the
    lowest row numbers, compared from the first.

    Other implementations: ByzFL takes one step of the power method from a random vector in place of the eigenvalue, so
    its choice is random; here it is the subset of the definition.
    """

    limit: int = registry.count(2_000_000)

    name = "smea"
    summary = "the mean of the n-f rows whose covariance has the smallest largest eigenvalue; exact, by a search"
    needs = "n >= 2f + 1"
    paper = "Allouah et al. 2023"
    fallback = Median
    guarantee = "distance"
    unsupported: ClassVar = {"asynchronous": "the host searches"}

    def bound_factor(self, n: int, f: int) -> float:
        return 2 * math.sqrt(f / (n - 2 * f))

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        chosen = _smea_search.smallest_scatter(_spectral.table_of(table), rows.shape[0] - f, self.limit)
        return mean_of(rows, torch.from_numpy(chosen).to(rows.device))

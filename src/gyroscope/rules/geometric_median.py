"""The geometric median: the point whose distances to all rows have the smallest sum."""

from __future__ import annotations

import dataclasses
import warnings
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import matrix, order_statistics
from gyroscope.rules._geometric_median_search import TARGET, geometric_median
from gyroscope.rules._selected_mean import weighted_sum
from gyroscope.rules._spectral import Array
from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point with the smallest sum of distances to the rows. Needs n >= 2f + 1. In federated learning: RFA.

    tolerance: a bound on the length of the mean of the unit vectors from the result towards the rows, where rows within
    tolerance * r of the result count as if they were there (see `_geometric_median_search`), and r is the distance
    within which the nearest n-f rows are from the coordinate-wise median. The rule checks this bound, which does not
    depend on scale: the sum of distances is within n * tolerance * (2r + D) of the smallest, if the result is D away
    from the best point. In practice the error is far smaller, because Newton's steps speed up Weiszfeld's. If the
    search ends before that (after 1,000 steps, or because of rounding), the result is the nearest point found, and a
    warning says how near: with an error, an adversary that can cause it could stop the training.

    Guarantee: let R be the distance of the farthest of h = n-f honest rows from the honest mean. The geometric median
    is within 2h/(h-f) R of it. From a point at a distance D of the mean, all honest rows are at least D - R away, and a
    Byzantine row is nearer by at most D; so its sum of distances exceeds the mean's by at least h(D - 2R) - f D, which
    is positive beyond that bound. How far the Byzantine rows are makes no difference.

    A row with a NaN or an infinity (or whose distance float64 cannot square) is the worst outlier and is left out; if
    there are more than f of them the result is NaN. Cost: a median per coordinate, the products of all pairs of centred
    rows, O(n^2 d), and an iteration on the host whose cost does not depend on d. Weights: Weiszfeld's, each row's
    inverse distance from the result, divided by their sum.

    Other implementations: RFA (Pillutla et al.) weighs rows by their number of samples, which a Byzantine worker would
    invent; here all weigh the same. It stops after a few of Weiszfeld's steps (3 from zero can be 5 % off), and smooths
    distances below a fixed length; here that length is relative to the rows' spread.
    """

    tolerance: float = registry.number(1e-6, "a number between 0 and 0.1", lambda value: 0 < value < 0.1)

    name = "geometric-median"
    summary = "the point with the smallest sum of distances to the rows (RFA), to a certified tolerance"
    needs = "n >= 2f + 1"
    paper = "Pillutla et al. 2022"
    guarantee = "distance"
    unsupported: ClassVar = {
        "mean at f = 0": "a median is no mean",
        "asynchronous": "iterates on the host until the tolerance is reached",
    }

    def bound_factor(self, n: int, f: int) -> float:
        return 2 * (n - f) / (n - 2 * f)

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        n, d = rows.shape
        center = order_statistics.median(rows)
        lengths = matrix.squared_distances_to(rows, center).sqrt_()
        (kept,) = lengths.isfinite().nonzero(as_tuple=True)
        if len(kept) < n - f:
            return Aggregate(rows.new_full((d,), torch.nan), None)
        radius = self.tolerance * float(lengths[kept].sort().values[n - f - 1])
        points = _points(rows if len(kept) == n else rows.index_select(0, kept), center, lengths[kept])
        shares, excess = geometric_median(points, radius, min(TARGET, self.tolerance))
        if excess > self.tolerance:
            warnings.warn(
                f"the geometric median was reached only to {excess:.1e} instead of the tolerance {self.tolerance:g}: "
                "rounding or the number of steps stopped the search; the nearest point found is taken",
                stacklevel=2,
            )
        share = torch.from_numpy(shares).to(rows.device)
        weight = torch.zeros(n, dtype=torch.float64, device=rows.device).index_copy_(0, kept, share)
        return Aggregate(weighted_sum(rows, kept, share), weight)


def _points(rows: Tensor, center: Tensor, lengths: Tensor) -> Array:
    """Return the rows as points around the center, in as few dimensions as they span, with the same distances.

    They follow from the products of all pairs of rows as unit vectors, so directions are exact whatever the lengths.
    """
    n, d = rows.shape
    scale = torch.where(lengths > 0, lengths, 1.0).unsqueeze(1)
    if d <= 4 * n:
        points = rows.double() - center.double()
    else:
        products = torch.zeros(n, n, dtype=torch.float64, device=rows.device)
        for _, block in matrix.blocks(rows, center):
            block /= scale
            products.addmm_(block, block.T)
        values, vectors = torch.linalg.eigh(products)
        points = vectors * values.clamp_(min=0).sqrt_() * scale
    on_host: Array = points.cpu().numpy()
    return on_host

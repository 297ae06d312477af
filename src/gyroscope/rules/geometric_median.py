"""The geometric median: the point whose distances to all rows have the smallest sum."""

from __future__ import annotations

import dataclasses
import warnings
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import matrix, order_statistics
from gyroscope._linalg.distances import squared_distances_to
from gyroscope.rules import weiszfeld
from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point with the smallest sum of distances to the rows. Needs n >= 2f + 1. In federated learning: RFA.

    tolerance: the unit vectors from the result towards the rows have a mean that is at most so long, where rows within
    tolerance * r of the result count as if they were there (see `weiszfeld`), and r is the distance within which the
    nearest n-f rows are from the coordinate-wise median. This is checked, it does not depend on scale, and means that
    the sum of distances is within n * tolerance * (2r + D) of the smallest, if the result is D away from the best
    point. In practice the error is far smaller: Newton's steps speed up Weiszfeld's. Should the search end before that
    (after 1,000 steps, or because rounding stops it), the nearest point found is the result, and a warning says how
    near: an error would let whoever can cause it stop the training.

    Guarantee: where R is the distance of the farthest of h = n-f honest rows from the honest mean, the geometric median
    is within 2h/(h-f) R of it. From a point at a distance D of the mean, all honest rows are at least D - R away, and
    a Byzantine row is nearer by at most D; so its sum of distances exceeds the mean's by at least h(D - 2R) - f D,
    which is positive beyond that bound. How far the Byzantine rows are makes no difference.

    A row that holds a NaN or an infinity (or whose distance float64 cannot square) is the worst outlier and is left
    out; if there are more than f of them the result is NaN. Cost: a median per coordinate, the products of all pairs of
    centred rows, O(n^2 d), and an iteration on the host whose cost does not depend on d. Weights: Weiszfeld's, each
    row's inverse distance from the result, made to add up to 1.

    Who does what: RFA (Pillutla et al.) weighs rows by their number of samples, which a liar would invent; here all
    weigh the same. It stops after a few of Weiszfeld's steps (3 from zero can be 5 % off), and smooths distances below
    a fixed length, here relative to the rows' spread.
    """

    tolerance: float = 1e-6

    name = "geometric-median"
    summary = "the point with the smallest sum of distances to the rows (RFA), to a certified tolerance"
    needs = "n >= 2f + 1"
    paper = "Pillutla et al. 2022"
    promise = "distance"
    lacks: ClassVar = {
        "mean at f = 0": "a median is no mean",
        "asynchronous": "iterates on the host until the tolerance is reached",
    }

    def __post_init__(self) -> None:
        if isinstance(self.tolerance, bool) or not isinstance(self.tolerance, float) or not 0 < self.tolerance < 0.1:
            raise ConfigError(f"GeometricMedian's tolerance must be between 0 and 0.1, got {self.tolerance!r}")

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def reach(self, n: int, f: int) -> float:
        return 2 * (n - f) / (n - 2 * f)

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        n, d = rows.shape
        center = order_statistics.median(rows)
        lengths = squared_distances_to(rows, center).sqrt_()
        (kept,) = lengths.isfinite().nonzero(as_tuple=True)
        if len(kept) < n - f:
            return Aggregate(rows.new_full((d,), torch.nan), None)
        finite = rows if len(kept) == n else rows.index_select(0, kept)
        radius = self.tolerance * float(lengths[kept].sort().values[n - f - 1])
        target = min(weiszfeld.TARGET, self.tolerance)
        shares, excess = weiszfeld.geometric_median(_points(finite, center, lengths[kept]), radius, target)
        if excess > self.tolerance:
            warnings.warn(
                f"the geometric median was reached only to {excess:.1e} instead of the tolerance {self.tolerance:g}: "
                "rounding or the number of steps stopped the search; the nearest point found is taken",
                stacklevel=2,
            )
        share = torch.from_numpy(shares).to(rows.device)
        weight = torch.zeros(n, dtype=torch.float64, device=rows.device).index_copy_(0, kept, share)
        return Aggregate(_weighted(finite, share), weight)


def _points(rows: Tensor, center: Tensor, lengths: Tensor) -> weiszfeld.Array:
    """The rows as points around the center, in as few dimensions as they span, with the same distances.

    From the products of all pairs, of the rows as unit vectors: whatever their lengths, directions stay exact.
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
    on_host: weiszfeld.Array = points.cpu().numpy()
    return on_host


def _weighted(rows: Tensor, shares: Tensor) -> Tensor:
    """The sum of the rows times their shares."""
    vector = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    for columns, block in matrix.blocks(rows):
        vector[columns] = shares @ block
    return vector

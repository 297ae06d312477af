"""The geometric median: the point whose distances to all rows have the smallest sum."""

from __future__ import annotations

import dataclasses
import warnings
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import matrix, order_statistics
from gyroscope._linalg.distances import unit_distances
from gyroscope.rules._spectral import Array
from gyroscope.rules.base import Aggregate, Rule

TARGET = 1e-10
"""The excess at which the search stops, however large the tolerance: it converges fast, so the rest is nearly free."""
_STEPS = 1000
_TOGETHER = 1 << 17
"""Numbers that are computed at once, at most."""


@dataclasses.dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point with the smallest sum of distances to the rows. Needs n >= 2f + 1. In federated learning: RFA.

    tolerance: the largest excess of the result (see `excess_at`), where the radius is tolerance * r, and r the distance
    within which the nearest n-f rows are from the coordinate-wise median. The rule checks this bound, which does not
    depend on scale: the sum of distances is within n * tolerance * (2r + D) of the smallest, if the result is D away
    from the best point. If the search ends before that (after 1,000 steps, or because of rounding), the result is the
    nearest point found, and a warning says how near: with an error, an adversary could stop the training.

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
    aliases = ("gm", "rfa", "geomed")
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
        lengths = matrix.squared_lengths(rows, center).sqrt_()
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
        return Aggregate(matrix.weighted_sum(rows, weight), weight)


def _points(rows: Tensor, center: Tensor, lengths: Tensor) -> Array:
    """Return the rows as points around the center, in as few dimensions as they span, with the same distances.

    They follow from the distances between all pairs of rows as unit vectors, so directions are exact whatever the
    lengths.
    """
    n, d = rows.shape
    if d <= 4 * n:
        points = rows.double() - center.double()
    else:
        away = lengths > 0
        table = unit_distances(rows, torch.where(away, 1 / lengths, 0.0), rows.dtype, center)
        products = (1 - table / 2) * (away & away.unsqueeze(1))
        values, vectors = torch.linalg.eigh(products)
        points = vectors * values.clamp_(min=0).sqrt_() * lengths.unsqueeze(1)
    on_host: Array = points.cpu().numpy()
    return on_host


def geometric_median(points: Array, radius: float, target: float = TARGET) -> tuple[Array, float]:
    """Return each point's weight in the geometric median, which is their weighted mean, and the excess there.

    Half of the points or more should be around zero, where the search begins. It ends if the excess is at most the
    target, or if rounding or the number of steps ends it: then the returned excess is larger.
    """
    best, excess = _among_the_points(points, radius, target)
    if excess <= target:
        return best, excess
    weight, left = _by_steps(points, radius, target)
    return (weight, left) if left <= excess else (best, excess)


def excess_at(points: Array, place: Array, radius: float) -> float:
    """Return how far a place is from being the geometric median: 0 if it is, about 1 far away.

    At a point z that is none of the given ones, the sum's gradient is minus the sum of the unit vectors from z towards
    them. z is the geometric median if that is zero, or if z is one of the points (k copies of it) and the sum over the
    others is at most k long (Kuhn's condition). If points within a small radius of z count as copies, both are one
    condition on the excess: the length of the sum over the points outside the radius, less the number of those inside,
    divided by the number of points.

    If the excess is at most e and the radius is r, no point has a smaller sum of n distances than z by more than
    n (2 r + e D), where D is z's distance from the best point: towards each point outside, a unit vector is a
    subgradient, and towards each one inside, any shorter vector is one to within 2 r.
    """
    return float(_excesses(points, place[None], radius)[0])


def _excesses(points: Array, places: Array, radius: float) -> Array:
    """Return `excess_at` of several places."""
    offsets = points - places[:, None]
    lengths = _lengths(offsets)
    outside = lengths > radius
    offsets *= (outside / np.where(outside, lengths, 1.0))[:, :, None]
    inside = np.count_nonzero(~outside, axis=1)
    return np.asarray((_lengths(offsets.sum(axis=1)) - inside).clip(min=0.0) / len(points))


def _among_the_points(points: Array, radius: float, target: float) -> tuple[Array, float]:
    """Return the weights of the best of the points; optimal ones (two middle values on a line) share equally."""
    some = max(1, _TOGETHER // points.size)
    parts = [_excesses(points, points[start : start + some], radius) for start in range(0, len(points), some)]
    excesses = np.concatenate(parts)
    least = max(target, float(excesses.min()))
    chosen = (excesses <= least).astype(np.float64)
    return chosen / chosen.sum(), float(excesses.min())


def _by_steps(points: Array, radius: float, target: float) -> tuple[Array, float]:
    """Take Newton's steps if they lower the sum, else Weiszfeld's, which always do.

    Within the radius a parabola replaces the distance, so that there is a direction and a curvature everywhere. No
    difference of two sums of distances is taken, in which far points would cost digits.
    """
    place = _mean(points, 1 / np.maximum(_lengths(points), radius))
    for _ in range(_STEPS):
        if excess_at(points, place, radius) <= target:
            break
        offsets = points - place
        step = _newton(offsets, radius)
        if step is None:
            step = _mean(offsets, 1 / np.maximum(_lengths(offsets), radius))
        if not np.any(place + step != place):
            break
        place = place + step
    weight = 1 / np.maximum(_lengths(points - place), radius)
    weight /= weight.sum()
    return weight, excess_at(points, weight @ points, radius)


def _newton(offsets: Array, radius: float) -> Array | None:
    """Return Newton's step for the sum of distances, or a part of it; None if that does not lower the sum enough."""
    lengths = _lengths(offsets)
    inverse = 1 / np.maximum(lengths, radius)
    units = offsets * inverse[:, None]
    pull = units.sum(axis=0)
    outside = lengths > radius
    bent = units[outside] * inverse[outside, None]
    curvature = np.eye(len(pull)) * (1 + 1e-13) * inverse.sum() - bent.T @ units[outside]
    step: Array = np.linalg.solve(curvature, pull)
    for _ in range(5):
        if _change(offsets, lengths, step, radius) <= -0.1 * (pull @ step) < 0:
            return step
        step = step / 4
    return None


def _change(offsets: Array, lengths: Array, step: Array, radius: float) -> float:
    """Return by how much the step changes the smoothed sum of distances."""
    after = _lengths(offsets - step)
    outside = (after > radius) & (lengths > radius)
    # |a - s| - |a| without the cancellation
    far = (step @ step - 2 * (offsets[outside] @ step)) / (after[outside] + lengths[outside])
    near = _smoothed(after[~outside], radius) - _smoothed(lengths[~outside], radius)
    return float(far.sum() + near.sum())


def _smoothed(lengths: Array, radius: float) -> Array:
    """Return a distance, or within the radius the parabola that touches it there."""
    smoothed: Array = np.where(lengths > radius, lengths, (lengths * lengths / radius + radius) / 2)
    return smoothed


def _mean(points: Array, weight: Array) -> Array:
    mean: Array = (weight / weight.sum()) @ points
    return mean


def _lengths(vectors: Array) -> Array:
    """Return the norms along the last axis, without an overflow of their squares."""
    largest = np.abs(vectors).max(axis=-1)
    scale = np.where(largest > 0, largest, 1.0)
    return np.asarray(scale * np.sqrt(np.square(vectors / scale[..., None]).sum(axis=-1)))

"""Find the point with the smallest sum of distances to given points, in a few dimensions, with a certificate.

At a point z that is none of the given ones, the sum's gradient is minus the sum of the unit vectors from z towards
them. z is the geometric median if that is zero, or if z is one of the points (k copies of it) and the sum over the
others is at most k long (Kuhn's condition). If points within a small radius of z count as copies, both are one
condition on the `excess`: the length of the sum over the points outside the radius, less the number of those inside,
divided by the number of points.

If the excess is at most e and the radius is r, no point has a smaller sum of n distances than z by more than
n (2 r + e D), where D is z's distance from the best point: towards each point outside, a unit vector is a subgradient,
and towards each one inside, any shorter vector is one to within 2 r.
"""

from __future__ import annotations

import numpy as np

from gyroscope.rules._spectral import Array

TARGET = 1e-10
"""The excess at which the search stops, however large the tolerance: it converges fast, so the rest is nearly free."""
_STEPS = 1000


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
    """Return how far a place is from being the geometric median: 0 if it is, about 1 far away."""
    offsets = points - place
    lengths = _lengths(offsets)
    outside = lengths > radius
    pull = (offsets[outside] / lengths[outside, None]).sum(axis=0)
    return max(0.0, float(_lengths(pull[None])[0]) - float(np.count_nonzero(~outside))) / len(points)


def _among_the_points(points: Array, radius: float, target: float) -> tuple[Array, float]:
    """Return the weights of the best of the points; optimal ones (two middle values on a line) share equally."""
    excesses = np.array([excess_at(points, point, radius) for point in points])
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
    """Return norms without an overflow of their squares."""
    largest = np.abs(vectors).max(axis=1)
    scale = np.where(largest > 0, largest, 1.0)
    lengths: Array = scale * np.sqrt(np.square(vectors / scale[:, None]).sum(axis=1))
    return lengths

"""Mean shift on a few points: clusters are the points from which a walk uphill in density ends at the same place.

A walk starts at each point and goes to the mean of all points within the bandwidth, until they are the same ones. Ends
are ranked by how many points are within the bandwidth, of equals the lowest starting point first; an end within the
bandwidth of one ranked higher is merged into it. Each point belongs to the nearest of the ends that are left, of
equals to the one ranked higher. The bandwidth is the mean, over all points, of the distance to the (n/2)-th nearest
point, itself included, rounded down.

That is scikit-learn's flat-kernel MeanShift with the bandwidth of its estimate_bandwidth(quantile=0.5), but for the end
of a walk: there it stops at small steps, here when nothing changes any more.
"""

from __future__ import annotations

import numpy as np

from gyroscope.rules.spectral import Array

_SLACK = 1 + 1e-9
"""A point at exactly the bandwidth is within it, whatever rounding says."""
_MOST_STEPS = 300


def clusters(points: Array) -> list[Array]:
    """The point numbers of each cluster: the largest first, of equals the one with the lowest number in it."""
    reach = bandwidth(points) * _SLACK
    ends, crowd = _walk(points, reach)
    ranking = np.argsort(-crowd, kind="stable")
    kept: list[int] = []
    for end in ranking.tolist():
        if not kept or _distances(ends[[end]], ends[kept]).min() > reach:
            kept.append(end)
    labels = _distances(points, ends[kept]).argmin(axis=1)
    found = [(labels == label).nonzero()[0] for label in range(len(kept))]
    return sorted((cluster for cluster in found if len(cluster) > 0), key=lambda cluster: (-len(cluster), cluster[0]))


def bandwidth(points: Array) -> float:
    """How far a walk looks."""
    place = max(1, len(points) // 2) - 1
    return float(np.sort(_distances(points, points), axis=1)[:, place].mean())


def _walk(points: Array, reach: float) -> tuple[Array, Array]:
    """Where the walks from all points end, and how many points are within reach there."""
    near = _distances(points, points) <= reach
    for _ in range(_MOST_STEPS):
        ends = near @ points / near.sum(axis=1, keepdims=True)
        before, near = near, _distances(ends, points) <= reach
        if np.array_equal(near, before):
            break
    return ends, near.sum(axis=1)


def _distances(a: Array, b: Array) -> Array:
    """(len(a), len(b)), between all pairs of points."""
    return np.asarray(np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2)))

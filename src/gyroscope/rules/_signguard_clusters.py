"""Mean shift on a few points, for SignGuard.

A walk starts at each point and moves to the mean of all points within the bandwidth, until these points no longer
change. Ends of walks are ranked by how many points are within the bandwidth, of equals the lowest starting point first;
an end within the bandwidth of one ranked higher is merged into it. Each point belongs to the nearest of the ends that
are left, of equals to the one ranked higher. The bandwidth is the mean, over all points, of the distance to the
(n/2)-th nearest point, itself included, rounded down.

That is scikit-learn's flat-kernel MeanShift with the bandwidth of its estimate_bandwidth(quantile=0.5), except for the
end of a walk: scikit-learn stops at small steps, this function when nothing changes any more.
"""

from __future__ import annotations

import numpy as np

from gyroscope.rules._spectral import Array

_SLACK = 1 + 1e-9
"""A point at exactly the bandwidth is within it, however its distance is rounded."""
_MOST_STEPS = 300


def clusters(points: Array) -> list[Array]:
    """Return the point numbers of each cluster: the largest first, of equals the one with the lowest number in it."""
    radius = bandwidth(points) * _SLACK
    ends, crowd = _walk(points, radius)
    ranking = np.argsort(-crowd, kind="stable")
    kept: list[int] = []
    for end in ranking.tolist():
        if not kept or _distances(ends[[end]], ends[kept]).min() > radius:
            kept.append(end)
    labels = _distances(points, ends[kept]).argmin(axis=1)
    found = [(labels == label).nonzero()[0] for label in range(len(kept))]
    return sorted((cluster for cluster in found if len(cluster) > 0), key=lambda cluster: (-len(cluster), cluster[0]))


def bandwidth(points: Array) -> float:
    """Return how far a walk looks."""
    place = max(1, len(points) // 2) - 1
    return float(np.sort(_distances(points, points), axis=1)[:, place].mean())


def _walk(points: Array, radius: float) -> tuple[Array, Array]:
    """Return where the walks from all points end, and how many points are within the radius there."""
    near = _distances(points, points) <= radius
    for _ in range(_MOST_STEPS):
        ends = near @ points / near.sum(axis=1, keepdims=True)
        before, near = near, _distances(ends, points) <= radius
        if np.array_equal(near, before):
            break
    return ends, near.sum(axis=1)


def _distances(a: Array, b: Array) -> Array:
    """Return (len(a), len(b)): the distances between all pairs of points."""
    return np.asarray(np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2)))

"""SignGuard: rows of usual length whose signs are distributed as most rows' signs are."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import matrix
from gyroscope.rules._spectral import Array
from gyroscope.rules.base import Aggregate, ContextualRule, RuleContext, RuleState, equal_weights
from gyroscope.rules.median import Median

_SLACK = 1 + 1e-9
"""A point at exactly the bandwidth is within it, however its distance is rounded."""
_MOST_STEPS = 300


@dataclasses.dataclass(frozen=True)
class SignGuard(ContextualRule):
    """The mean of rows that pass two filters, each shortened to the median length. Needs n >= 2f + 1.

    Length: a row passes if it is `lower` to `upper` times as long as the median row (of an even number the lower
    middle). Signs: on a random fraction of the coordinates, the numbers of a row's positive, zero and negative values
    are a point in space; mean shift clusters these points, and the largest cluster passes. The rule shortens the rows
    that pass both to the median length and averages them. If no row passes both, a case that the paper does not
    mention, the largest cluster with a row of usual length takes the place of the largest.

    Guarantee: the result is at most as long as the longest honest row, because the median length is. No more: a
    Byzantine row with usual length and usual numbers of signs passes wherever it points, because the positions of the
    signs do not matter. A row with a NaN or an infinity passes neither filter and takes no part in the clustering.

    Cost: two passes over the rows, O(n d), and O(n^2) for the clustering. Weights: equal for the rows that pass, before
    they are shortened. Of clusters of equal size the one with the lowest row number counts as the largest.

    Other implementations: the paper uses scikit-learn's mean shift; `clusters` is the one used here. Of ends of walks
    that are equally crowded, scikit-learn keeps the one with the largest coordinates, `clusters` the one with the
    lowest row number. The authors' code divides each feature by its maximum over the rows before it clusters, this rule
    does not; the code and this rule chose the same set in only 103 of 240 random cases. This is the plain SignGuard,
    without the paper's -Sim and -Dist variants, which compare rows with the last aggregate.
    """

    lower: float = registry.number(0.1, "a number")
    upper: float = registry.number(3.0, "a number")
    fraction: float = registry.number(0.1, "a number above 0 and at most 1", lambda part: 0 < part <= 1)

    name = "signguard"
    summary = "rows of usual length in the largest cluster of sign statistics, shortened to the median length"
    needs = "n >= 2f + 1"
    paper = "Xu et al. 2022"
    fallback = Median
    guarantee = "norm"
    uses: ClassVar = frozenset({"randomness"})
    unsupported: ClassVar = {
        "translation": "lengths and signs are those from the origin",
        "mean at f = 0": "rows are filtered and shortened for any f",
        "asynchronous": "the host finds the clusters",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lower <= 1 <= self.upper:
            raise ConfigError(
                "signguard needs 0 <= lower <= 1 <= upper, so that the median row passes, got "
                f"lower = {self.lower} and upper = {self.upper}"
            )

    def bound_factor(self, n: int, f: int) -> float:
        return 1.0

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        n, d = rows.shape
        lengths = matrix.squared_lengths(rows).sqrt_()
        limit = lengths.sort().values[(n - 1) // 2]
        finite = lengths.isfinite()
        usual = finite & (lengths >= self.lower * limit) & (lengths <= self.upper * limit)
        (places,) = context.draw("signguard", math.ceil(self.fraction * d), d)
        points = np.asarray(matrix.sign_counts(rows, places).cpu().numpy(), dtype=np.float64)
        passing = _passing(points, finite.cpu().numpy().nonzero()[0], usual.cpu().numpy())
        members = torch.from_numpy(passing).to(rows.device)
        weight = equal_weights(rows, members)
        shares = torch.where(lengths > limit, limit / lengths, 1.0).mul_(weight).masked_fill_(weight == 0, 0.0)
        return Aggregate(matrix.weighted_sum(rows, shares), weight), {}


def _passing(points: Array, finite: Array, usual: Array) -> Array:
    """Return the numbers of the rows that pass both filters. Only the points of finite rows are clustered."""
    for cluster in clusters(points[finite]) if len(finite) > 0 else []:
        members = finite[cluster]
        if usual[members].any():
            return members[usual[members]]
    return np.arange(len(usual))  # not even the median length is finite: more than f rows are bad


def clusters(points: Array) -> list[Array]:
    """Return the point numbers of each cluster: the largest first, of equals the one with the lowest number in it.

    This is mean shift. A walk starts at each point and moves to the mean of all points within the bandwidth, until
    these points no longer change. Ends of walks are ranked by how many points are within the bandwidth, of equals the
    lowest starting point first; an end within the bandwidth of one ranked higher is merged into it. Each point belongs
    to the nearest of the ends that are left, of equals to the one ranked higher.

    That is scikit-learn's flat-kernel MeanShift with the bandwidth of its estimate_bandwidth(quantile=0.5), except for
    the end of a walk: scikit-learn stops at small steps, this function when nothing changes any more.
    """
    between = _distances(points, points)
    radius = bandwidth(between) * _SLACK
    ends, crowd = _walk(points, between, radius)
    left = np.argsort(-crowd, kind="stable")
    apart = _distances(ends, ends) > radius
    kept: list[int] = []
    while len(left) > 0:
        kept.append(int(left[0]))
        left = left[apart[left[0], left]]
    labels = _distances(points, ends[kept]).argmin(axis=1)
    found = [(labels == label).nonzero()[0] for label in range(len(kept))]
    return sorted((cluster for cluster in found if len(cluster) > 0), key=lambda cluster: (-len(cluster), cluster[0]))


def bandwidth(between: Array) -> float:
    """Return the mean over all points of the distance to the (n/2)-th nearest point, itself included, rounded down."""
    place = max(1, len(between) // 2) - 1
    return float(np.partition(between, place, axis=1)[:, place].mean())


def _walk(points: Array, between: Array, radius: float) -> tuple[Array, Array]:
    """Return where the walks from all points end, and how many points are within the radius there."""
    near = between <= radius
    for _ in range(_MOST_STEPS):
        ends = near @ points / near.sum(axis=1, keepdims=True)
        before, near = near, _distances(ends, points) <= radius
        if np.array_equal(near, before):
            break
    return ends, near.sum(axis=1)


def _distances(a: Array, b: Array) -> Array:
    """Return (len(a), len(b)): the distances between all pairs of points."""
    squares = np.zeros((len(a), len(b)))
    for x, y in zip(a.T, b.T, strict=True):  # a coordinate at a time: there are three
        squares += (x[:, None] - y) ** 2
    return np.sqrt(squares)

"""Slow, obvious answers for the rules that look at directions: covariances by singular values of the rows themselves,
clusters by trying every threshold. As in `oracles`, an answer lists what is right for each coordinate, or is None where
rounding decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gyroscope.rules import RuleContext

Row = Sequence[float]
Rows = Sequence[Row]
Array = NDArray[Any]

NEAR = 1e-5
"""Relative difference of variances below which rounding may decide."""


def usable(rows: Rows) -> list[int]:
    """Return the rows whose distances to ordinary rows are finite."""
    return [i for i, row in enumerate(rows) if all(abs(value) < 1e150 for value in row)]


def answers(means: list[Array]) -> list[list[float]]:
    """Return, per coordinate, the value of each of the means."""
    return [list(values) for values in zip(*(mean.tolist() for mean in means), strict=True)]


def weighted_mean(rows: Array, weight: Array) -> Array:
    return np.array([math.fsum(column) for column in (rows * (weight / weight.sum())[:, None]).T])


def principal(rows: Array, weight: Array) -> tuple[Array, Array]:
    """Return the weighted covariance's eigenvalues, largest first, and squared deviations along its first axis."""
    center = weighted_mean(rows, weight)
    deviations = rows - center
    _, values, axes = np.linalg.svd(np.sqrt(weight / weight.sum())[:, None] * deviations, full_matrices=False)
    return values**2, (deviations @ axes[0]) ** 2


def turns(variances: Array, rows: Rows, doubt: float) -> bool:
    """Return whether the two largest variances are so near that rounding turns the widest direction.

    How near depends on how exact distances are: in float32 they are good to 1e-7, and better where many values add up.
    """
    exact = len(rows[0]) > 1000 or doubt < 1e-10 * lower_median([max(map(abs, row)) for row in rows])
    return len(variances) > 1 and variances[1] > (1 - (1e-3 if exact else 0.05)) * variances[0]


def smea(rows: Rows, f: int, doubt: float, strict: bool = False, limit: int = 0) -> list[list[float]] | None:
    """The mean of the n-f rows whose covariance has the smallest largest eigenvalue: try all subsets."""
    matrix, size = np.array(rows), len(rows) - f
    found = []
    for subset in itertools.combinations(usable(rows), size):
        part = matrix[list(subset)]
        value = principal(part, np.ones(size))[0][0]
        found.append((value, (1e-13 * np.abs(part).max()) ** 2, np.mean(part, axis=0)))
    best, error, _ = min(found, key=lambda entry: entry[0])
    means = [mean for value, _, mean in found if value <= best * (1 + NEAR) + error]
    if strict and any(np.abs(mean - means[0]).max() > doubt for mean in means):
        return None
    return answers(means)


def caf(rows: Rows, f: int, doubt: float, strict: bool = False) -> list[list[float]] | None:
    """Multiply the weights by 1 - t/max t until at most n-2f is left; return the mean of least variance."""
    matrix, n = np.array(rows), len(rows)
    weight = np.array([1.0 if i in usable(rows) else 0.0 for i in range(n)])
    met = []
    while True:
        left = weight > 0
        variances, deviations = principal(matrix[left], weight[left])
        met.append((variances[0], weighted_mean(matrix[left], weight[left])))
        magnitude = np.abs(matrix[left]).max()
        if f == 0 or variances[0] <= (1e-14 * magnitude) ** 2:
            break
        if turns(variances, rows, doubt):
            return None
        weight[left] *= 1 - deviations / deviations.max()
        weight[weight < 1e-9] = 0.0  # copies of the row that lost all
        if abs(weight.sum() - (n - 2 * f)) < 1e-4:
            return None
        if weight.sum() < n - 2 * f:
            break
    best = min(variance for variance, _ in met)
    return answers([mean for variance, mean in met if variance <= best * (1 + NEAR)])


def dnc(
    rows: Rows,
    f: int,
    doubt: float,
    strict: bool = False,
    iterations: int = 5,
    coordinates: int = 10_000,
    c: float = 1.0,
    robust: bool = False,
    context: RuleContext | None = None,
) -> list[list[float]] | None:
    """On some coordinates, drop the c f rows of largest squared (row - mean) . v; the mean of the others.

    If robust, look at rows that are shortened around the median, on those coordinates, and average such rows.
    """
    matrix, n, d = np.array(rows), len(rows), len(rows[0])
    dropped = math.ceil(c * f)
    draws = (context or RuleContext()).draw("dnc", min(coordinates, d), d, iterations)
    survived = [0] * n
    for _ in range(iterations):
        places = next(draws).tolist() if coordinates < d else list(range(d))
        known = [i for i in usable(matrix[:, places].tolist()) if np.isfinite(matrix[i]).all()]
        known = [i for i in known if not robust or i in usable(rows)]  # the others cannot be shortened: too far off
        part = shortened(matrix[:, places])[known] if robust else matrix[known][:, places]
        variances, deviations = principal(part, np.ones(len(known)))
        scores = dict(zip(known, deviations / max(deviations.max(), 1e-300), strict=True))
        ranking = sorted(range(n), key=lambda i: (scores.get(i, math.inf), i))
        kept, lost = ranking[: n - dropped], ranking[n - dropped :]
        decides = lost and lost[0] in scores and variances[0] > 0
        if decides and (turns(variances, rows, doubt) or scores[lost[0]] - scores[kept[-1]] < 1e-3):
            return None
        for i in kept:
            survived[i] += i in scores
    part = (shortened(matrix) if robust else matrix)[[i for i in range(n) if survived[i] == max(survived)]]
    return None if np.abs(part).max() > 1e30 else answers([np.mean(part, axis=0)])  # all digits are rounding errors


def lower_median(values: list[Any]) -> Any:
    return sorted(values)[(len(values) - 1) // 2]


def shortened(matrix: Array) -> Array:
    """Move each row that is farther from the coordinate-wise median than the median distance to that distance."""
    center = np.sort(matrix, axis=0)[(len(matrix) - 1) // 2]  # NaN comes last
    lengths = [math.hypot(*(row - center)) for row in matrix]
    limit = lower_median([length if math.isfinite(length) else math.inf for length in lengths])
    rows = zip(matrix, lengths, strict=True)
    with np.errstate(invalid="ignore"):  # infinity * 0
        return np.array([center + (row - center) * (limit / length if length > limit else 1) for row, length in rows])


def component(table: dict[tuple[int, int], Any], members: list[int], threshold: Any, size: int) -> list[int] | None:
    """Return the rows that links of at most the threshold connect, if there are that many."""
    for start in members:
        group, waiting = {start}, [start]
        while waiting:
            here = waiting.pop()
            new = {other for other in members if other not in group and table[here, other] <= threshold}
            group |= new
            waiting += new
        if len(group) >= size:
            return sorted(group)
    return None


def around(table: dict[tuple[int, int], Any], members: list[int], threshold: Any, size: int) -> list[int] | None:
    """Return the rows within the threshold of the first row that has so many."""
    near = (sorted(other for other in members if table[row, other] <= threshold) for row in members)
    return next((group for group in near if len(group) >= size), None)


def flame(
    rows: Rows,
    f: int,
    doubt: float,
    strict: bool = False,
    noise: float = 0.0,
    linkage: str = "single",
    context: RuleContext | None = None,
) -> list[list[float]] | None:
    """Link rows by cosine distance until a majority is connected; its mean, clipped to the median length.

    With the linkage "ball", look for the first distance within which some row has n-f rows.
    """
    matrix, n = np.array(rows, dtype=np.longdouble), len(rows)  # which holds the square of a huge value
    known = [i for i in range(n) if np.isfinite(matrix[i]).all()]
    lengths = [np.sqrt((row * row).sum()) if i in known else np.longdouble(math.inf) for i, row in enumerate(matrix)]
    table = {}
    for i, j in itertools.product(known, known):
        if lengths[i] == 0 or lengths[j] == 0:
            table[i, j] = np.longdouble(lengths[i] != lengths[j])
        else:
            table[i, j] = ((matrix[i] / lengths[i] - matrix[j] / lengths[j]) ** 2).sum() / 2
    find, size = (around, n - f) if linkage == "ball" else (component, n // 2 + 1)
    for threshold in sorted(table.values()):
        if find(table, known, threshold, size) is not None:
            break
    group = find(table, known, threshold * (1 + 1e-11), size)  # equal ones, but for rounding, come together
    if find(table, known, threshold * (1 + 1e-8) + 1e-26, size) != group:
        return None
    if strict and find(table, known[::-1], threshold * (1 + 1e-11), size) != group:
        return None
    limit = lower_median(lengths)
    vector = sum(matrix[i] * min(1, limit / lengths[i] if lengths[i] > 0 else 1) for i in group) / len(group)
    if noise > 0:
        draw = torch.randn(len(rows[0]), generator=(context or RuleContext()).generator("flame"), dtype=torch.float64)
        vector = vector + noise * limit * draw.numpy()
    return answers([vector.astype(np.float64)])


class DoubtfulError(Exception):
    """Rounding decides."""


def within(distance: float, radius: float) -> bool:
    """Return whether a distance is at most the radius, or exactly equal."""
    if 1e-12 * radius < abs(distance - radius) < 1e-6 * radius:
        raise DoubtfulError
    return distance <= radius * (1 + 1e-12)


def mean_shift(points: Rows, strict: bool = False) -> list[list[int]]:
    """Cluster by flat-kernel mean shift, one point after the other; the largest first."""
    count = len(points)
    radius = sum(sorted(math.dist(a, b) for b in points)[max(1, count // 2) - 1] for a in points) / count
    ends = []
    for start, point in enumerate(points):
        before, near = None, [i for i in range(count) if within(math.dist(point, points[i]), radius)]
        while near != before:
            end = [math.fsum(values) / len(near) for values in zip(*(points[i] for i in near), strict=True)]
            before, near = near, [i for i in range(count) if within(math.dist(end, points[i]), radius)]
        ends.append((-len(near), start, end))
    kept: list[tuple[int, int, list[float]]] = []
    for end in sorted(ends):
        if not any(within(math.dist(end[2], other[2]), radius) for other in kept):
            kept.append(end)
        elif strict and any(end[0] == other[0] and math.dist(end[2], other[2]) > 1e-9 for other in kept):
            raise DoubtfulError  # the order of the points decides which of two equal ends absorbs the other
    clusters: dict[int, list[int]] = {}
    for i, point in enumerate(points):
        ways = [math.dist(point, end[2]) for end in kept]
        nearest = min(ways)
        if sum(way - nearest <= 1e-9 * (1 + nearest) for way in ways) > 1:
            raise DoubtfulError
        clusters.setdefault(ways.index(nearest), []).append(i)
    found = sorted(clusters.values(), key=lambda cluster: (-len(cluster), cluster[0]))
    if strict and any(len(a) == len(b) for a, b in itertools.pairwise(found)):
        raise DoubtfulError
    return found


def signguard(
    rows: Rows,
    f: int,
    doubt: float,
    strict: bool = False,
    lower: float = 0.1,
    upper: float = 3.0,
    fraction: float = 0.1,
    context: RuleContext | None = None,
) -> list[list[float]] | None:
    """Rows of lower to upper median lengths in the largest cluster of sign statistics; their mean, clipped."""
    d, known = len(rows[0]), usable(rows)
    lengths = [math.hypot(*row) if i in known else math.inf for i, row in enumerate(rows)]
    limit = lower_median(lengths)
    if any(abs(lengths[i] - bound * limit) < 1e-12 * limit for i in known for bound in (lower, upper)):
        return None
    usual = [i for i in known if lower * limit <= lengths[i] <= upper * limit]
    (drawn,) = (context or RuleContext()).draw("signguard", math.ceil(fraction * d), d)
    places = drawn.tolist()
    points = [
        [float(sum(sign(rows[i][j]) for j in places)) for sign in (lambda x: x > 0, lambda x: x == 0, lambda x: x < 0)]
        for i in known
    ]
    try:
        clusters = [[known[place] for place in cluster] for cluster in mean_shift(points, strict)]
    except DoubtfulError:
        return None
    both = next(found for found in ([i for i in cluster if i in usual] for cluster in clusters) if found)
    clipped = [[value * (min(1, limit / lengths[i]) if lengths[i] > 0 else 1) for value in rows[i]] for i in both]
    return answers([np.mean(clipped, axis=0)])


SPECTRAL_ORACLES = {"smea": smea, "caf": caf, "dnc": dnc, "flame": flame, "signguard": signguard}

"""Slow, obvious answers, written from the paper's sentences in plain Python: what the fast code must agree with.

Rows are lists of lists of float (float32 values are exact in them). NaN counts as above +inf when values are put in
order, and a row that holds a NaN or an infinity is infinitely far from every other row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from spectral_oracles import SPECTRAL_ORACLES

Row = Sequence[float]
Rows = Sequence[Row]

DOUBT = 2e-6
"""Relative difference of sums below which rounding may decide: distances of float32 rows are good to 1e-6."""

# --------------------------------------------------------------------------------------------- rules


class Krumming(NamedTuple):
    """Krum's view of the rows: for each the distances that count, and their sum."""

    nearest: list[list[float]]
    scores: list[float]

    def order(self) -> list[int]:
        """Row numbers from the smallest score to the largest, the lowest row number first among equals."""
        return sorted(range(len(self.scores)), key=lambda i: (self.scores[i], i))

    def in_doubt(self, strict: bool = False) -> bool:
        """Whether two scores are so near to each other that rounding, not the rows, would rank them.

        Scores that are equal for certain are ranked by row number, and so in doubt only where `strict` says that row
        numbers should not matter either.
        """
        for i, j in itertools.pairwise(self.order()):
            low, high = self.scores[i], self.scores[j]
            if math.isinf(high) or high - low > DOUBT * high:
                continue
            whole = all(value == round(value) < 1000 for value in (*self.nearest[i], *self.nearest[j]))
            if strict or not (whole or self.nearest[i] == self.nearest[j]):
                return True
        return False


def distance(a: Row, b: Row) -> float:
    """The Euclidean distance between two rows."""
    if not all(map(math.isfinite, (*a, *b))):
        return math.inf
    return math.dist(a, b)


def squared_distance(a: Row, b: Row) -> float:
    """The square of the distance, without a root on the way: exact for small whole numbers."""
    return math.inf if math.isinf(distance(a, b)) else sum((x - y) * (x - y) for x, y in zip(a, b, strict=True))


def krum_scores(rows: Rows, f: int, squared: bool = False, neighbours: str = "n-f-2") -> Krumming:
    """ "The score of g_i is the sum of the distances between g_i and its n-f-2 closest neighbor gradients." """
    n = len(rows)
    count = max(1, n - f - (1 if neighbours == "n-f-1" else 2))
    nearest = []
    scores = []
    for i in range(n):
        others = sorted((distance(rows[i], rows[j]), j) for j in range(n) if j != i)[:count]
        nearest.append([length for length, _ in others])
        scores.append(sum(squared_distance(rows[i], rows[j]) if squared else length for length, j in others))
    return Krumming(nearest, scores)


def mean(rows: Rows) -> list[float]:
    """The arithmetic mean, coordinate by coordinate."""
    return [math.fsum(column) / len(column) for column in zip(*rows, strict=True)]


def krum(rows: Rows, f: int, m: int | str | None = None, **scoring: Any) -> tuple[list[float], list[int]]:
    """The arithmetic mean of the m smallest-scoring gradients, and which ones they are."""
    n = len(rows)
    count = {None: n - f - 2, "n-f": n - f}.get(m, m)
    chosen = krum_scores(rows, f, **scoring).order()[:count]
    return mean([rows[i] for i in chosen]), chosen


def in_order(values: Row) -> list[float]:
    """Sorted, with NaN above +inf."""
    return sorted(values, key=lambda value: (math.isnan(value), 0.0 if math.isnan(value) else value))


def median_of(values: Row, even: str = "lower") -> float:
    """The middle value; of an even number the lower one of both middles, or their mean."""
    ordered = in_order(values)
    n = len(ordered)
    if n % 2 == 1:
        return ordered[n // 2]
    return ordered[n // 2 - 1] if even == "lower" else ordered[n // 2 - 1] / 2 + ordered[n // 2] / 2


def median(rows: Rows, even: str = "lower") -> list[float]:
    """The median of each coordinate."""
    return [median_of(column, even) for column in zip(*rows, strict=True)]


def means_around_median(values: Row, count: int, doubt: float = 0.0) -> list[float]:
    """The mean of the `count` values nearest to the lower median; of two equally near ones the smaller is taken.

    The window grows outward from the median, one value at a time. Where the next values on both sides are equally near
    to within `doubt`, which one a program takes is a matter of rounding: every possible result is returned.
    """
    ordered = in_order(values)
    n, middle = len(ordered), (len(ordered) - 1) // 2
    windows = {(middle, middle)}
    for _ in range(count - 1):
        grown = set()
        for low, high in windows:
            if low == 0:
                grown.add((low, high + 1))
                continue
            if high == n - 1:
                grown.add((low - 1, high))
                continue
            below = ordered[middle] - ordered[low - 1]
            above = math.inf if math.isnan(ordered[high + 1]) else ordered[high + 1] - ordered[middle]
            if below <= above + doubt:
                grown.add((low - 1, high))
            if below > above - doubt and not (doubt == 0.0 and below <= above):
                grown.add((low, high + 1))
        windows = grown
    return [math.fsum(ordered[low : high + 1]) / count for low, high in sorted(windows)]


def trimmed_mean_of(values: Row, f: int) -> float:
    """The mean of the values without the f smallest and the f largest."""
    kept = in_order(values)[f : len(values) - f]
    return math.fsum(kept) / len(kept)


def means_around(values: Row, place: float, count: int, doubt: float) -> list[float]:
    """The mean of the `count` values nearest to a place, where the place itself is known to within `doubt` only.

    They are a run of the values in order. A run is right if no value outside is nearer than one inside; every run that
    is right to within `doubt` gives a possible result.
    """
    ordered = in_order(values)
    distances = [abs(value - place) if math.isfinite(value) else math.inf for value in ordered]
    results = []
    for first in range(len(ordered) - count + 1):
        inside = distances[first : first + count]
        below, above = distances[:first], distances[first + count :]
        if max(inside) <= min([*below, *above], default=math.inf) + doubt and math.isfinite(max(inside)):
            results.append(math.fsum(ordered[first : first + count]) / count)
    return results


def nearest(lengths: Sequence[float], count: int) -> list[int]:
    """The row numbers of the smallest lengths, the lowest row number first among equals."""
    return sorted(range(len(lengths)), key=lambda row: (lengths[row], row))[:count]


def diameter(rows: Rows, subset: Sequence[int]) -> float:
    """The largest distance between two rows of the subset."""
    return max((distance(rows[i], rows[j]) for i, j in itertools.combinations(subset, 2)), default=0.0)


def smallest_diameters(rows: Rows, size: int) -> list[tuple[float, tuple[int, ...]]]:
    """All subsets of that size with their diameters, the smallest first, of equals the lexicographically first."""
    return sorted((diameter(rows, subset), subset) for subset in itertools.combinations(range(len(rows)), size))


def sum_of_distances(rows: Rows, point: Row) -> float:
    return math.fsum(math.dist(row, point) for row in rows)


def pull(rows: Rows, point: Row) -> float:
    """The length of the sum of the unit vectors from a point to the rows elsewhere, less the number of rows there."""
    lengths = [math.dist(row, point) for row in rows]
    sums = [
        math.fsum((value - here) / length for value, length in zip(column, lengths, strict=True) if length > 0)
        for here, column in zip(point, zip(*rows, strict=True), strict=True)
    ]
    return math.hypot(*sums) - lengths.count(0.0)


def geometric_median(rows: Rows, steps: int = 400) -> list[float] | None:
    """argmin of the sum of distances: a row where no force moves it, else where Weiszfeld's steps lead.

    None if several rows are as good, or if that many steps do not lead to an end.
    """
    fixed = {tuple(row) for row in rows if pull(rows, row) <= 1e-9}
    if fixed:
        return list(fixed.pop()) if len(fixed) == 1 else None
    point = min(rows, key=lambda row: sum_of_distances(rows, row))
    point = [value / 2 + other / 2 for value, other in zip(point, mean(rows), strict=True)]
    for _ in range(steps):
        lengths = [math.dist(row, point) for row in rows]
        if 0.0 in lengths:
            return None
        total = math.fsum(1 / length for length in lengths)
        moved = [
            math.fsum(value / length for value, length in zip(column, lengths, strict=True)) / total
            for column in zip(*rows, strict=True)
        ]
        step, point = math.dist(moved, point), moved
        if step <= 1e-9 * sorted(lengths)[len(rows) // 2]:
            return point
    return None


class Selection(NamedTuple):
    """One of Bulyan's iterations: the scores that it looked at and the rows whose mean it takes."""

    krumming: Krumming
    rows: list[int]


def bulyan_selections(
    rows: Rows,
    f: int,
    m: int | None = None,
    rescore: bool = False,
    slack: int = 2,
    **scoring: Any,
) -> list[Selection]:
    """n-2f-slack times: the best m_i = min(m, n-f-2-i) rows by Krum among those left; then the best one leaves.

    With `rescore` the scores are computed anew among the rows left, otherwise once among all rows. There is always at
    least one neighbour in a score and one row in a selection, which matters only with slack = 0.
    """
    n = len(rows)
    m = n - f - 2 if m is None else m
    left = list(range(n))
    among_all = krum_scores(rows, f, **scoring)
    selections = []
    for i in range(n - 2 * f - slack):
        if rescore:
            krumming = krum_scores([rows[row] for row in left], f, **scoring)
        else:
            krumming = Krumming([among_all.nearest[row] for row in left], [among_all.scores[row] for row in left])
        ranking = [left[place] for place in krumming.order()]
        selections.append(Selection(krumming, ranking[: max(1, min(m, n - f - 2 - i))]))
        left.remove(ranking[0])
    return selections


def bulyan_vectors(rows: Rows, f: int, selections: Sequence[Selection], doubt: float = 0.0) -> list[list[float]]:
    """Per coordinate the average of the theta-2f selections closest to their median: all possible results."""
    vectors = [mean([rows[row] for row in selection.rows]) for selection in selections]
    return [means_around_median(column, len(vectors) - 2 * f, doubt) for column in zip(*vectors, strict=True)]


# -------------------------------------------------------------------------------- momentum and theory


def dot(a: Row, b: Row) -> float:
    """The inner product."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def discounted(vectors: Rows, mu: float) -> list[float]:
    """The sum over u = 0..t of mu^(t-u) g_u, for the last t."""
    t = len(vectors) - 1
    return [math.fsum(mu ** (t - u) * value for u, value in enumerate(column)) for column in zip(*vectors, strict=True)]


def kappa(n: int, f: int) -> float:
    """kappa(n, f) as printed under Krum's condition."""
    return n - f + (f * (n - f - 2) + f**2 * (n - f - 1)) / (n - 2 * f - 2)


def variance(rows: Rows) -> float:
    """The estimate of E||G - EG||^2, with ddof = 1."""
    center = mean(rows)
    return math.fsum(math.dist(row, center) ** 2 for row in rows) / (len(rows) - 1)


def ratio(rows: Rows) -> float:
    """The variance-norm ratio: E||G - EG||^2 / ||EG||^2."""
    center = mean(rows)
    return variance(rows) / dot(center, center)


def straightness(means: Rows, u: int, mu: float) -> float:
    """s_u = 2 sum over v < u of mu^(u-v) EG_u . EG_v."""
    return 2 * math.fsum(mu ** (u - v) * dot(means[u], means[v]) for v in range(u))


def omega2(variances: Sequence[float], t: int, mu: float) -> float:
    """Omega_t^2 = sum over u <= t of mu^(2(t-u)) sigma_u^2."""
    return math.fsum(mu ** (2 * (t - u)) * variances[u] for u in range(t + 1))


def lambda2(means: Rows, t: int, mu: float) -> float:
    """Lambda_t^2 = sum over u <= t of mu^(2(t-u)) (lambda_u^2 + s_u)."""
    return math.fsum(mu ** (2 * (t - u)) * (dot(means[u], means[u]) + straightness(means, u, mu)) for u in range(t + 1))


def decreases(means: Rows, variances: Sequence[float], t: int, mu: float) -> tuple[bool, float]:
    """The paper's condition s_t >= mu^2 Lambda_{t-1}^2 (r^w_{t-1} / r^s_t - 1), and by how much it is (not) met."""
    before = lambda2(means, t - 1, mu)
    at_workers = omega2(variances, t - 1, mu) / before
    at_server = variances[t] / dot(means[t], means[t])
    slack = straightness(means, t, mu) - mu**2 * before * (at_workers / at_server - 1)
    return slack >= 0, slack


# ------------------------------------------------------------------------------- by name, for the tables

# A rule in the table has its oracle here: all the results that are right for the rows, per coordinate, or None where
# rounding decides (or, if strict, row numbers). Doubt is the size of a rounding error in this input. The rule's
# parameters are given by name, and where it `uses` any of its RuleContext, that too, as `context`.
Oracle = Callable[..., "list[list[float]] | None"]


def _average(rows: Rows, f: int, doubt: float, strict: bool = False) -> list[list[float]]:
    return [[value] for value in mean(rows)]


def _krum(
    rows: Rows, f: int, doubt: float, strict: bool = False, m: int | str | None = None, **scoring: Any
) -> list[list[float]] | None:
    if krum_scores(rows, f, **scoring).in_doubt(strict):
        return None
    return [[value] for value in krum(rows, f, m, **scoring)[0]]


def _median(rows: Rows, f: int, doubt: float, strict: bool = False, even: str = "lower") -> list[list[float]]:
    return [[value] for value in median(rows, even)]


def _bulyan(rows: Rows, f: int, doubt: float, strict: bool = False, **parameters: Any) -> list[list[float]] | None:
    selections = bulyan_selections(rows, f, **parameters)
    if any(selection.krumming.in_doubt(strict) for selection in selections):
        return None
    exact = parameters.get("m") == 1 and not strict  # then selections are rows, not rounded means
    results = bulyan_vectors(rows, f, selections, 0.0 if exact else doubt)
    return None if strict and any(len(values) > 1 for values in results) else results


def _only(vector: Sequence[float]) -> list[list[float]]:
    return [[value] for value in vector]


def _trimmed_mean(rows: Rows, f: int, doubt: float, strict: bool = False) -> list[list[float]]:
    return _only([trimmed_mean_of(column, f) for column in zip(*rows, strict=True)])


def _phocas(rows: Rows, f: int, doubt: float, strict: bool = False) -> list[list[float]]:
    places = [trimmed_mean_of(column, f) for column in zip(*rows, strict=True)]
    columns = zip(zip(*rows, strict=True), places, strict=True)
    return [means_around(column, place, len(rows) - f, doubt) for column, place in columns]


def _meamed(rows: Rows, f: int, doubt: float, strict: bool = False, even: str = "lower") -> list[list[float]]:
    columns, count = zip(*rows, strict=True), len(rows) - f
    if even == "lower":
        return [means_around_median(column, count, doubt) for column in columns]
    return [means_around(column, median_of(column, even), count, doubt) for column in columns]


def _best(rows: Rows, lengths: Sequence[float], count: int, strict: bool) -> list[list[float]] | None:
    """Return the mean of the rows of smallest length, or None if rounding decides which these are."""
    chosen = nearest(lengths, count)
    if count < len(rows):
        last, following = sorted(lengths)[count - 1 : count + 1]
        if following - last <= DOUBT * following and (strict or following != last):
            return None
    return _only(mean([rows[row] for row in chosen]))


def _monna(rows: Rows, f: int, doubt: float, strict: bool = False, pivot: int = 0) -> list[list[float]] | None:
    return _best(rows, [distance(row, rows[pivot]) for row in rows], len(rows) - f, strict)


def _cge(rows: Rows, f: int, doubt: float, strict: bool = False) -> list[list[float]] | None:
    return _best(rows, [distance(row, [0.0] * len(row)) for row in rows], len(rows) - f, strict)


def _aksel(rows: Rows, f: int, doubt: float, strict: bool = False, keep: str = "half") -> list[list[float]] | None:
    middle = median(rows)
    n = len(rows)
    return _best(rows, [distance(row, middle) for row in rows], (n + 1) // 2 if keep == "half" else n - f, strict)


def _mda(rows: Rows, f: int, doubt: float, strict: bool = False, limit: int = 0) -> list[list[float]] | None:
    (first, chosen), *others = smallest_diameters(rows, len(rows) - f)
    if others and others[0][0] - first <= DOUBT * others[0][0] and (strict or others[0][0] != first):
        return None
    return _only(mean([rows[row] for row in chosen]))


def _geometric_median(
    rows: Rows, f: int, doubt: float, strict: bool = False, tolerance: float = 0.0
) -> list[list[float]] | None:
    finite = [row for row in rows if math.hypot(*row) < 1e154]  # of others float64 cannot square the distances
    vector = geometric_median(finite)
    return None if vector is None else _only(vector)


RULE_ORACLES: dict[str, Oracle] = {
    "average": _average,
    "krum": _krum,
    "median": _median,
    "bulyan": _bulyan,
    "trimmed-mean": _trimmed_mean,
    "phocas": _phocas,
    "meamed": _meamed,
    "geometric-median": _geometric_median,
    "mda": _mda,
    "monna": _monna,
    "cge": _cge,
    "aksel": _aksel,
    **SPECTRAL_ORACLES,
}

# How far off a rule or oracle that stops before the last digit may be, for honest values of at most 1.
RULE_PRECISION: dict[str, float] = {"geometric-median": 2e-6}

# Attacks have theirs in tests/attacks/attack_oracles.py.

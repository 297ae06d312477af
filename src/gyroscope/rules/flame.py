"""FLAME: the majority that points the same way, shortened to the median length."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import matrix
from gyroscope._linalg.distances import unit_distances
from gyroscope.rules._spectral import Array, table_of
from gyroscope.rules.base import Aggregate, ContextualRule, RuleContext, RuleState, equal_weights
from gyroscope.rules.median import Median

_TINY = 1e-280
"""A squared length below this has lost digits, or all of them."""


@dataclasses.dataclass(frozen=True)
class FLAME(ContextualRule):
    """The mean of the majority nearest in direction, each row shortened to the median length. Needs n >= 2f + 1.

    Rows whose cosine distance (1 - cosine of the angle) is at most t are linked. With the smallest t at which more than
    half of all rows are connected, directly or through others, the rule admits these rows. It shortens admitted rows
    longer than the median length of all rows (of an even number the lower middle) to that length, and averages. With
    `noise`, it adds normal noise to each coordinate, with a standard deviation of `noise` times the median length (the
    paper's lambda).

    linkage: "single", the default, is the paper's, described above. An adversary steers it: the attack `chain` links
        honest rows to the opposite of their mean through Byzantine rows, each near the next. With "ball", the rule
        admits the rows within the smallest cosine distance of one row, the centre, within which n-f rows are. A link
        through others is of no use there: every admitted row is near the centre itself.

    Guarantee: without noise the result is at most as long as the longest honest row, because the median length is. It
    may point anywhere. With "ball" it points where honest rows do, if these agree: let t be the largest angle between
    two honest rows. All n-f honest rows are within t of each of them, so the ball's angle is at most t. One of its n-f
    rows is honest, so the centre is within t of an honest row, and every admitted row within 3t of every honest row. If
    t is below 30 degrees, the result thus has a positive inner product with every honest row, and with their mean.
    Nothing is proven if honest directions differ more, as gradients of small batches do: with n = 2f + 1, f rows that
    agree and one honest row can then be the ball.

    A row with a NaN or an infinity has no direction; it is infinitely far from all others and infinitely long. A row of
    zeros is at the cosine distance 1 from all rows except other zeros.

    Cost: n(n-1)/2 distances, O(n^2 d). Weights: equal for the admitted rows, before they are shortened.

    Other implementations: the paper runs HDBSCAN with clusters of at least n/2 + 1 and min_samples = 1, one cluster
    allowed. As two such clusters cannot exist, it returns the component of this definition, as long as no distances are
    equal. The paper clusters models, here updates are clustered; it always adds noise, here it is off by default.
    """

    noise: float = registry.number(0.0, "a number of at least 0", lambda noise: noise >= 0)
    linkage: Literal["single", "ball"] = registry.choice("single", ("single", "ball"))

    name = "flame"
    summary = "the mean of the majority nearest in direction, shortened to the median length; noise is optional"
    needs = "n >= 2f + 1"
    paper = "Nguyen et al. 2022"
    fallback = Median
    guarantee = "norm"
    uses: ClassVar = frozenset({"randomness"})
    unsupported: ClassVar = {
        "translation": "lengths and directions are those from the origin",
        "mean at f = 0": "a bare majority is admitted, and long rows are shortened",
        "asynchronous": "the host finds the majority",
    }

    def bound_factor(self, n: int, f: int) -> float:
        return 1.0

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        n, d = rows.shape
        directions = _Directions(rows)
        admitted, size = (ball, n - f) if self.linkage == "ball" else (majority, n // 2 + 1)
        members = torch.from_numpy(admitted(directions.cosine_distances(), size, directions.equal)).to(rows.device)
        weight = equal_weights(rows, members)
        limit = directions.lengths.sort().values[(n - 1) // 2]
        vector = directions.mean(directions.lengths.clamp(max=limit), weight)
        if self.noise > 0:
            draw = torch.randn(d, generator=context.generator("flame"), dtype=torch.float64)
            vector = (vector + self.noise * limit * draw.to(rows.device)).to(rows.dtype)
        if limit < math.inf:  # no value is larger than an honest length, but rounding may take it past the last number
            largest = torch.finfo(rows.dtype).max
            vector.clamp_(-largest, largest)
        return Aggregate(vector, weight), {}


class _Directions:
    """Rows as lengths and unit vectors. However long a finite row is, its direction is known.

    Lengths are float64; unit vectors have the precision of the rows, and at least float32's.
    """

    def __init__(self, rows: Tensor) -> None:
        self.dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
        squares, scale = matrix.squared_lengths(rows), torch.ones(len(rows), dtype=torch.float64, device=rows.device)
        if self.dtype == torch.float64 and bool((squares.isinf() | (squares < _TINY)).any()):
            # Of float64 values, squares may overflow or vanish.
            largest = torch.maximum(rows.amax(dim=1).abs(), rows.amin(dim=1).abs())
            scale = torch.where((largest > 0) & (largest < torch.inf), largest, 1.0)
            rows = rows / scale.unsqueeze(1)
            squares = matrix.squared_lengths(rows)
        self.rows, self.roots = rows, squares.sqrt_()
        self.lengths = (self.roots * scale).nan_to_num_(nan=torch.inf, posinf=torch.inf)
        """(n,): inf for a row that is not finite, or whose length overflows."""
        self.same = 8 * torch.finfo(self.dtype).eps ** 2
        """Squared distances of unit vectors below this are rounding errors: the rows point the same way."""
        self.equal = 1 + (1e-6 if self.dtype == torch.float32 else 1e-11)
        """Distances whose quotient is less are equal."""

    def mean(self, lengths: Tensor, weight: Tensor) -> Tensor:
        """Return the mean of the rows, brought to these lengths, with the given weights."""
        factors = lengths / torch.where(self.roots > 0, self.roots, 1.0) * weight
        return matrix.weighted_sum(self.rows, factors.masked_fill_(weight == 0, 0.0))

    def cosine_distances(self) -> Array:
        """Return (n, n): 1 - cosine; inf for a row that is not finite."""
        usual = (self.roots > 0) & (self.roots < torch.inf)  # a row of zeros stays zero
        units = unit_distances(self.rows, torch.where(usual, 1 / self.roots, 1.0), self.dtype)
        table = table_of(units) / 2
        table[table < self.same] = 0
        zero = (self.lengths == 0).cpu().numpy()
        table[zero != zero[:, None]] *= 2  # the cosine of a unit vector and zero counts as 0
        return np.asarray(table)


def majority(table: Array, size: int, equal: float = 1.0) -> Array:
    """Return the rows of the first component of at least `size` rows, when rows are linked nearest first.

    Args:
        table: (n, n) distances.
        size: More than half of the rows, so that there is only one such component.
        equal: Links whose lengths have a quotient of at most this are equal, and come together.
    """
    component = np.arange(len(table))
    threshold = np.inf
    for length, first, second in spanning_links(table):
        if length > threshold:
            break
        component[component == component[second]] = component[first]
        if threshold == np.inf and np.bincount(component).max() >= size:
            threshold = length * equal
    return np.asarray((component == np.bincount(component).argmax()).nonzero()[0])


def ball(table: Array, size: int, equal: float = 1.0) -> Array:
    """Return the rows within the smallest distance of one row within which `size` rows are, itself included.

    Of several such rows the lowest is the centre. Distances whose quotient is at most `equal` are equal.
    """
    radii = np.sort(table, axis=1)[:, size - 1]
    centre = int((radii <= radii.min() * equal).argmax())
    return np.asarray((table[centre] <= radii[centre] * equal).nonzero()[0])


def spanning_links(table: Array) -> list[tuple[float, int, int]]:
    """Return the n-1 shortest links that join all rows (a minimum spanning tree), the shortest first."""
    n = len(table)
    nearest, links = np.zeros(n, dtype=np.int64), []
    distance = table[0].copy()
    outside = np.ones(n, dtype=bool)
    outside[0] = False
    for _ in range(n - 1):
        places = outside.nonzero()[0]
        joins = int(places[np.argmin(distance[places])])
        links.append((float(distance[joins]), int(nearest[joins]), joins))
        outside[joins] = False
        closer = table[joins] < distance
        distance[closer], nearest[closer] = table[joins][closer], joins
    return sorted(links)

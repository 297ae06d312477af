"""FLAME: the majority that points the same way, shortened to the median length."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg.distances import squared_distances
from gyroscope.rules import spectral
from gyroscope.rules.base import Aggregate, ContextualRule, RuleContext, RuleState
from gyroscope.rules.median import Median

_COLUMNS = 1 << 16
"""So many at a time: the rows' directions are made in memory that stays in the cache."""


@dataclasses.dataclass(frozen=True)
class FLAME(ContextualRule):
    """The mean of the majority nearest in direction, each row shortened to the median length. Needs n >= 2f + 1.

    Rows whose cosine distance (1 - cosine of the angle) is at most t are linked. The smallest t at which more than half
    of all rows hang together, directly or through others, tells who is admitted. Admitted rows longer than the median
    length of all rows (of an even number the lower middle) are shortened to it, and averaged. With `noise`, normal
    noise is added to each coordinate whose standard deviation is `noise` times the median length (the paper's lambda).

    Guarantee: without noise the result is at most as long as the longest honest row, because the median length is. No
    more: Byzantine rows that point about where honest ones do are admitted, and where honest directions differ much, so
    are others that link them. FLAME was made against backdoors, whose rows are few and alike. A row that holds a NaN or
    an infinity has no direction; it is infinitely far from all others and infinitely long. A row of zeros is at the
    cosine distance 1 from all rows but other zeros.

    Cost: n(n-1)/2 distances, O(n^2 d). Weights: equal for the admitted rows, before they are shortened.

    Who does what: the paper runs HDBSCAN with clusters of at least n/2 + 1 and min_samples = 1, one cluster allowed. As
    two such clusters cannot exist, what it returns is the component of this definition, as long as no distances are
    equal. The paper clusters models, here updates are clustered; it always adds noise, here it is off by default.
    """

    noise: float = 0.0

    name = "flame"
    summary = "the mean of the majority nearest in direction, shortened to the median length; noise is optional"
    needs = "n >= 2f + 1"
    paper = "Nguyen et al. 2022"
    weaker = Median
    promise = "norm"
    uses: ClassVar = frozenset({"randomness"})
    lacks: ClassVar = {
        "translation": "lengths and directions are those from the origin",
        "mean at f = 0": "a bare majority is admitted, and long rows are shortened",
        "asynchronous": "the host finds the majority",
    }

    def __post_init__(self) -> None:
        if isinstance(self.noise, bool) or not isinstance(self.noise, (int, float)) or not 0 <= self.noise < math.inf:
            raise ConfigError(f"FLAME's noise must be a number of at least 0, got {self.noise!r}")

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def reach(self, n: int, f: int) -> float:
        return 1.0

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        n, d = rows.shape
        arrows = _Arrows(rows)
        chosen = majority(arrows.cosine_distances(), n // 2 + 1, arrows.equal)
        weight = spectral.shares_of(n, chosen, rows.device)
        members = weight.nonzero().flatten()
        limit = arrows.lengths.sort().values[(n - 1) // 2]
        unit = limit if 0 < limit < math.inf else torch.ones_like(limit)  # a length need not be a float32 number
        shares = arrows.lengths[members].clamp(max=limit) / unit / len(members)
        vector = torch.cat([shares.to(units.dtype) @ units for units in arrows.units(members)]).double() * unit
        if self.noise > 0:
            draw = torch.randn(d, generator=context.generator("flame"), dtype=torch.float64)
            vector += self.noise * limit * draw.to(rows.device)
        if limit < math.inf:  # no value is larger than an honest length, but rounding may take it past the last number
            largest = torch.finfo(rows.dtype).max
            vector.clamp_(-largest, largest)
        return Aggregate(vector.to(rows.dtype), weight), {}


class _Arrows:
    """Rows as lengths and directions. However long a finite row is, its direction is known.

    Lengths are float64; directions have the precision of the rows, and at least float32's.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
        largest = torch.maximum(rows.amax(dim=1).abs(), rows.amin(dim=1).abs()).to(self.dtype)
        self.scale = torch.where(largest > 0, largest, 1.0)  # so that no square overflows or vanishes
        scaled = (row.to(self.dtype) / by for row, by in zip(rows, self.scale, strict=True))
        roots = torch.stack([torch.linalg.vector_norm(row, dtype=torch.float64) for row in scaled])
        self.roots = torch.where(roots > 0, roots, 1.0).to(self.dtype)
        self.lengths = (roots * largest.double()).nan_to_num_(nan=torch.inf, posinf=torch.inf)
        """(n,): inf for a row that is not finite, or whose length is no number."""
        rounding = torch.finfo(self.dtype).eps
        self.same = 8 * rounding**2
        """Squared distances of unit vectors below this are rounding errors: the rows point the same way."""
        self.equal = 1 + (1e-6 if self.dtype == torch.float32 else 1e-11)
        """Distances whose quotient is less are equal."""

    def units(self, chosen: Tensor | None = None) -> Iterator[Tensor]:
        """(n, d), or the chosen rows of it, in parts one beside the other: at length 1, or 0 where rows are zero."""
        scale, roots = self.scale.unsqueeze(1), self.roots.unsqueeze(1)
        if chosen is not None:
            scale, roots = scale[chosen], roots[chosen]
        for start in range(0, self.rows.shape[1], _COLUMNS):
            block = self.rows[:, start : start + _COLUMNS]
            block = block if chosen is None else block.index_select(0, chosen)
            yield block.to(self.dtype).div(scale).div_(roots)

    def cosine_distances(self) -> spectral.Array:
        """(n, n): 1 - cosine; inf for a row that is not finite."""
        parts = [spectral.table_of(squared_distances(units)) for units in self.units()]
        table = np.sum(parts, axis=0) / 2
        table[table < self.same] = 0
        zero = (self.lengths == 0).cpu().numpy()
        table[zero != zero[:, None]] *= 2  # a unit and nothing: their cosine counts as 0
        return np.asarray(table)


def majority(table: spectral.Array, size: int, equal: float = 1.0) -> spectral.Array:
    """The numbers of the rows in the first component of at least `size` rows, as rows are linked the nearest first.

    Links of equal length come together; equal: the largest quotient of lengths that counts as equal.
    size: more than half of the rows, so that there is one such component only.
    """
    component = np.arange(len(table))
    threshold = np.inf
    for length, first, second in _spanning_links(table):
        if length > threshold:
            break
        component[component == component[second]] = component[first]
        if threshold == np.inf and np.bincount(component).max() >= size:
            threshold = length * equal
    return np.asarray((component == np.bincount(component).argmax()).nonzero()[0])


def _spanning_links(table: spectral.Array) -> list[tuple[float, int, int]]:
    """The n-1 shortest links that join all rows (a minimum spanning tree), the shortest first."""
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

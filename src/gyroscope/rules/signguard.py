"""SignGuard: rows of usual length whose signs are distributed as most rows' signs are."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import blockwise
from gyroscope.rules import meanshift, spectral
from gyroscope.rules.base import Aggregate, ContextualRule, RuleContext, RuleState
from gyroscope.rules.median import Median


@dataclasses.dataclass(frozen=True)
class SignGuard(ContextualRule):
    """The mean of rows that pass two filters, each shortened to the median length. Needs n >= 2f + 1.

    Length: a row passes if it is `lower` to `upper` times as long as the median row (of an even number the lower
    middle). Signs: on a random fraction of the coordinates, how many of a row's values are positive, zero and negative
    is a point in space; these points are clustered by mean shift, and the largest cluster passes. Rows that pass both
    are shortened to the median length and averaged. Where no row passes both, on which the paper is silent, the
    largest cluster that holds a row of usual length takes the place of the largest.

    Guarantee: the result is at most as long as the longest honest row, because the median length is. No more: a
    Byzantine row with usual length and usual numbers of signs passes, wherever it points, and the signs' places do not
    count. A row that holds a NaN or an infinity passes neither filter and has no part in the clustering.

    Cost: two passes over the rows, O(n d), and O(n^2) for the clustering. Weights: equal for those that pass, before
    they are shortened. Of clusters of equal size the one with the lowest row number counts as the largest.

    Who does what: the paper leaves the mean shift to scikit-learn; `meanshift` says what is done here. This is the
    plain SignGuard; the paper's -Sim and -Dist variants, which compare rows with the last aggregate, are not here.
    """

    lower: float = 0.1
    upper: float = 3.0
    fraction: float = 0.1

    name = "signguard"
    summary = "rows of usual length in the largest cluster of sign statistics, shortened to the median length"
    needs = "n >= 2f + 1"
    paper = "Xu et al. 2022"
    weaker = Median
    promise = "norm"
    uses: ClassVar = frozenset({"randomness"})
    lacks: ClassVar = {
        "translation": "lengths and signs are those from the origin",
        "mean at f = 0": "rows are filtered and shortened whatever f is",
        "asynchronous": "the host finds the clusters",
    }

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "fraction"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ConfigError(f"SignGuard's {name} must be a number, got {value!r}")
        if not 0 <= self.lower <= 1 <= self.upper:
            raise ConfigError(
                "SignGuard needs 0 <= lower <= 1 <= upper, so that the median row passes, got "
                f"lower = {self.lower} and upper = {self.upper}"
            )
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"SignGuard's fraction must be above 0 and at most 1, got {self.fraction}")

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def reach(self, n: int, f: int) -> float:
        return 1.0

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        n, d = rows.shape
        lengths = blockwise.squared_lengths(rows).sqrt_()
        limit = lengths.sort().values[(n - 1) // 2]
        finite = lengths.isfinite()
        usual = finite & (lengths >= self.lower * limit) & (lengths <= self.upper * limit)
        places = torch.randperm(d, generator=context.generator("signguard"))[: math.ceil(self.fraction * d)]
        points = sign_counts(rows.index_select(1, places.to(rows.device)))
        passing = _passing(points, finite.cpu().numpy().nonzero()[0], usual.cpu().numpy())
        weight = spectral.shares_of(n, passing, rows.device)
        members = weight.nonzero().flatten()
        shares = torch.where(lengths > limit, limit / lengths, 1.0)[members] / len(members)
        return Aggregate(spectral.weighted_sum(rows, members, shares), weight), {}


def sign_counts(part: Tensor) -> spectral.Array:
    """(n, 3): how many values of each row are positive, zero and negative. Counts, not fractions: they are exact."""
    positive, negative = (part > 0).sum(dim=1), (part < 0).sum(dim=1)
    counts = torch.stack([positive, part.shape[1] - positive - negative, negative], dim=1)
    return np.asarray(counts.cpu().numpy(), dtype=np.float64)


def _passing(points: spectral.Array, finite: spectral.Array, usual: spectral.Array) -> spectral.Array:
    """The numbers of the rows that pass both filters. points: of all rows; only those of finite ones are clustered."""
    for cluster in meanshift.clusters(points[finite]) if len(finite) > 0 else []:
        members = finite[cluster]
        if usual[members].any():
            return members[usual[members]]
    return np.arange(len(usual))  # not even the median length is finite: more than f rows are bad

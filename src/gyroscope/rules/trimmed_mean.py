"""The coordinate-wise trimmed mean."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope._linalg import order_statistics
from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class TrimmedMean(Rule):
    """Per coordinate the mean without the f smallest and the f largest values. Needs n >= 2f + 1.

    Guarantee: every coordinate is within the range of the honest rows. Each value that is left has f smaller and f
    larger values around it; if it is Byzantine, an honest one is among them on each side.

    NaN counts as larger than +inf, so at most f bad values per coordinate are all trimmed. The rule adds up the values
    that are left; subtracting from the sum of all values would let an infinity or a huge value spoil it. Cost: half a
    sort per coordinate, O(n log^2 n d). No worker weights: each coordinate may leave out other workers.

    Other implementations: Yin et al. trim a fraction beta of the values on each side; here it is f/n, as in ByzFL and
    Flower.
    """

    name = "trimmed-mean"
    aliases = ("tm", "cwtm", "trmean", "coordinate-wise-trimmed-mean", "fedtrimmedavg")
    summary = "the mean of each coordinate without its f smallest and f largest values"
    needs = "n >= 2f + 1"
    paper = "Yin et al. 2018"
    reads = "columns"
    guarantee = "range"

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self.aggregate_mixed(rows, None, f)

    def aggregate_mixed(self, rows: Tensor, shares: Tensor | None, f: int) -> Aggregate:
        return Aggregate(order_statistics.trimmed_mean(rows, f, shares), None)

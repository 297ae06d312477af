"""The coordinate-wise trimmed mean."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope._linalg import order_statistics
from gyroscope.rules.base import Aggregate, Rule


@dataclasses.dataclass(frozen=True)
class TrimmedMean(Rule):
    """Per coordinate the mean without the f smallest and the f largest values. Needs n >= 2f + 1.

    Guarantee: every coordinate lies within the range of the honest rows. Of f Byzantine values each that is left has f
    larger and f smaller ones around it, an honest one among them on each side.

    NaN counts as larger than +inf, so at most f bad values per coordinate are all trimmed. The values left are added
    up; nothing is subtracted from a sum of all, which an infinity or a huge value would spoil. Cost: half a sort per
    coordinate, O(n log^2 n d). No worker weights: each coordinate may leave out other workers.

    Who does what: Yin et al. trim a share beta of the values on each side; here that is f/n, as in ByzFL and Flower.
    """

    name = "trimmed-mean"
    summary = "the mean of each coordinate without its f smallest and f largest values"
    needs = "n >= 2f + 1"
    paper = "Yin et al. 2018"
    reads = "columns"
    promise = "range"

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return Aggregate(order_statistics.trimmed_mean(rows, f), None)

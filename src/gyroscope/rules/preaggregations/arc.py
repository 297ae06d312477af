"""Adaptive robust clipping: shorten the longest rows to the length of the next one."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch import Tensor

from gyroscope._linalg import matrix
from gyroscope.rules.base import RuleContext
from gyroscope.rules.composition import Preaggregation, Prepared
from gyroscope.rules.preaggregations.clip import shortened


@dataclasses.dataclass(frozen=True)
class ARC(Preaggregation):
    """Shorten the k = floor(2 f/n (n-f)) longest rows to the length of the next one. Needs n >= 2f + 1.

    Guarantee (Allouah et al. 2024): no returned row is longer than the longest honest one, and the guarantee that the
    rule behind it gives for honest rows still holds, unlike with a norm fixed in advance. k is at least f, so Byzantine
    rows set the length only if they are shorter than honest ones.

    A row with a NaN or an infinity is the longest of all; it has no direction to keep and becomes zero, so with at most
    f of those all returned rows are finite. With f = 0 nothing is clipped. Cost: two passes over the rows. A worker's
    weight is that of its clipped row.
    """

    name = "arc"
    aliases = ("adaptive-robust-clipping",)
    summary = "the floor(2 f/n (n-f)) longest rows are shortened to the length of the next one"
    needs = "n >= 2f + 1"
    paper = "Allouah et al. 2024"
    returns_finite = True
    unsupported: ClassVar = {"translation": "lengths are measured from the origin"}

    def min_workers(self, f: int, rows_needed: int = 1) -> int:
        return max(2 * f + 1, rows_needed)

    def prepare(self, rows: Tensor, f: int, context: RuleContext) -> Prepared:
        n = rows.shape[0]
        lengths = matrix.squared_lengths(rows).sqrt_()
        k = 2 * f * (n - f) // n
        next_longest = lengths.sort(descending=True).values[k]
        return shortened(rows, lengths, next_longest.expand(n))

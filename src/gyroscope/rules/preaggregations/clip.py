"""Static clipping: no row is longer than a given norm."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import matrix
from gyroscope.rules.base import RuleContext
from gyroscope.rules.composition import Preaggregation, Prepared


@dataclasses.dataclass(frozen=True)
class Clip(Preaggregation):
    """Shorten rows longer than `norm` to it; leave the others as they are. Any f < n.

    Guarantee: all returned rows are finite and no longer than `norm`, so even with the average behind it, f rows move
    the result by no more than 2 f norm / n. A row with a NaN or an infinity has no direction to keep and becomes zero;
    a row of 3e38 is shortened as any other. Cost: two passes over the rows. A worker's weight is that of its clipped
    row.

    Honest rows longer than `norm` are shortened, too: choose it above their usual length, or let `arc` choose. The
    configuration's `clip` is something else: there honest workers clip their own gradients, before momentum; here the
    server clips the rows that it receives.
    """

    norm: float = registry.positive(1.0)

    name = "clip"
    aliases = ("clipping", "static-clipping")
    summary = "rows longer than `norm` are shortened to it"
    needs = "n >= f + 1"
    returns_finite = True
    unsupported: ClassVar = {
        "translation": "lengths are measured from the origin",
        "scale": "the norm is an absolute length",
        "mean at f = 0": "long rows are shortened for any f",
        "ties": "equal rows may all be too long",
    }

    def prepare(self, rows: Tensor, f: int, context: RuleContext) -> Prepared:
        lengths = matrix.squared_lengths(rows).sqrt_()
        return shortened(rows, lengths, torch.full_like(lengths, float(self.norm)))


def shortened(rows: Tensor, lengths: Tensor, limit: Tensor) -> Prepared:
    """Return the rows, none longer than the limit, each its own worker's; zeros for a row of infinite length."""
    factors = torch.where(lengths > limit, limit / lengths, torch.ones_like(lengths))
    own = torch.eye(len(rows), dtype=torch.float64, device=rows.device)
    return Prepared(matrix.scaled(rows, factors.masked_fill(lengths.isinf(), 0.0)), own)

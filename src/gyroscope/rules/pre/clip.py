"""Static clipping: no row is longer than a given norm."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import blockwise
from gyroscope.rules.base import Property, RuleContext
from gyroscope.rules.composition import Preaggregation, Prepared, own_shares


@dataclasses.dataclass(frozen=True)
class Clip(Preaggregation):
    """Rows longer than `norm` are shortened to it; the others stay as they are. Any f < n.

    Guarantee: whatever comes in, what goes on is finite and no longer than `norm`: even with the average behind it, f
    rows move the result by no more than 2 f norm / n. A row that holds a NaN or an infinity has no direction that could
    be kept, and becomes zero; a row of 3e38 is shortened as any other. Cost: two passes over the rows. A worker's
    weight is that of its clipped row.

    Honest rows longer than `norm` are shortened, too: choose it above their usual length, or let `arc` choose. The
    configuration's `clip` is something else: there honest workers clip their own gradients, before momentum; here the
    server clips what it is sent.
    """

    norm: float = 1.0

    name = "clip"
    summary = "rows longer than `norm` are shortened to it"
    needs = "n >= f + 1"
    paper = "-"
    cures = True
    lacks: ClassVar[Mapping[Property, str]] = {
        "translation": "lengths are measured from the origin",
        "scale": "the norm is an absolute length",
        "mean at f = 0": "long rows are shortened whatever f is",
        "ties": "equal rows may all be too long",
    }

    def __post_init__(self) -> None:
        number = isinstance(self.norm, (int, float)) and not isinstance(self.norm, bool)
        if not number or not 0 < self.norm < math.inf:
            raise ConfigError(f"Clip's norm must be a positive, finite number, got {self.norm!r}")

    def prepare(self, rows: Tensor, f: int, context: RuleContext) -> Prepared:
        lengths = blockwise.squared_lengths(rows).sqrt_()
        limit = torch.full_like(lengths, float(self.norm))
        return Prepared(shortened(rows, lengths, limit), own_shares(rows))


def shortened(rows: Tensor, lengths: Tensor, limit: Tensor) -> Tensor:
    """The rows, none longer than the limit; zeros where a row's length is infinite."""
    factors = torch.where(lengths > limit, limit / lengths, torch.ones_like(lengths))
    return blockwise.scaled(rows, factors.masked_fill(lengths.isinf(), 0.0))

"""FLTrust: rows weighted by their agreement with the server's own gradient, and scaled to its length."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._linalg import matrix
from gyroscope.rules.base import Aggregate, ContextualRule, RuleContext, RuleState, trusted_gradient


@dataclasses.dataclass(frozen=True)
class FLTrust(ContextualRule):
    """The mean of the rows at the trusted gradient's length, each weighted by max(0, its cosine with it). Any f < n.

    Guarantee: the result is no longer than the trusted gradient and never points away from it, whatever the workers
    send and however many are Byzantine. So it is as good as the server's samples are representative.

    Needs `context.trusted`: set `trusted` in the configuration (--trusted 100). A row with a NaN or an infinity, and a
    row of zeros, has no direction and gets no weight. If no row agrees with the trusted gradient, the result is the
    trusted gradient, and all weights are zero. Cost: two passes over the rows, besides the trusted gradient. The rule
    does not use f. Weights: each worker's trust score, divided by their sum.

    Other implementations: in the paper workers send the change after many local steps, and the server makes as many;
    here both are gradients (or accumulated ones, with momentum at the workers).
    """

    name = "fltrust"
    summary = "rows brought to the length of the server's own gradient, weighted by their cosine with it"
    needs = "n >= f + 1"
    paper = "Cao et al. 2021"
    uses = frozenset({"trusted"})
    unsupported: ClassVar = {
        "translation": "angles are measured at the origin",
        "mean at f = 0": "rows are weighted by their agreement with the trusted gradient for any f",
    }

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        trusted = trusted_gradient(self, rows, context)
        length = matrix.squared_lengths(trusted.unsqueeze(0)).sqrt_()
        squares, products = matrix.squared_lengths_and_products(rows, trusted)
        lengths = squares.sqrt_()
        usable = lengths.isfinite() & (lengths > 0) & (length > 0)
        cosines = products / (lengths * length)
        scores = cosines.clamp_min(0.0).masked_fill(~usable, 0.0)
        total = scores.sum()
        weight = torch.where(total > 0, scores / total, torch.zeros_like(scores))
        vector = matrix.weighted_sum(rows, (weight * (length / lengths)).masked_fill(~usable, 0.0))
        return Aggregate(torch.where(total > 0, vector, trusted.to(rows.dtype)), weight), {}

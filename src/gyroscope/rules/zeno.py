"""Zeno: the rows that are expected to make most progress on samples of the server's own."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import matrix
from gyroscope.rules._selected_mean import mean_of_best
from gyroscope.rules.base import Aggregate, ContextualRule, RuleContext, RuleState, trusted_gradient


@dataclasses.dataclass(frozen=True)
class Zeno(ContextualRule):
    """The mean of the n-f rows of highest score <g, x> - rho |x|^2, where g is the trusted gradient. Any f < n.

    Guarantee: one honest worker is enough; the rule needs no honest majority. Every row that is taken scores at least
    as high as the worst honest one, that is, it descends on the server's samples about as well. So the result is as
    good as those samples are representative. No row longer than |g| / rho scores above zero, wherever it points.

    Needs `context.trusted`: set `trusted` in the configuration (--trusted 100). A row with a NaN or an infinity has the
    lowest score. Cost: two passes over the rows, besides the trusted gradient. Weights: 1/(n-f) for the chosen rows.
    Ties go to the lowest row number.

    Other implementations: the paper's score is the decrease of the loss itself, F(w) - F(w - lr x) - rho' |x|^2, which
    costs a loss per worker; this is its first-order approximation, as in Zeno++, divided by the learning rate
    (rho = rho' / lr; the paper's experiments have 0.005).
    """

    rho: float = registry.positive(0.005)

    name = "zeno"
    summary = "the mean of the n-f rows that most agree with the server's own gradient, long ones penalised"
    needs = "n >= f + 1"
    paper = "Xie et al. 2019"
    uses = frozenset({"trusted"})
    unsupported: ClassVar = {"translation": "products and lengths are measured from the origin"}

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        trusted = trusted_gradient(self, rows, context)
        squares, products = matrix.squared_lengths_and_products(rows, trusted)
        costs = self.rho * squares - products
        return mean_of_best(rows, costs.nan_to_num(nan=torch.inf, posinf=torch.inf), rows.shape[0] - f), {}

"""Zeno: the rows that promise most progress on samples of the server's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import blockwise, matrix
from gyroscope.rules.base import Aggregate, ContextualRule, Property, RuleContext, RuleState, trusted_gradient


@dataclasses.dataclass(frozen=True)
class Zeno(ContextualRule):
    """The mean of the n-f rows of highest score <g, x> - rho |x|^2, g being the trusted gradient. Any f < n.

    Guarantee: a majority of honest workers is not needed, one is enough: every row that is taken scores at least as
    high as the worst honest one, that is, it descends on the server's samples about as well. So the result is as good
    as those samples are representative. No row longer than |g| / rho scores above zero, wherever it points.

    Needs `context.trusted`: set `trusted` in the configuration (--trusted 100). A row that holds a NaN or an infinity
    has the lowest score. Cost: two passes over the rows, besides the trusted gradient. Weights: 1/(n-f) for the chosen.
    Ties go to the lowest row number.

    Who does what: the paper's score is the decrease of the loss itself, F(w) - F(w - lr x) - rho' |x|^2, which takes a
    loss per worker; this is its first order, as in Zeno++, divided by the learning rate (rho = rho' / lr; the paper's
    experiments have 0.005).
    """

    rho: float = 0.005

    name = "zeno"
    summary = "the mean of the n-f rows that most agree with the server's own gradient, long ones penalised"
    needs = "n >= f + 1"
    paper = "Xie et al. 2019"
    uses = frozenset({"trusted"})
    lacks: ClassVar[Mapping[Property, str]] = {"translation": "products and lengths are measured from the origin"}

    def __post_init__(self) -> None:
        number = isinstance(self.rho, (int, float)) and not isinstance(self.rho, bool)
        if not number or not 0 < self.rho < math.inf:
            raise ConfigError(f"Zeno's rho must be a positive, finite number, got {self.rho!r}")

    def min_workers(self, f: int) -> int:
        return f + 1

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        n = rows.shape[0]
        trusted = trusted_gradient(self, rows, context)
        scores = blockwise.products(rows, trusted) - self.rho * blockwise.squared_lengths(rows)
        chosen = scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf).argsort(descending=True, stable=True)[: n - f]
        weight = torch.zeros(n, dtype=torch.float64, device=rows.device).index_fill_(0, chosen, 1 / (n - f))
        return Aggregate(matrix.mean_of(rows, chosen), weight), {}

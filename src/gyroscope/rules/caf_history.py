"""CAF with history: a filter that sees each worker's past beside its row, where a lie that persists adds up."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import distances, matrix
from gyroscope.rules import _spectral
from gyroscope.rules._spectral import Array
from gyroscope.rules.base import Aggregate, ContextualRule, RuleContext, RuleState
from gyroscope.rules.caf import CAF, filtered
from gyroscope.rules.median import Median


@dataclasses.dataclass(frozen=True)
class CAFHistory(ContextualRule):
    """The mean with the weights that CAF gives to rows and histories together. Needs n >= 2f + 1.

    In one round no rule can tell a common deviation of f rows from noise if it is as small as the error of an honest
    mean, and an adversary that repeats it in every round moves the model. Over many rounds honest noise averages out,
    and the deviation does not. So the server keeps a history for each worker, h_i <- memory * h_i + x_i, and filters
    the points (sqrt(present) x_i / s, h_i / t) as `caf` does. The scales s and t are distances: within s (t) half of
    the rows (histories) have n-f rows (histories), themselves included. The result is the mean of the rows x_i with the
    filter's weights. Without a history, in the first round, that is the result of `caf`.

    A filter that looks for little variance prefers rows that are copies of each other, which honest rows are not: with
    almost half of the workers Byzantine, 24 of 51, it would keep nothing else. So points that are nearer to each other
    than points usually are share one vote: point i starts with the weight 1 / (number of points whose squared distance
    from it is at most `near` times the one within which half of the points have half of the points). And of the means
    that the filter passes through it takes the one whose top eigenvalue, divided by the square root of the weight that
    is left, is smallest: `caf`, which does not divide, may end with few rows around copies of an old mean.

    Guarantee: let R be the largest distance of an honest row from the honest mean. An honest row has all n-f honest
    ones within 2 R, and more than half of the rows are honest, so s is at most 2 R. The row with the n-f nearest rows
    has an honest row among them, so it is within s + R of the honest mean. If the result is farther from this row than
    s, the rule returns the result of `caf` for the rows alone. So the result is within 5 R of the honest mean, or
    within the bound of `caf`, whatever the histories hold.

    It is for workers whose data are alike. Where they are strongly unequal, honest workers deviate from each other in
    the same way in every round, too, and the histories mislead the filter: `caf` then loses less (documentation: The
    leaderboard).

    A row with a NaN or an infinity has no weight in its round and leaves its worker's history as it was. Cost: two
    tables of distances, O(n^2 d), and at most 2 n eigenproblems of size n. The state is n vectors. memory: the factor
    with which a history is forgotten in each round; 0.99 remembers some 100 rounds. present: how much the rows of this
    round count, relative to the histories.

    The idea of looking at sums over many rounds is that of SafeGuard (Allen-Zhu et al. 2021), the filter that of CAF.
    """

    memory: float = registry.number(0.99, "a number of at least 0 and below 1", lambda memory: 0 <= memory < 1)
    present: float = registry.positive(0.25)
    near: float = registry.number(0.5, "a number of at least 0 and below 1", lambda near: 0 <= near < 1)

    name = "caf-history"
    summary = "filters rows and each worker's past together along the direction of largest variance"
    needs = "n >= 2f + 1"
    paper = "this project, after Allouah et al. 2025 and Allen-Zhu et al. 2021"
    fallback = Median
    guarantee = "distance"
    uses: ClassVar = frozenset({"state"})
    tracks_workers = True
    unsupported: ClassVar = {"asynchronous": "the host finds the eigenvectors and decides when to stop"}

    def bound_factor(self, n: int, f: int) -> float:
        return max(5.0, CAF().bound_factor(n, f)) if f > 0 else 0.0

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        table = _spectral.table_of(distances.squared_distances(rows))
        past = context.state.get("history")
        weight = of_past = None
        histories = rows.clone() if past is None else torch.add(rows, past, alpha=self.memory)
        if past is not None and f > 0:
            of_past = _spectral.table_of(distances.squared_distances(histories))
            (scale, central), (scale_of_past, _) = (_scale(each, f) for each in (table, of_past))
            both = self.present * table / scale + of_past / scale_of_past
            weight = filtered(both, f, _votes(both, self.near))
            if not _squared_distance(table, central, weight) <= scale * (1 + 1e-9):
                weight = None
        if weight is None:
            weight = filtered(table, f)
        # Rows at finite distances from each other are finite, and need not be read again.
        known = table if past is None and len(rows) > 1 else of_past
        if known is None or not np.isfinite(known).all():
            before = torch.zeros_like(rows) if past is None else past
            histories = torch.where(matrix.finite_rows(histories).unsqueeze(1), histories, before)
        shares = torch.from_numpy(weight).to(rows.device)
        return Aggregate(matrix.weighted_sum(rows, shares), shares), {"history": histories}


def _scale(table: Array, f: int) -> tuple[float, int]:
    """Return the squared distance within which half of the rows have n-f rows, and the row with the nearest ones."""
    within = np.partition(table, len(table) - f - 1, axis=1)[:, len(table) - f - 1]
    scale = float(np.sort(within)[(len(table) - 1) // 2])
    return scale if 0 < scale < math.inf else 1.0, int(np.argmin(within))


def _votes(table: Array, near: float) -> Array:
    """Return (n,): 1 divided by the number of points that are as near as copies, itself included."""
    usual, _ = _scale(table, (len(table) - 1) // 2)
    return np.asarray(1 / np.maximum((table <= near * usual).sum(axis=1), 1))


def _squared_distance(table: Array, row: int, weight: Array) -> float:
    """Return the square of the distance from a row to the mean of all rows with the given weights."""
    used = np.flatnonzero(weight)
    shares = weight[used]
    return float(table[row, used] @ shares - shares @ table[np.ix_(used, used)] @ shares / 2)

"""CAF with history: a filter that sees each worker's past beside its row, where a lie that persists adds up."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import distances
from gyroscope.rules import _spectral
from gyroscope.rules._selected_mean import weighted_sum
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
    the points (sqrt(present) x_i / s, h_i / t) as `caf` does. The scales s and t are distances: the smallest within which some row
    (history) has n-f rows (histories), itself included. The result is the mean of the rows x_i with the filter's
    weights. Without a history, in the first round, that is the result of `caf`.

    Guarantee: `caf` applied to the rows alone gives a point y within r R of the honest mean, where R is the largest
    distance of an honest row from it and r is the `bound_factor` of `caf`. At least n-f rows are within (r + 1) R of
    y. If the result is farther from y than the nearest n-f rows, the rule returns y instead. So the result is within
    (2 r + 1) R of the honest mean, whatever the histories hold.

    A row with a NaN or an infinity has no weight in its round and leaves its worker's history as it was. Cost: two
    tables of distances, O(n^2 d), and at most 2 n eigenproblems of size n. The state is n vectors. memory: the factor
    with which a history is forgotten in each round; 0.99 remembers some 100 rounds. present: how much the rows of this
    round count, relative to the histories.

    The idea of looking at sums over many rounds is that of SafeGuard (Allen-Zhu et al. 2021), the filter that of CAF.
    """

    memory: float = registry.number(0.99, "a number of at least 0 and below 1", lambda memory: 0 <= memory < 1)
    present: float = registry.positive(0.25)

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
        return 2 * CAF().bound_factor(n, f) + 1 if f > 0 else 0.0

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        table = _spectral.table_of(distances.squared_distances(rows))
        alone = filtered(table, f)
        past = context.state.get("history")
        if past is None or f == 0:
            histories, weight = rows.clone(), alone
        else:
            histories = torch.add(rows, past, alpha=self.memory)
            of_past = _spectral.table_of(distances.squared_distances(histories))
            weight = filtered(self.present * _scaled(table, f) + _scaled(of_past, f), f)
            if not _is_near(weight, alone, table, f):
                weight = alone
        finite = histories.isfinite().all(dim=1, keepdim=True)
        kept = torch.where(finite, histories, torch.zeros_like(rows) if past is None else past)
        shares = torch.from_numpy(weight).to(rows.device)
        chosen = shares.nonzero().flatten()
        return Aggregate(weighted_sum(rows, chosen, shares[chosen]), shares), {"history": kept}


def _scaled(table: Array, f: int) -> Array:
    """Return squared distances divided by the smallest one within which some row has n-f rows, itself included."""
    n = len(table)
    within = float(np.partition(table, n - f - 1, axis=1)[:, n - f - 1].min())
    return np.asarray(table / within if 0 < within < math.inf else table)


def _is_near(weight: Array, alone: Array, table: Array, f: int) -> bool:
    """Return whether the mean with the given weights is as near to that of CAF alone as the nearest n-f rows are."""
    left = np.flatnonzero((alone > 0) | (weight > 0))
    some = table[np.ix_(left, left)]
    if not np.isfinite(some).all():
        return False
    change = (weight - alone)[left]
    moved = -change @ some @ change / 2  # the square of the distance between the two means
    own = alone[left] @ some @ alone[left] / 2
    to_mean = np.sort(table[:, alone > 0] @ alone[alone > 0] - own)
    return bool(moved <= to_mean[len(table) - f - 1] * (1 + 1e-9))

"""A placement that changes from round to round: at the workers while that lowers the ratio, else at the server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gyroscope._core import theory
from gyroscope._linalg import distances, matrix, order_statistics
from gyroscope.momentum import RobustAggregator, Update, WorkerMomentum
from gyroscope.rules import Rule


class SwitchingAggregator(RobustAggregator):
    """Use each worker's momentum while the paper's decrease condition holds, and the aggregate's otherwise.

    The server keeps each worker's momentum, so the switch needs no message. The direction D_t is F(m_1, ..., m_n) in
    the one case and mu D_{t-1} + F(g_1, ..., g_n) in the other: `workers` if the condition always holds, `server` if
    it never does.

    The server does not know which workers are honest. In place of the honest mean it uses the median of each column; in
    place of the honest variance, half the median over workers of their median squared distance to the others. With
    fewer than half of the rows Byzantine, each coordinate of the first is between honest ones. For n >= 2f + 2 the
    second is between honest pairs' halved squared distances (at n = 2f + 1 it is at most the largest of them, but f
    rows at the honest mean halve it). So f workers move the estimates no further than honest values reach. That can be
    far enough to move the switch: rows that pull the median the same way in every round look like a straight trajectory
    (docs/beyond/placements.md).
    """

    def __init__(self, rule: Rule | str, f: int, *, mu: float, seed: int, honest: int | None = None) -> None:
        """Begin with the first round.

        Args:
            rule, f, mu, seed: as for `RobustAggregator`.
            honest: how many rows, the first ones, are honest. If given, the condition is computed from those of them
                that are finite, which no server can do: it shows what a server with perfect estimates would do.
        """
        super().__init__(rule, f, momentum="server-kept", mu=mu, seed=seed)
        self.honest = honest
        self.after_rule = WorkerMomentum(mu)
        self.at_workers = True
        """Whether momentum was at the workers in the last round."""
        self._trajectory: theory.Trajectory | None = None

    def step(self, rows: Tensor | Sequence[Tensor], *, trusted: Tensor | None = None) -> Update:
        """Aggregate the rows of one round."""
        assert self.per_worker is not None and self.after_rule is not None
        sent = matrix.check(rows)
        self.at_workers, self._trajectory = self._judge(sent)
        kept = self.per_worker.update(sent)
        shown = kept if self.at_workers else sent
        aggregate, self._rule_state = self._aggregate(shown, self.rule_context(trusted))
        if self.at_workers:
            vector = aggregate.vector
            self.after_rule.load_state_dict({"momentum": vector})
        else:
            vector = self.after_rule.update(aggregate.vector)
        self.rounds += 1
        return Update(vector, aggregate, shown)

    def preview(self, rows: Tensor) -> Tensor:
        """Return the rows that the rule would be given for these, and change nothing."""
        assert self.per_worker is not None
        at_workers, _ = self._judge(rows)
        return self.per_worker.preview(rows) if at_workers else rows

    def _judge(self, rows: Tensor) -> tuple[bool, theory.Trajectory]:
        """Return whether the condition holds in this round, and the trajectory after it.

        Where too few rows are finite for an estimate, the condition does not hold and the trajectory stays as it was.
        """
        if self.honest is None:
            mean, sigma = order_statistics.median(rows), robust_deviation(rows)
        else:
            honest = rows[: self.honest]
            if not bool(matrix.all_finite(honest)):
                honest = honest[honest.isfinite().all(dim=1)]
            mean = honest.mean(dim=0)
            sigma = theory.deviation(honest, mean) if len(honest) > 1 else 0.0
        before = self._trajectory or theory.Trajectory(torch.zeros_like(mean))
        assert self.mu is not None
        curvature, after = theory.advance(before, mean, sigma, self.mu)
        if not math.isfinite(after.omega2 + after.lambda2):
            return False, before
        return curvature.decreases, after

    def state_dict(self) -> dict[str, Any]:
        """Return all that later rounds depend on: tensors and numbers only."""
        assert self.after_rule is not None
        path = self._trajectory
        return {
            **super().state_dict(),
            "direction": self.after_rule.state_dict(),
            "trajectory": {} if path is None else {"past": path.past, "omega2": path.omega2, "lambda2": path.lambda2},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        assert self.after_rule is not None
        super().load_state_dict(state)
        self.after_rule.load_state_dict(state["direction"])
        self._trajectory = theory.Trajectory(**state["trajectory"]) if state["trajectory"] else None


def robust_deviation(rows: Tensor) -> float:
    """Return an estimate of sigma from the median over rows of their median squared distance to the others.

    The squared distance of two honest rows is 2 sigma^2 on average. That of a row that is not finite is infinite.
    """
    n = rows.shape[0]
    if n == 1:
        return 0.0
    gaps = distances.squared_distances(rows)
    gaps.fill_diagonal_(math.inf)  # a row is not among its own neighbours
    medians = gaps.sort(dim=1).values[:, (n - 2) // 2]
    return math.sqrt(float(medians.sort().values[(n - 1) // 2]) / 2)

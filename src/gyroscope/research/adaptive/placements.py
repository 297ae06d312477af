"""A placement that changes from round to round: at the workers while that lowers the ratio, else at the server."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from gyroscope._core import theory
from gyroscope._linalg import order_statistics
from gyroscope._linalg.distances import squared_distances
from gyroscope.momentum.base import State
from gyroscope.momentum.kept import ServerKept


@dataclasses.dataclass(frozen=True)
class Adaptive(ServerKept):
    """Momentum of each worker while the paper's decrease condition holds, and of the aggregate otherwise.

    The server keeps each worker's momentum, so the switch needs no message. The direction D_t is F(m_1, ..., m_n) in
    the one case and mu D_{t-1} + F(g_1, ..., g_n) in the other: `workers` if the condition always holds, `server` if
    it never does.

    The server cannot see who is honest. It judges by the median of each column in place of the honest mean, and by the
    median over workers of their median squared distance to the others, halved, in place of the variance. With fewer
    than half of the rows Byzantine, each coordinate of the first is between honest ones. For n >= 2f + 2 the second is
    between honest pairs' halved squared distances (at n = 2f + 1 it is at most the largest of them, but f rows at the
    honest mean halve it): whatever f workers send moves the switch no further than honest values reach. That can
    be far enough: what pulls the median the same way in every round looks like a straight trajectory
    (docs/beyond/placements.md).
    """

    name = "adaptive"
    summary = "server-kept while the decrease condition holds by robust estimates from all rows, else server"
    paper = "this one's conclusion"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_nesterov()

    def received(self, rows: Tensor, state: State, f: int, honest: int) -> tuple[Tensor, State]:
        shown, kept = self.keep(rows, state)
        mean, sigma = self.judged_by(rows, honest)
        before = _trajectory(state, mean)
        curvature, after = theory.advance(before, mean, sigma, self.mu)
        at_workers = curvature.decreases
        state = {
            **state,
            "kept": kept,
            "past": after.past,
            "sums": torch.tensor([after.omega2, after.lambda2], dtype=torch.float64),
            "at_workers": torch.tensor(at_workers),
        }
        return shown if at_workers else rows, state

    def after(self, vector: Tensor, state: State) -> tuple[Tensor, State]:
        last = state.get("direction")
        if last is None:
            last = torch.zeros_like(vector)
        if self.at_workers(state):
            return vector, {**state, "direction": vector}
        direction, memory = self._accumulate(vector, last)
        return direction, {**state, "direction": memory}

    def at_workers(self, state: State) -> bool:
        return bool(state["at_workers"])

    def judged_by(self, rows: Tensor, honest: int) -> tuple[Tensor, float]:
        """(what stands for the mean of the honest rows, what stands for their deviation)."""
        return order_statistics.median(rows), robust_deviation(rows)


@dataclasses.dataclass(frozen=True)
class AdaptiveOracle(Adaptive):
    """`adaptive` as it would be if the server knew who is honest: what its estimates are estimates of."""

    name = "adaptive-oracle"
    summary = "as adaptive, but judged by the honest rows alone, which no server knows"
    paper = "this one's conclusion"
    one_process = True

    def judged_by(self, rows: Tensor, honest: int) -> tuple[Tensor, float]:
        mean = rows[:honest].mean(dim=0)
        return mean, theory.deviation(rows[:honest], mean) if honest > 1 else 0.0


def robust_deviation(rows: Tensor) -> float:
    """sigma, from the median over rows of their median squared distance to the others.

    Two honest rows are 2 sigma^2 apart on average. Rows that hold NaN or an infinity are infinitely far.
    """
    n = rows.shape[0]
    if n == 1:
        return 0.0
    table = squared_distances(rows)
    table.fill_diagonal_(math.inf)  # a row is not among its own neighbours
    middle = table.sort(dim=1).values[:, (n - 2) // 2]
    return math.sqrt(float(middle.sort().values[(n - 1) // 2]) / 2)


def _trajectory(state: State, like: Tensor) -> theory.Trajectory:
    if "past" not in state:
        return theory.Trajectory(torch.zeros_like(like))
    omega2, lambda2 = state["sums"].tolist()
    return theory.Trajectory(state["past"], omega2, lambda2)

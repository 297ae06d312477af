"""A momentum factor and a learning rate that follow the curvature of the trajectory, as the server sees it.

The paper's conclusion proposes both. Momentum sums up gradients that point the same way, and harms where the trajectory
turns, that is, where the straightness s_t falls. By the paper's last inequality a smaller learning rate raises the
lower bound

    s_t >= sum over u < t of mu^(t-u) (|g_t|^2 + |g_u|^2 - l^2 |theta_t - theta_u|^2)

where l is the gradient's Lipschitz constant. (The paper prints the last norm without its square.)

The server does not know the honest mean g_t, so it estimates it by the median of each column of the rows. Where rows
hold momentum, the estimate is the median minus mu times the last median; where all workers add the same known vector
(`feedback`), it is the median minus that vector. f Byzantine rows move the median no further than honest values reach.

The median is noisy, and noise adds to what is squared: its variance v to |g_t|^2, twice that to |g_t - g_u|^2. The
server subtracts v, estimated as pi/2 * sigma^2 / n with a robust sigma (`switching.robust_deviation`). Without that, l
would be the noise's, and the bound would never be close. All sums are recursions: no window of past gradients is kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gyroscope._core.errors import UnknownNameError
from gyroscope._core.theory import cosine, dot
from gyroscope._linalg import matrix, order_statistics
from gyroscope.research.adaptive.switching import robust_deviation

CurvatureState = Mapping[str, Tensor]
"""Named tensors, for any checkpoint; empty before the first round."""

ADAPTATIONS = ("none", "mu", "lr", "safe-lr", "mu+lr", "mu+safe-lr")

_SHRINK, _GROW, _LEAST = 0.7, 1.02, 0.01
"""The factor by which the learning rate falls, the factor by which it recovers, and its smallest share."""
_ROUNDING = 1e-6
"""The tolerance of the bound: on a straight line s_t equals its bound, and rounding must not count as crossing it."""
_DECAY = 0.9
"""The weight of the past in the moving average of the Lipschitz constant."""


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """The momentum factor and the learning rate of the next step."""

    mu: float
    """The momentum factor."""
    rate: float = 1.0
    """The share of the learning rate that the schedule gives."""


@dataclasses.dataclass(frozen=True)
class CurvatureSchedule:
    """Choose the next step's momentum factor and learning rate from the rows of the steps before.

    The momentum factor is mu * min(1, 1 + c), where c is the cosine of the last gradient and the discounted sum of
    those before it: s_t divided by twice the norms. It equals mu while the trajectory goes straight or sideways, and 0
    when it reverses.

    The learning rate is multiplied by 0.7 after a step that was out of bounds, and recovers by 2 % a step otherwise.
    For `lr`, a step is out of bounds if s_t is below its lower bound, with l estimated from the steps before as a
    moving average of |g_u - g_v| / |theta_u - theta_v|: the curvature has grown. For `safe-lr`, a step is out of bounds
    if the lower bound is below zero: the steps are too large to guarantee a straight trajectory.

    The state is explicit: `observe` takes one and returns the next.
    """

    adapts: str
    mu: float

    def __post_init__(self) -> None:
        if self.adapts not in ADAPTATIONS:
            raise UnknownNameError("adaptation", self.adapts, ADAPTATIONS)

    def hyperparameters(self, state: CurvatureState) -> Hyperparameters:
        """Return what the next step uses."""
        if not state:
            return Hyperparameters(self.mu)
        cosine_, rate = state["chosen"].tolist()
        return Hyperparameters(
            self.mu * min(1.0, 1.0 + cosine_) if "mu" in self.adapts else self.mu, rate if "lr" in self.adapts else 1.0
        )

    def observe(
        self,
        state: CurvatureState,
        rows: Tensor,
        parameters: Tensor,
        mu: float,
        accumulated: bool,
        shared: Tensor | None = None,
    ) -> CurvatureState:
        """Return the state after a round.

        A round whose rows have no finite median, because half of them or more are not finite, changes nothing.

        Args:
            state: what the round before returned.
            rows: (n, d), the rows that arrived.
            parameters: (d,), the model at which they were computed.
            mu: the momentum factor of the round.
            accumulated: whether the rows hold momentum already.
            shared: (d,), that momentum, where all rows hold the same.
        """
        if self.adapts == "none":
            return {}
        median, spread = order_statistics.median(rows), robust_deviation(rows) ** 2
        if not math.isfinite(spread) or not bool(matrix.all_finite(median)):
            return state
        if shared is not None:  # the median moves along with its rows, and their spread stays the same
            median, accumulated = median - shared, False
        if not state:
            return _begin(median, spread, parameters, len(rows))
        gradient = torch.sub(median, state["median"], alpha=mu) if accumulated else median
        position = parameters - state["start"]
        count, norms, positions, lipschitz, norm2, spread_before = state["sums"].tolist()
        noise = _noise(max(0.0, spread - mu**2 * spread_before) if accumulated else spread, len(rows))
        count, norms = mu * (count + 1), mu * (norms + norm2)
        norm2 = max(0.0, dot(gradient, gradient) - noise)
        positions = mu * (positions + dot(state["position"], state["position"]))
        past_gradients = (state["past_gradients"] + state["gradient"]).mul_(mu)
        past_positions = (state["past_positions"] + state["position"]).mul_(mu)

        straightness = 2 * dot(gradient, past_gradients)
        moved = count * dot(position, position) - 2 * dot(position, past_positions) + positions
        lengths = count * norm2 + norms
        bound = lengths - lipschitz**2 * moved - _ROUNDING * lengths
        rate = float(state["chosen"][1])
        out_of_bounds = bound < 0 if "safe" in self.adapts else straightness < bound  # False while l is unknown, NaN
        rate = max(_LEAST, rate * _SHRINK) if out_of_bounds else min(1.0, rate * _GROW)
        angle = cosine(gradient, past_gradients)
        lipschitz = _lipschitz(lipschitz, gradient, position, noise, state)
        return {
            "start": state["start"],
            "median": median,
            "gradient": gradient,
            "position": position,
            "past_gradients": past_gradients,
            "past_positions": past_positions,
            "sums": _numbers(count, norms, positions, lipschitz, norm2, spread),
            "chosen": _numbers(0.0 if math.isnan(angle) else angle, rate),
        }


def _begin(median: Tensor, spread: float, parameters: Tensor, n: int) -> CurvatureState:
    zeros = torch.zeros_like(parameters)
    norm2 = max(0.0, dot(median, median) - _noise(spread, n))
    return {
        "start": parameters.clone(),
        "median": median,
        "gradient": median,
        "position": zeros,
        "past_gradients": zeros,
        "past_positions": zeros,
        "sums": _numbers(0.0, 0.0, 0.0, math.nan, norm2, spread),
        "chosen": _numbers(0.0, 1.0),
    }


def _noise(variance: float, n: int) -> float:
    """Return the variance of the median of n rows: pi/2 times that of their mean, for many normal ones."""
    return math.pi / 2 * variance / n


def _lipschitz(before: float, gradient: Tensor, position: Tensor, noise: float, last: CurvatureState) -> float:
    """Return the moving average; NaN as long as the model has not moved."""
    distance = float(torch.linalg.vector_norm(position - last["position"], dtype=torch.float64))
    change2 = float(torch.linalg.vector_norm(gradient - last["gradient"], dtype=torch.float64)) ** 2
    change = math.sqrt(max(0.0, change2 - 2 * noise))
    if distance == 0 or not math.isfinite(change / distance):
        return before
    return change / distance if math.isnan(before) else _DECAY * before + (1 - _DECAY) * change / distance


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)

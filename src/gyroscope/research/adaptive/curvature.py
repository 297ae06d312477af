"""A momentum factor and a learning rate that follow the curvature of the trajectory, as the server sees it.

The paper's conclusion proposes both: momentum gathers what points the same way, and harms where the trajectory turns,
which is when the straightness s_t falls; and by its last inequality a smaller learning rate raises the lower bound

    s_t >= sum over u < t of mu^(t-u) (|g_t|^2 + |g_u|^2 - l^2 |theta_t - theta_u|^2)

where l is the gradient's Lipschitz constant. (The paper prints the last norm without its square.)

The server does not know the honest mean g_t. It takes the median of each column of the rows; where rows hold momentum,
what the median gained beyond mu times the last one, or beyond what all workers add, where that is the same for all and
the server knows it (`feedback`). f rows of anything move it no further than honest values reach.
The median is noisy, and noise lengthens what is squared: |g_t|^2 by its variance v, |g_t - g_u|^2 by twice that. So v
is taken off, estimated as pi/2 * sigma^2 / n with a robust sigma (`switching`). Without that, l would be the
noise's, and the bound never in danger. All sums are recursions: no window of the past is kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gyroscope._core.errors import UnknownNameError
from gyroscope._core.theory import cosine, dot
from gyroscope._linalg import order_statistics
from gyroscope.research.adaptive.switching import robust_deviation

CurvatureState = Mapping[str, Tensor]

ADAPTATIONS = ("none", "mu", "lr", "safe-lr", "mu+lr", "mu+safe-lr")

_SHRINK, _GROW, _LEAST = 0.7, 1.02, 0.01
"""By what the learning rate falls, by what it recovers, and its smallest share."""
_ROUNDING = 1e-6
"""On a straight line s_t is its own bound: a hair below is not below."""
_MEMORY = 0.9
"""How much of the estimated Lipschitz constant is of the steps before."""


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """For the next step."""

    mu: float
    """The momentum factor."""
    rate: float = 1.0
    """The share of the learning rate that the schedule gives."""


@dataclasses.dataclass(frozen=True)
class CurvatureSchedule:
    """What adapts to the trajectory. CurvatureState in, state out; the state is named tensors, for any checkpoint.

    The momentum factor is mu * min(1, 1 + c), where c is the cosine of the last gradient and the discounted sum of
    those before it: s_t divided by twice the norms. It is whole while the trajectory goes straight or sideways, and
    zero when it turns about.

    The learning rate is multiplied by 0.7 after a step that was out of bounds, and recovers by 2 % a step otherwise.
    For `lr`, out of bounds is an s_t below its lower bound, with l as it was estimated from
    |g_u - g_v| / |theta_u - theta_v| of the steps before (a moving average): the curvature is larger than it was. For
    `safe-lr` it is a lower bound below zero: the steps are too large for a straight trajectory to be certain.
    """

    adapts: str
    mu: float

    def __post_init__(self) -> None:
        if self.adapts not in ADAPTATIONS:
            raise UnknownNameError("adaptation", self.adapts, ADAPTATIONS)

    def hyperparameters(self, state: CurvatureState) -> Hyperparameters:
        if not state:
            return Hyperparameters(self.mu)
        cosine_, rate = state["advice"].tolist()
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
        """After a round: the rows that arrived at these parameters, with this momentum factor.

        accumulated: whether the rows hold momentum already. shared: that momentum, where all rows hold the same.
        """
        if self.adapts == "none":
            return {}
        middle, spread = order_statistics.median(rows), robust_deviation(rows) ** 2
        if shared is not None:  # the median moves along with its rows, and their spread stays what it is
            middle, accumulated = middle - shared, False
        if not state:
            return _begin(middle, spread, parameters, len(rows))
        gradient = torch.sub(middle, state["middle"], alpha=mu) if accumulated else middle
        place = parameters - state["start"]
        count, norms, places, lipschitz, norm2, spread_before = state["sums"].tolist()
        noise = _noise(max(0.0, spread - mu**2 * spread_before) if accumulated else spread, len(rows))
        count, norms = mu * (count + 1), mu * (norms + norm2)
        norm2 = max(0.0, dot(gradient, gradient) - noise)
        places = mu * (places + dot(state["place"], state["place"]))
        past = (state["past"] + state["gradient"]).mul_(mu)
        been = (state["been"] + state["place"]).mul_(mu)

        straightness = 2 * dot(gradient, past)
        moved = count * dot(place, place) - 2 * dot(place, been) + places
        lengths = count * norm2 + norms
        bound = lengths - lipschitz**2 * moved - _ROUNDING * lengths
        rate = float(state["advice"][1])
        out_of_bounds = bound < 0 if "safe" in self.adapts else straightness < bound  # False while l is unknown, NaN
        rate = max(_LEAST, rate * _SHRINK) if out_of_bounds else min(1.0, rate * _GROW)
        angle = cosine(gradient, past)
        return {
            "start": state["start"],
            "middle": middle,
            "gradient": gradient,
            "place": place,
            "past": past,
            "been": been,
            "sums": _numbers(count, norms, places, _lipschitz(lipschitz, gradient, place, noise, state), norm2, spread),
            "advice": _numbers(0.0 if math.isnan(angle) else angle, rate),
        }


def _begin(middle: Tensor, spread: float, parameters: Tensor, n: int) -> CurvatureState:
    nothing = torch.zeros_like(parameters)
    norm2 = max(0.0, dot(middle, middle) - _noise(spread, n))
    return {
        "start": parameters.clone(),
        "middle": middle,
        "gradient": middle,
        "place": nothing,
        "past": nothing,
        "been": nothing,
        "sums": _numbers(0.0, 0.0, 0.0, math.nan, norm2, spread),
        "advice": _numbers(0.0, 1.0),
    }


def _noise(variance: float, n: int) -> float:
    """The variance of the median of n rows: pi/2 times that of their mean, for many normal ones."""
    return math.pi / 2 * variance / n


def _lipschitz(before: float, gradient: Tensor, place: Tensor, noise: float, last: CurvatureState) -> float:
    """The moving average; NaN as long as nothing has moved."""
    way = float(torch.linalg.vector_norm(place - last["place"], dtype=torch.float64))
    change2 = float(torch.linalg.vector_norm(gradient - last["gradient"], dtype=torch.float64)) ** 2
    change = math.sqrt(max(0.0, change2 - 2 * noise))
    if way == 0 or not math.isfinite(change / way):
        return before
    return change / way if math.isnan(before) else _MEMORY * before + (1 - _MEMORY) * change / way


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)

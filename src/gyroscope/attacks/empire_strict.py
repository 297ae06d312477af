"""Fall of empires as its authors wrote it: the inner product with the mean is negative for certain."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.base import Attack, AttackContext, repeat
from gyroscope.attacks.directed import Damage, best_factor


@dataclasses.dataclass(frozen=True)
class EmpireStrict(Attack):
    """Sends -epsilon * mean with epsilon > 0, so <row, mean> = -epsilon * |mean|^2 < 0; epsilon is 1 by default.

    `empire` takes any factor, and with one below 1 its rows still point the right way. The original paper's condition
    is on what comes out: the attack has won where <aggregate, mean> < 0, because then the step goes uphill. So
    `epsilon=auto` searches for the epsilon that makes this product as small as the configured rule lets it become, not
    the one that moves the aggregate furthest. Against the plain average it takes epsilon > (n - f)/f to win; against
    Krum and the median small ones do where the honest rows' deviation is large.
    """

    epsilon: float | Literal["auto"] = 1.0

    name = "empire-strict"
    summary = "-epsilon * mean of the honest rows, epsilon > 0; auto: the aggregate most opposed to the mean"
    paper = "Xie et al. 2019"

    def __post_init__(self) -> None:
        number = isinstance(self.epsilon, (int, float)) and not isinstance(self.epsilon, bool)
        if self.epsilon != "auto" and not (number and 0 < self.epsilon < math.inf):
            raise ConfigError(
                f"the epsilon of {self.name!r} must be positive and finite or 'auto', got {self.epsilon!r}"
            )

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        mean = (context.moments or CachedMoments(honest)).moments.mean
        epsilon = self.epsilon
        if epsilon == "auto":
            epsilon = best_factor(
                honest, torch.zeros_like(mean), -mean, f, context, opposition(honest, mean, f, context)
            )
        return repeat(mean * -epsilon, f)


def opposition(honest: Tensor, mean: Tensor, f: int, context: AttackContext) -> Damage:
    """-<aggregate, mean>/|mean|, as a function of what all f workers send."""
    rows = torch.cat([honest, repeat(mean, f)])
    right = mean if context.preview is None else context.shown(rows)[: len(honest)].mean(dim=0)
    length = torch.linalg.vector_norm(right, dtype=torch.float64).clamp_min(torch.finfo(torch.float64).tiny)
    unit = right.double() / length

    def damage(vector: Tensor) -> float:
        rows[honest.shape[0] :] = vector
        against = -float(torch.dot(context.outcome(rows).double(), unit))
        return math.inf if math.isnan(against) else against

    return damage

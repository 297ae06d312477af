"""Fall of empires as its authors define it: the inner product with the mean is negative for certain."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.base import Attack, AttackContext, repeat
from gyroscope.attacks.directed import best_factor


@dataclasses.dataclass(frozen=True)
class EmpireStrict(Attack):
    """Send -epsilon * mean with epsilon > 0, so <row, mean> = -epsilon * |mean|^2 < 0; epsilon is 1 by default.

    `empire` takes any factor, and with one below 1 its rows still point the right way. The original paper's condition
    is on the aggregate: the attack has won if <aggregate, mean> < 0, because then the step goes uphill. So
    `epsilon=auto` searches for the epsilon that makes this product as small as the configured rule lets it become, not
    the one that moves the aggregate furthest. Against the plain average it takes epsilon > (n - f)/f to win; against
    Krum and the median small ones do if the honest rows' deviation is large.
    """

    epsilon: float | Literal["auto"] = registry.positive(1.0, or_one_of=("auto",))

    name = "empire-strict"
    summary = "-epsilon * mean of the honest rows, epsilon > 0; auto: the aggregate most opposed to the mean"
    paper = "Xie et al. 2019"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        mean = (context.moments or CachedMoments(honest)).moments.mean
        epsilon = self.epsilon
        if epsilon == "auto":
            epsilon = best_factor(honest, torch.zeros_like(mean), -mean, f, context, mean=mean, measure=opposition)
        return repeat(mean * -epsilon, f)


def opposition(output: Tensor, right: Tensor) -> Tensor:
    """Return -<output, right>/|right| for the rule's output, or each of many."""
    length = torch.linalg.vector_norm(right, dtype=torch.float64).clamp_min(torch.finfo(torch.float64).tiny)
    along: Tensor = (output.double() * (right.double() / length)).sum(dim=-1)
    return -along

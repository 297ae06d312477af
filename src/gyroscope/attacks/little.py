"""A little is enough: hide within the honest rows' own deviation."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from gyroscope.attacks.directed import Directed


@dataclasses.dataclass(frozen=True)
class Little(Directed):
    """Sends mean - factor * std, coordinate by coordinate; 1.5 by default, as in the paper's experiments.

    std is the honest rows' standard deviation with ddof = 1 (zero for a single honest row). Others add instead of
    subtracting (a negative factor does that); the attack's original code takes the deviation with ddof = 0 over the
    malicious workers' own gradients. `factor=auto` searches for the factor that does most damage
    to the configured rule.
    """

    factor: float | Literal["auto"] = 1.5

    name = "little"
    summary = "mean - factor * std of the honest rows, within what a rule takes for noise"
    paper = "Baruch et al. 2019"

    def direction(self, honest: Tensor, mean: Tensor) -> Tensor:
        h = honest.shape[0]
        if h == 1:
            return torch.zeros_like(mean)
        # In float64, because squares of float32 values overflow above 1e19 and vanish below 1e-19. By hand in two
        # passes: torch.var(dim=0) is ten times slower on a CPU.
        centred = honest.to(torch.float64) - mean
        return centred.square_().sum(dim=0).div_(h - 1).sqrt_().neg_().to(honest.dtype)

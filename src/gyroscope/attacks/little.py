"""A little is enough: hide within the honest rows' own deviation."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from gyroscope.attacks.directed import Directed
from gyroscope.statistics import Described


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

    def aim(self, honest: Described) -> tuple[Tensor, Tensor]:
        mean, std = honest.moments.mean, honest.moments.std
        assert std is not None
        return mean, torch.zeros_like(mean) if len(honest.rows) == 1 else -std

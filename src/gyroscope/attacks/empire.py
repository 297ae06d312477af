"""Fall of empires: push against the mean, gently enough to pass for an honest row."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.directed import Directed


@dataclasses.dataclass(frozen=True)
class Empire(Directed):
    """Send (1 - factor) * mean; 1.1 by default, as in the paper's experiments.

    Others write it as -tau * mean (inner-product manipulation): the paper's factor 1.1 is tau = 0.1. A factor below 1
    shortens the mean without turning it; `empire-strict` always turns it. `sign=1` is (1 + factor) * mean.
    `factor=auto` searches for the factor that does most damage to the configured rule, with its parameters and all
    that comes before it.
    """

    factor: float | Literal["auto"] = registry.number(1.1, "a finite number", or_one_of=("auto",))

    name = "empire"
    aliases = ("foe", "ipm", "fall-of-empires", "inner-product-manipulation")
    summary = "(1 - factor) * mean of the honest rows: small, and pointing the wrong way"
    paper = "Xie et al. 2019"

    def aim(self, honest: CachedMoments) -> tuple[Tensor, Tensor]:
        mean = honest.moments.mean
        return mean, -mean

"""A little is enough: hide within the honest rows' own deviation."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import InfeasibleError
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.directed import Directed


@dataclasses.dataclass(frozen=True)
class Little(Directed):
    """Send mean - factor * std, coordinate by coordinate; 1.5 by default, as in the paper's experiments.

    std is the honest rows' standard deviation with ddof = 1 (zero for a single honest row). Others add instead of
    subtracting (`sign=1`, or a negative factor); the attack's original code takes the deviation with ddof = 0 over the
    malicious workers' own gradients.

    factor: a number;
        `z`, which the original paper computes from n and f so that the Byzantine rows together with the s most extreme
        honest ones are a majority: Phi^-1((n - f - s)/(n - f)) with s = floor(n/2 + 1) - f. It is 0.36 for n = 51,
        f = 12 and 1.45 for f = 24, and below 0 for very few workers (n = 4, f = 1). There is none if the Byzantine
        workers are a majority already, nor for n = 2;
        `auto`, the one that does most damage to the configured rule, with its parameters and all that comes before it.
    """

    factor: float | Literal["auto", "z"] = registry.number(1.5, "a finite number", or_one_of=("auto", "z"))

    name = "little"
    aliases = ("alie", "lie", "a-little-is-enough")
    summary = "mean - factor * std of the honest rows, within what a rule takes for noise"
    paper = "Baruch et al. 2019"

    def aim(self, honest: CachedMoments) -> tuple[Tensor, Tensor]:
        std, mean = honest.std, honest.moments.mean  # in this order one pass over the rows gives both
        return mean, torch.zeros_like(mean) if len(honest.rows) == 1 else -std

    def number(self, n: int, f: int) -> float:
        return z_factor(n, f) if self.factor == "z" else float(self.factor)

    def check_feasible(self, n: int, f: int) -> None:
        if self.factor == "z":
            z_factor(n, f)


def z_factor(n: int, f: int) -> float:
    """Return how many deviations the Byzantine rows may be away so that, with some honest rows, they are the median."""
    supporters = n // 2 + 1 - f  # so many honest workers must be further away than that
    others = n - f - supporters
    if supporters < 1 or others < 1:
        raise InfeasibleError(
            "little:factor=z exists if the Byzantine workers need some but not all others for a majority; with "
            f"n = {n} and f = {f} they need {max(0, supporters)} of {n - f}: give a factor, such as little:factor=1.5"
        )
    return NormalDist().inv_cdf(others / (n - f))

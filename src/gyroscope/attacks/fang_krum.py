"""Fang's directed deviation against Krum: every coordinate the wrong way, as strongly as Krum accepts."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import distances
from gyroscope.attacks._krum_acceptance import KrumAcceptance
from gyroscope.attacks.base import Attack, AttackContext, repeat, to_unit_scale


@dataclasses.dataclass(frozen=True)
class FangKrum(Attack):
    """Send -lambda * s with s the sign of the honest mean per coordinate, such that Krum chooses it.

    The adversary has full knowledge. The deviation is from a gradient of zero, that is from the model as it was
    broadcast, not from the honest mean. The search starts at the upper bound of the original paper's Theorem 1,
        lambda = sqrt(min_i sum of the squared distances of x_i to its n-f-2 nearest honest rows / ((n-2f-1) d))
                 + max_i |x_i| / sqrt(d),
    (with 1 for n-2f-1 if that is smaller).

    search: `halving`, as published, halves lambda until Krum chooses it, or until it is below `threshold` times the
        bound: then the last one is sent. `largest` goes on from there to the largest that Krum chooses.

    The paper's other f-1 rows differ from the first by a distance of at most epsilon; here epsilon = 0. Krum is the
    configured rule if that is Krum, with its conventions (a Byzantine row must rank first, whatever its m), else the
    original one.
    """

    search: Literal["halving", "largest"] = registry.choice("halving", ("halving", "largest"))
    threshold: float = registry.number(1e-5, "a number between 0 and 1", lambda value: 0 < value < 1)

    name = "fang-krum"
    summary = "-lambda * sign of the mean, with a lambda at which Krum still chooses it"
    paper = "Fang et al. 2020"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        unit, scale = to_unit_scale(honest)
        direction = -unit.mean(dim=0).sign()
        start = upper_bound(unit, f)
        if start == 0 or not bool(direction.any()):  # all honest rows are zero, or their mean is
            return repeat(torch.zeros_like(honest[0]), f)
        krum = KrumAcceptance(unit, torch.zeros_like(direction), direction, f, context)
        length = krum.by_halving(start, self.threshold * start)
        if self.search == "largest" and krum.accepts(length):
            length = krum.largest(length)
        return repeat((length * direction * scale).to(honest.dtype), f)


def upper_bound(honest: Tensor, f: int) -> float:
    """Return Theorem 1's bound on lambda."""
    h, d = honest.shape
    nearest = distances.squared_distances(honest).sort(dim=1).values[:, 1 : max(1, h - 1)]  # itself, then h - 2
    spread = float(nearest.sum(dim=1).min()) / (max(1, h - f - 1) * d)
    longest = float(torch.linalg.vector_norm(honest, dim=1).max())
    return math.sqrt(spread) + longest / math.sqrt(d)

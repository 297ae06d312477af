"""The paper's common core of both attacks: every Byzantine worker sends mean + factor * direction."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from gyroscope.attacks.base import Attack, View, repeat
from gyroscope.errors import ConfigError
from gyroscope.statistics import Described

# Where `auto` looks for its factor: the powers of two from 1/16 to 64, four steps to the octave where attacks have
# their best factors (against Bulyan the damage has several peaks there), then what `best_factor` makes of them.
_COARSE = sorted({2.0**exponent for exponent in range(-4, 7)} | {2.0 ** (step / 4) for step in range(-8, 13)})
_BISECTIONS = 12
_SCAN = 10
_REFINEMENTS = 10


@dataclasses.dataclass(frozen=True)
class Directed(Attack):
    """mean(honest) + factor * direction(honest), the same for all f workers. The factor is a number or `auto`."""

    factor: float | Literal["auto"]

    def __post_init__(self) -> None:
        if self.factor == "auto":
            return
        number = isinstance(self.factor, (int, float)) and not isinstance(self.factor, bool)
        if not number or not math.isfinite(self.factor):
            raise ConfigError(f"the factor of {self.name!r} must be a finite number or 'auto', got {self.factor!r}")

    @abstractmethod
    def aim(self, honest: Described) -> tuple[Tensor, Tensor]:
        """(mean of the honest rows, attack vector a_t), both of shape (d,)."""

    def rows(self, honest: Tensor, f: int, view: View) -> Tensor:
        mean, direction = self.aim(view.honest or Described(honest))
        factor = best_factor(honest, mean, direction, f, view) if self.factor == "auto" else self.factor
        return repeat(torch.add(mean, direction, alpha=factor), f)


def best_factor(honest: Tensor, mean: Tensor, direction: Tensor, f: int, view: View) -> float:
    """The factor that moves the configured rule's output furthest from the honest mean.

    A coarse search; a bisection of the edge beyond which the rule excludes the Byzantine rows and its output no longer
    changes, and a scan just below it, where the damage is often greatest (for Bulyan in a narrow spike); then a
    golden-section search between the neighbours of the best. The best factor *seen* is returned, never a point that
    was only interpolated; of equally good ones, the smallest.
    """
    rows = torch.cat([honest, repeat(mean, f)])
    seen: dict[float, float] = {}

    def damage(factor: float) -> float:
        if factor not in seen:
            rows[honest.shape[0] :] = torch.add(mean, direction, alpha=factor)
            moved = view.outcome(rows)
            distance = float(torch.linalg.vector_norm(moved - mean, dtype=torch.float64))
            seen[factor] = math.inf if math.isnan(distance) else distance
        return seen[factor]

    excluded = damage(_COARSE[-1])
    taken = [factor for factor in _COARSE if damage(factor) != excluded]
    if taken and taken[-1] < _COARSE[-2]:
        last = _COARSE.index(taken[-1])
        low, high = _COARSE[last], _COARSE[last + 1]
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if damage(middle) == excluded else (middle, high)
        start = _COARSE[max(0, last - 1)]
        for step in range(1, _SCAN):
            damage(start + (low - start) * step / _SCAN)
    best = max(seen, key=seen.__getitem__)
    below = max((factor for factor in seen if factor < best), default=best / 2)
    above = min((factor for factor in seen if factor > best), default=best * 2)
    low, high = below, above
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(_REFINEMENTS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if damage(left) >= damage(right):
            high = right
        else:
            low = left
    return max(sorted(seen), key=seen.__getitem__)

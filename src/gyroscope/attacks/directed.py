"""The base class of `little` and `empire`: every Byzantine worker sends mean + factor * direction."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.base import Attack, AttackContext, repeat

# Where `auto` looks for its factor: the powers of two from 1/16 to 64, four steps to the octave where attacks have
# their best factors (against Bulyan the damage has several peaks there), then what `best_factor` adds to them.
_COARSE = sorted({2.0**exponent for exponent in range(-4, 7)} | {2.0 ** (step / 4) for step in range(-8, 13)})
_BISECTIONS = 12
_SCAN = 10
_REFINEMENTS = 10

Damage = Callable[[Tensor], float]


@dataclasses.dataclass(frozen=True)
class Directed(Attack):
    """Send mean(honest) + factor * direction(honest), the same for all f workers. The factor is a number or `auto`.

    sign: -1 as the attack was published, 1 for the opposite direction, `auto` for the one of both that does more
    damage to the configured rule in this round.
    """

    factor: float | str
    sign: Literal[-1, 1, "auto"] = registry.choice(-1, (-1, 1, "auto"))

    @abstractmethod
    def aim(self, honest: CachedMoments) -> tuple[Tensor, Tensor]:
        """Return the mean of the honest rows and the direction, both of shape (d,)."""

    def number(self, n: int, f: int) -> float:
        """Return the factor, if it does not depend on the rows."""
        return float(self.factor)

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        mean, direction = self.aim(context.moments or CachedMoments(honest))
        if self.sign == "auto":
            tried = [self._vector(honest, mean, way, f, context) for way in (direction, -direction)]
            return repeat(max(tried, key=damage_to(honest, mean, f, context)), f)
        return repeat(self._vector(honest, mean, direction if self.sign == -1 else -direction, f, context), f)

    def _vector(self, honest: Tensor, mean: Tensor, direction: Tensor, f: int, context: AttackContext) -> Tensor:
        if self.factor == "auto":
            factor = best_factor(mean, direction, damage_to(honest, mean, f, context))
        else:
            factor = self.number(len(honest) + f, f)
        return torch.add(mean, direction, alpha=factor)


def distance(output: Tensor, right: Tensor) -> Tensor:
    """Return how far the rule's output is from the honest mean."""
    length: Tensor = torch.linalg.vector_norm(output - right, dtype=torch.float64)
    return length


def damage_to(
    honest: Tensor, mean: Tensor, f: int, context: AttackContext, measure: Callable[[Tensor, Tensor], Tensor] = distance
) -> Damage:
    """Return the damage to the configured rule as a function of the row that all f workers send.

    measure: a function of the rule's output and the honest mean. If the server accumulates rows before the rule, the
    honest mean is that of the rows that the rule sees. An output of NaN is the greatest damage.
    """
    rows = torch.cat([honest, repeat(mean, f)])
    right = mean if context.preview is None else context.shown(rows)[: len(honest)].mean(dim=0)

    def damage(vector: Tensor) -> float:
        rows[honest.shape[0] :] = vector
        value = float(measure(context.outcome(rows), right))
        return math.inf if math.isnan(value) else value

    return damage


def best_factor(origin: Tensor, direction: Tensor, damage: Damage) -> float:
    """Return the factor with which origin + factor * direction does most damage.

    The search has four parts: a coarse one; a bisection of the edge beyond which the rule excludes the Byzantine rows
    and its output no longer changes; a scan just below it, where the damage is often greatest (for Bulyan in a narrow
    spike); and a golden-section search between the neighbours of the best. It returns the best factor that it tried,
    never an interpolated one, and of equally good ones the smallest.
    """
    seen: dict[float, float] = {}

    def done(factor: float) -> float:
        if factor not in seen:
            seen[factor] = damage(torch.add(origin, direction, alpha=factor))
        return seen[factor]

    excluded = done(_COARSE[-1])
    taken = [factor for factor in _COARSE if done(factor) != excluded]
    if taken and taken[-1] < _COARSE[-2]:
        last = _COARSE.index(taken[-1])
        low, high = _COARSE[last], _COARSE[last + 1]
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if done(middle) == excluded else (middle, high)
        start = _COARSE[max(0, last - 1)]
        for step in range(1, _SCAN):
            done(start + (low - start) * step / _SCAN)
    best = max(seen, key=seen.__getitem__)
    low = max((factor for factor in seen if factor < best), default=best / 2)
    high = min((factor for factor in seen if factor > best), default=best * 2)
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(_REFINEMENTS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if done(left) >= done(right):
            high = right
        else:
            low = left
    return max(sorted(seen), key=seen.__getitem__)

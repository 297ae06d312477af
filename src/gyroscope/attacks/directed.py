"""The paper's common core of both attacks: every Byzantine worker sends mean + factor * direction."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.base import Attack, AttackContext, repeat

# Where `auto` looks for its factor: the powers of two from 1/16 to 64, four steps to the octave where attacks have
# their best factors (against Bulyan the damage has several peaks there), then what `best_factor` makes of them.
_COARSE = sorted({2.0**exponent for exponent in range(-4, 7)} | {2.0 ** (step / 4) for step in range(-8, 13)})
_BISECTIONS = 12
_SCAN = 10
_REFINEMENTS = 10

Sign = Literal[-1, 1, "auto"]
Damage = Callable[[Tensor], float]


@dataclasses.dataclass(frozen=True)
class Directed(Attack):
    """mean(honest) + factor * direction(honest), the same for all f workers. The factor is a number or `auto`.

    sign: -1 as the attack was published, 1 for the opposite direction, `auto` for the one of both that does more
    damage to the configured rule in this round.
    """

    factor: float | str
    sign: Sign = -1

    def __post_init__(self) -> None:
        number = isinstance(self.factor, (int, float)) and not isinstance(self.factor, bool)
        if not (number and math.isfinite(self.factor)) and self.factor not in self._words():  # type: ignore[arg-type]
            words = " or ".join(repr(word) for word in self._words())
            raise ConfigError(f"the factor of {self.name!r} must be a finite number or {words}, got {self.factor!r}")
        if isinstance(self.sign, bool) or self.sign not in (-1, 1, "auto"):
            raise ConfigError(f"the sign of {self.name!r} must be -1, 1 or 'auto', got {self.sign!r}")

    @classmethod
    def _words(cls) -> tuple[str, ...]:
        """What a factor may be besides a number."""
        return ("auto",)

    @abstractmethod
    def aim(self, honest: CachedMoments) -> tuple[Tensor, Tensor]:
        """(mean of the honest rows, attack vector a_t), both of shape (d,)."""

    def number(self, n: int, f: int) -> float:
        """The factor, where it does not depend on the rows."""
        return float(self.factor)

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        mean, direction = self.aim(context.moments or CachedMoments(honest))
        if self.sign == "auto":
            tried = [self._vector(honest, mean, way, f, context) for way in (direction, -direction)]
            damage = damage_to(honest, mean, f, context)
            return repeat(max(tried, key=damage), f)
        return repeat(self._vector(honest, mean, direction if self.sign == -1 else -direction, f, context), f)

    def _vector(self, honest: Tensor, mean: Tensor, direction: Tensor, f: int, context: AttackContext) -> Tensor:
        if self.factor == "auto":
            factor = best_factor(honest, mean, direction, f, context)
        else:
            factor = self.number(len(honest) + f, f)
        return torch.add(mean, direction, alpha=factor)


def damage_to(honest: Tensor, mean: Tensor, f: int, context: AttackContext) -> Damage:
    """How far the configured rule's output is from the honest mean, as a function of what all f workers send.

    Where the server accumulates rows before the rule, the honest mean is that of what the rule is shown.
    """
    rows = torch.cat([honest, repeat(mean, f)])
    right = mean if context.preview is None else context.shown(rows)[: len(honest)].mean(dim=0)

    def damage(vector: Tensor) -> float:
        rows[honest.shape[0] :] = vector
        distance = float(torch.linalg.vector_norm(context.outcome(rows) - right, dtype=torch.float64))
        return math.inf if math.isnan(distance) else distance

    return damage


def best_factor(
    honest: Tensor, mean: Tensor, direction: Tensor, f: int, context: AttackContext, damage: Damage | None = None
) -> float:
    """The factor of mean + factor * direction that moves the configured rule's output furthest from the honest mean.

    damage: another measure of what a vector does, if that is not it; then `mean` may be any other origin, too.

    A coarse search; a bisection of the edge beyond which the rule excludes the Byzantine rows and its output no longer
    changes, and a scan just below it, where the damage is often greatest (for Bulyan in a narrow spike); then a
    golden-section search between the neighbours of the best. The best factor *seen* is returned, never a point that
    was only interpolated; of equally good ones, the smallest.
    """
    measure = damage or damage_to(honest, mean, f, context)
    seen: dict[float, float] = {}

    def done(factor: float) -> float:
        if factor not in seen:
            seen[factor] = measure(torch.add(mean, direction, alpha=factor))
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
    below = max((factor for factor in seen if factor < best), default=best / 2)
    above = min((factor for factor in seen if factor > best), default=best * 2)
    low, high = below, above
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(_REFINEMENTS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if done(left) >= done(right):
            high = right
        else:
            low = left
    return max(sorted(seen), key=seen.__getitem__)

"""The base class of `little` and `empire`: every Byzantine worker sends mean + factor * direction."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks._compressed_rule import CompressedRule, agree, kind_for
from gyroscope.attacks._line import Line, weights_by_distances
from gyroscope.attacks.base import Attack, AttackContext, repeat

# Where `auto` looks for its factor first: the powers of two from 1/256 to 128, eight steps to the octave where attacks
# have their best factors. The search then looks between these, so many times, down to so small a relative distance.
_COARSE = sorted({2.0**exponent for exponent in range(-8, 8)} | {2.0 ** (step / 8) for step in range(-16, 25)})
_REFINEMENTS = 60
_RESOLUTION = 1e-3
_NEAR = 1.5
# Between two full searches: multiples of the last factor, and how often to look between these.
_FULL_EVERY = 10
_CLOSE = [2.0 ** (step / 8) for step in range(-8, 9)]
_FEW = 12
_AROUND = (1.0, 1.03, 0.98, 0.96, 0.93, 0.88, 0.8)
_LONG = 2**14
"""Rows of more values than this are not searched as a whole."""

Damage = Callable[[float], float]
Damages = Callable[[Sequence[float]], list[float]]


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
        ways = {"-1": direction, "1": -direction} if self.sign == "auto" else {str(self.sign): -self.sign * direction}
        factors = {sign: self._factor(honest, mean, ways[sign], f, context.within(sign)) for sign in ways}
        best = next(iter(ways))
        if self.sign == "auto":
            harm = {sign: _damage(honest, mean, ways[sign], mean, f, context, distance)(factors[sign]) for sign in ways}
            best = max(harm, key=harm.__getitem__)
        return repeat(torch.add(mean, ways[best], alpha=factors[best]), f)

    def _factor(self, honest: Tensor, mean: Tensor, direction: Tensor, f: int, context: AttackContext) -> float:
        if self.factor == "auto":
            return best_factor(honest, mean, direction, f, context)
        return self.number(len(honest) + f, f)


def distance(output: Tensor, right: Tensor) -> Tensor:
    """Return how far the rule's output, or each of many, is from the honest mean."""
    length: Tensor = torch.linalg.vector_norm(output - right, dim=-1, dtype=torch.float64)
    return length


def best_factor(
    honest: Tensor,
    origin: Tensor,
    direction: Tensor,
    f: int,
    context: AttackContext,
    *,
    mean: Tensor | None = None,
    measure: Callable[[Tensor, Tensor], Tensor] = distance,
) -> float:
    """Return the factor with which f rows origin + factor * direction do most damage to the configured rule.

    Args:
        mean: The honest rows' mean, if it is not the origin. If the server accumulates rows before the rule, what
            counts is the mean of the rows that the rule sees.
        measure: The damage, as a function of the rule's output and the honest mean; it may be given both less the
            origin. NaN is the greatest damage.

    For rows of more than 4,096 values, a rule that takes the mean of rows which it chooses by their distances is asked
    for its choice only: distances and damage follow from one table and one pass over the rows. Other rules that depend
    on inner products only are computed in the span of the rows. Each full search compares its result with the rule's
    own. If they disagree, the rule is applied to whole rows; or, for rows of more than 16,384 values, to random
    columns, and to whole rows for a few factors around the one found.

    These searches are full in the attack's first round and in every tenth one, and in between try the factors within a
    factor of two of the last.
    """
    mean = origin if mean is None else mean
    state = context.state
    kind = kind_for(honest.shape[1], context)
    if "not_by_inner_products" in state:
        kind = "whole" if honest.shape[1] <= _LONG else "columns"
    if kind == "whole":
        return search_factor(_damage(honest, origin, direction, mean, f, context, measure))
    near = float(state["factor"]) if "factor" in state and context.step % _FULL_EVERY else None
    by_distances = _damages_by_distances(honest, origin, direction, mean, f, context, measure)
    if by_distances is not None:
        factor = search_factor(*by_distances, near)
        state["factor"] = torch.tensor(factor, dtype=torch.float64)
        return factor
    rule = CompressedRule(torch.cat([honest, torch.stack([origin, direction, mean])]), context, kind)
    *rows, start, way, middle = rule.coordinates
    damage = _damage(torch.stack(rows), start, way, middle, f, rule, measure)
    factor = search_factor(damage, near=near)
    whole = _damage(honest, origin, direction, mean, f, context, measure)
    if rule.kind == "inner products" and near is None and not agree(damage(factor), whole(factor)):
        state["not_by_inner_products"] = torch.ones(1)
        return best_factor(honest, origin, direction, f, context, mean=mean, measure=measure)
    if rule.kind == "columns":  # The factor from which the rule excludes the rows is known to a few percent only.
        factor = max((factor * step for step in _AROUND), key=whole)
    state["factor"] = torch.tensor(factor, dtype=torch.float64)
    return factor


def _damage(
    honest: Tensor,
    origin: Tensor,
    direction: Tensor,
    mean: Tensor,
    f: int,
    rule: AttackContext | CompressedRule,
    measure: Callable[[Tensor, Tensor], Tensor],
) -> Damage:
    """Return the damage as a function of the factor, for the whole rows or in a compressed rule's coordinates."""
    rows = torch.cat([honest, repeat(mean, f)])
    outcome, right = (rule.outcome, mean) if isinstance(rule, AttackContext) else (rule, mean)
    if isinstance(rule, AttackContext) and rule.preview is not None:
        right = rule.shown(rows)[: len(honest)].mean(dim=0)

    def damage(factor: float) -> float:
        rows[honest.shape[0] :] = torch.add(origin, direction, alpha=factor)
        return _number(float(measure(outcome(rows), right)))

    return damage


def _damages_by_distances(
    honest: Tensor,
    origin: Tensor,
    direction: Tensor,
    mean: Tensor,
    f: int,
    context: AttackContext,
    measure: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Damage, Damages | None] | None:
    """Return the same in O(n^2), if distances decide the rule's weights; and for many factors, if that is cheaper."""
    rule, known = context.rule, context.declared_f
    weigh = weights_by_distances(rule)
    if rule is None or weigh is None:
        return None
    line = Line(honest, origin, direction, f)
    rule.check_feasible(line.n, known)
    vectors = line.coordinates(mean)
    if vectors is None:
        return None
    spanning, right = vectors[:-1].contiguous().numpy(), vectors[-1]

    def damages(factors: Sequence[float]) -> list[float]:
        weights = line.weights(weigh, known, factors)
        weights[:, line.h] = weights[:, line.h :].sum(axis=1) * factors  # what the result has of the direction
        # No matrix product: equal weights must give the same bits, so that of equally good factors the smallest wins.
        outputs = torch.from_numpy((weights[:, : line.h + 1, None] * spanning).sum(axis=1))
        return [_number(value) for value in measure(outputs, right).tolist()]

    return lambda factor: damages([factor])[0], damages if weigh.at_once else None


def _number(damage: float) -> float:
    return math.inf if math.isnan(damage) else damage


def search_factor(damage: Damage, damages: Damages | None = None, near: float | None = None) -> float:
    """Return the factor of most damage. `damages` is the same function for many factors at once, if that is cheaper.

    The search tries 51 factors from 1/256 to 128, and then at most 60 times the middle between two neighbours, 111
    factors in all; with `near`, the 17 within a factor of two of this one, and then at most 12. It chooses the
    neighbours that promise most: the larger of their damages plus the difference, because where the damage differs it
    may have a peak in between, or rise until the rule excludes the rows. Every third time, and if none promises more
    than the best so far, it chooses those that are farthest apart within a factor of 1.5 of the best. It returns the
    best factor that it tried, of equally good ones the smallest.

    That is at least 99 % of the best on a dense grid for all rules here but one: under Bulyan with rescoring the damage
    has many peaks, some as narrow as 1 % of the factor, and in a few rounds of a hundred the search misses the highest.
    """
    tried = _COARSE if near is None else [near * step for step in _CLOSE]
    seen = dict(zip(tried, damages(tried) if damages else map(damage, tried), strict=True))
    gaps = [gap for pair in itertools.pairwise(tried) for gap in _gaps(*pair, seen)]
    best = max(tried, key=seen.__getitem__)
    ahead: dict[float, float] = {}
    for turn in range(_REFINEMENTS if near is None else _FEW):
        if not gaps or seen[best] == math.inf:
            break
        near_best = [gap for gap in gaps if best / _NEAR <= gap.low and gap.high <= best * _NEAR]
        widest, gap = max(near_best or gaps, key=_width), max(gaps, key=_promise)
        if turn % 3 == 2 or gap.promise <= seen[best]:
            gap = widest
        middle = (gap.low + gap.high) / 2
        if damages and middle not in ahead:  # and those that are likely to be next
            wanted = {middle, (gap.low + middle) / 2, (middle + gap.high) / 2, (widest.low + widest.high) / 2}
            ahead.update(zip(wanted, damages([*wanted]), strict=True))
        seen[middle] = ahead[middle] if damages else damage(middle)
        best = max(best, middle, key=lambda factor: (seen[factor], -factor))
        at = gaps.index(gap)
        gaps[at : at + 1] = [*_gaps(gap.low, middle, seen), *_gaps(middle, gap.high, seen)]
    return best


class _Gap(NamedTuple):
    """Two neighbours that were tried, and between which the damage may be higher."""

    promise: float
    width: float
    low: float
    high: float


_promise, _width = operator.attrgetter("promise"), operator.attrgetter("width")


def _gaps(low: float, high: float, seen: dict[float, float]) -> list[_Gap]:
    """Return the gap between two neighbours, unless it is too narrow or both do the same damage."""
    one, other = seen[low], seen[high]
    if one == other or high - low <= _RESOLUTION * high:
        return []
    return [_Gap(max(one, other) + abs(one - other), high / low, low, high)]

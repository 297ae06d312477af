"""Faults rather than attacks: what broken hardware, bad data, lost connections and crude vandals send."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.base import Attack, AttackContext, repeat


class _Constant(Attack):
    """Send one value in every coordinate."""

    value: ClassVar[float]

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return repeat(torch.full_like(honest[0], self.value), f)


@dataclasses.dataclass(frozen=True)
class Zero(_Constant):
    """Send zeros, as a worker that does nothing."""

    name = "zero"
    summary = "zero in every coordinate: a worker that does nothing"
    value = 0.0


@dataclasses.dataclass(frozen=True)
class Nan(_Constant):
    """Send NaN in every coordinate."""

    name = "nan"
    summary = "NaN in every coordinate"
    finite = False
    value = math.nan


@dataclasses.dataclass(frozen=True)
class Inf(_Constant):
    """Send +inf in every coordinate."""

    name = "inf"
    summary = "+inf in every coordinate"
    finite = False
    value = math.inf


@dataclasses.dataclass(frozen=True)
class SignFlip(Attack):
    """Send -scale * mean of the honest rows."""

    scale: float = registry.positive(1.0)

    name = "sign-flip"
    aliases = ("sf", "sign-flipping")
    summary = "-scale * mean of the honest rows"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        return repeat(honest.mean(dim=0).mul_(-self.scale), f)


@dataclasses.dataclass(frozen=True)
class Gaussian(Attack):
    """Send independent normal noise around zero, different for each Byzantine worker and step."""

    std: float = registry.positive(1.0)

    name = "gaussian"
    aliases = ("gaussian-noise", "noise")
    summary = "independent normal noise of the given std around zero"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        noise = torch.empty(f, honest.shape[1], dtype=honest.dtype, device=context.generator.device)
        return noise.normal_(0.0, self.std, generator=context.generator).to(honest.device)


@dataclasses.dataclass(frozen=True)
class Stale(Attack):
    """Replay what was sent `delay` rounds ago, or in the first round if that is less long ago.

    source: `mean`, the mean of the honest rows; or `own`, what each Byzantine worker itself would have sent then, as a
        straggler does: another row for each of them, at the cost of f more gradients per round.
    With momentum at the workers, honest rows are accumulated gradients, and so are the replayed ones, with the momentum
    of that time. The state is the last `delay` means, or f times as many rows.
    """

    delay: int = registry.count(10)
    source: Literal["mean", "own"] = registry.choice("mean", ("mean", "own"))

    name = "stale"
    summary = "replays the honest mean (or each worker's own row) of some rounds ago"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        moments = context.moments or CachedMoments(honest)
        sent = context.own_gradients() if self.source == "own" else moments.moments.mean.unsqueeze(0)
        past = context.within("sent").state
        past[str(context.step)] = sent.clone()
        steps = sorted(int(step) for step in past)
        # The latest that is old enough, or else the oldest: inside another attack not every round is kept.
        then = max((step for step in steps if step <= context.step - self.delay), default=steps[0])
        replayed = past[str(then)]
        for step in steps:
            if step < then:
                del past[str(step)]
        return repeat(replayed[0], f) if self.source == "mean" else replayed.clone()


@dataclasses.dataclass(frozen=True)
class Drop(Attack):
    """Send nothing, that is, a row of NaN: a round has that in place of a missing worker's row.

    chance: the probability with which each Byzantine worker is missing in a round, independently of the others; when
        it is there it is honest. 1 by default: never there, at no cost. Below 1 it costs f more gradients a round.
    """

    chance: float = registry.number(1.0, "a number above 0 and at most 1", lambda chance: 0 < chance <= 1)

    name = "drop"
    summary = "sends nothing: a row of NaN stands for a worker that is missing"
    finite = False

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        if self.chance == 1:
            return repeat(torch.full_like(honest[0], math.nan), f)
        drawn = context.uniform(f)
        rows = context.own_gradients()
        rows[(drawn < self.chance).to(rows.device)] = math.nan
        return rows

"""Staleness: rows that were right some rounds ago."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.base import Attack, AttackContext, repeat


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

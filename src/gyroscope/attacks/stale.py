"""Staleness: what was right some rounds ago."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import Tensor

from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.base import Attack, AttackContext, repeat

SOURCES = ("mean", "own")


@dataclasses.dataclass(frozen=True)
class Stale(Attack):
    """Replays what was sent `delay` rounds ago; before there is that much past, what was sent first.

    source: `mean`, the mean of the honest rows; or `own`, what each Byzantine worker itself would have sent then, as a
        straggler does: another row for each of them, at the cost of f more gradients per round.
    With momentum at the workers, honest rows are accumulated gradients, and so are the replayed ones: with the
    momentum of that time. Notes: the last `delay` means, or f times as many rows.
    """

    delay: int = 10
    source: Literal["mean", "own"] = "mean"

    name = "stale"
    summary = "replays the honest mean (or each worker's own row) of some rounds ago"

    def __post_init__(self) -> None:
        if isinstance(self.delay, bool) or not isinstance(self.delay, int) or self.delay < 1:
            raise ConfigError(f"the delay of {self.name!r} must be a whole number of at least 1, got {self.delay!r}")
        if self.source not in SOURCES:
            raise UnknownNameError("source", str(self.source), SOURCES, of=self.name)

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        described = context.moments or CachedMoments(honest)
        sent = context.own_gradients() if self.source == "own" else described.moments.mean.unsqueeze(0)
        notes = context.inside("sent").state
        notes[str(context.step)] = sent.clone()
        steps = sorted(int(step) for step in notes)
        # The youngest that is old enough, or else the oldest: inside another attack not every round leaves a note.
        then = max((step for step in steps if step <= context.step - self.delay), default=steps[0])
        replayed = notes[str(then)]
        for step in steps:
            if step < then:
                del notes[str(step)]
        return repeat(replayed[0], f) if self.source == "mean" else replayed.clone()

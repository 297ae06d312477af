"""The road not taken: how the filter would have judged, had filter and momentum stood in the other order.

The run goes on by its own placement. Beside it the same filter judges, for every arrival, what the other order would
have shown it: with momentum at the workers the plain gradient, else the sum that the worker would have sent.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from gyroscope.research.asynchronous.adversary import Adversary, Turn
from gyroscope.research.asynchronous.async_config import ResolvedAsyncConfig
from gyroscope.research.asynchronous.async_placement import AsyncPlacement
from gyroscope.research.asynchronous.filters import Arrival, Filter


def other_order(placement: str) -> str:
    """A placement in which the filter sees what it does not see in this one."""
    return "none" if placement == "workers" else "workers"


class CounterfactualFilter:
    """Judges what it is told of, and changes nothing."""

    def __init__(
        self, config: ResolvedAsyncConfig, filter: Filter[Any], parameters: Tensor, adversary: Adversary | None
    ) -> None:
        other = other_order(config.momentum)
        nesterov = config.nesterov and other == "workers"
        self.placement = AsyncPlacement(other, config.workers, config.mu, nesterov)
        self.filter, self.adversary = filter, adversary
        self.remembered = filter.begin(config.declared_byzantine)

    def honest(self, worker: int, gradient: Tensor, version: int) -> Tensor:
        """What an honest worker would have sent."""
        vector = self.placement.sent(worker, gradient, version)
        if self.adversary:
            self.adversary.overhear(worker, vector)
        return vector

    def lie(self, turn: Turn) -> Tensor | None:
        """What a Byzantine worker would have made of what honest workers would have sent."""
        assert self.adversary is not None
        return self.adversary.send(turn)

    def judge(self, arrival: Arrival, vector: Tensor | None) -> bool | None:
        """Whether the other order would have accepted this in place of what arrived; None where nothing is judged."""
        if vector is None:
            return None
        verdict, self.remembered = self.filter.judge(dataclasses.replace(arrival, vector=vector), self.remembered)
        return verdict.accepted

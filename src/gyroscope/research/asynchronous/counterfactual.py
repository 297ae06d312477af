"""How the filter would have judged, had filter and momentum been in the other order.

The run follows its own placement. Beside it, the same filter judges for every arrival what the other order would have
shown it: with momentum at the workers the plain gradient, otherwise the sum that the worker would have sent.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from gyroscope.research.asynchronous.adversary import Adversary, ByzantineTurn
from gyroscope.research.asynchronous.async_config import ResolvedAsyncConfig
from gyroscope.research.asynchronous.async_placement import AsyncPlacement
from gyroscope.research.asynchronous.filters import Arrival, Filter


def other_order(placement: str) -> str:
    """Return a placement with which the filter sees gradients if it sees sums now, and sums if it sees gradients."""
    return "none" if placement == "workers" else "workers"


class CounterfactualFilter:
    """Judge every arrival in the other order, and change nothing of the run."""

    def __init__(self, config: ResolvedAsyncConfig, filter: Filter[Any], adversary: Adversary | None) -> None:
        other = other_order(config.momentum)
        nesterov = config.nesterov and other == "workers"
        self.placement = AsyncPlacement(other, config.workers, config.mu, nesterov)
        self.filter, self.adversary = filter, adversary
        self.filter_state = filter.begin(config.declared_byzantine)

    def honest(self, worker: int, gradient: Tensor, version: int) -> Tensor:
        """Return what an honest worker would have sent."""
        vector = self.placement.sent(worker, gradient, version)
        if self.adversary:
            self.adversary.observe(worker, vector)
        return vector

    def byzantine(self, turn: ByzantineTurn) -> Tensor | None:
        """Return what a Byzantine worker would have made of what the honest workers would have sent."""
        assert self.adversary is not None
        return self.adversary.send(turn)

    def judge(self, arrival: Arrival, vector: Tensor | None) -> bool | None:
        """Return whether the other order would have accepted this vector in place of what arrived; None for None."""
        if vector is None:
            return None
        verdict, self.filter_state = self.filter.judge(dataclasses.replace(arrival, vector=vector), self.filter_state)
        return verdict.accepted

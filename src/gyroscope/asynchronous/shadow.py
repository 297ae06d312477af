"""The road not taken: how the filter would have judged, had filter and momentum stood in the other order.

The run goes on by its own placement. Beside it the same filter judges, for every arrival, what the other order would
have shown it: with momentum at the workers the plain gradient, else the sum that the worker would have sent.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from gyroscope.asynchronous.config import AsyncConfig
from gyroscope.asynchronous.filters import Arrival, Filter
from gyroscope.asynchronous.placement import Placement
from gyroscope.asynchronous.players import Adversary


def other_order(placement: str) -> str:
    """A placement in which the filter sees what it does not see in this one."""
    return "none" if placement == "workers" else "workers"


class Shadow:
    """Judges what it is told of, and changes nothing."""

    def __init__(
        self, config: AsyncConfig, filter: Filter[Any], parameters: Tensor, adversary: Adversary | None
    ) -> None:
        assert config.workers and config.mu is not None and config.declared_byzantine is not None
        other = other_order(config.momentum)
        nesterov = config.nesterov and other == "workers"
        self.placement = Placement(other, parameters, config.workers, config.mu, nesterov)
        self.filter, self.adversary = filter, adversary
        self.honest = config.workers - config.byzantine
        self.remembered = filter.begin(config.declared_byzantine)

    def judge(self, arrival: Arrival, gradient: Tensor | None, turn: int, step: int) -> bool | None:
        """Whether the other order would have accepted it; None where it had nothing to judge.

        gradient: what an honest worker computed, or None for a Byzantine one, who then makes its row from what honest
        workers would have sent.
        """
        worker = arrival.worker
        if gradient is None:
            assert self.adversary is not None
            vector = self.adversary.send(worker - self.honest, turn, step, arrival.parameters)
            if vector is None:
                return None
        else:
            vector = self.placement.sent(worker, gradient, arrival.version)
            if self.adversary:
                self.adversary.overhear(worker, vector)
        verdict, self.remembered = self.filter.judge(dataclasses.replace(arrival, vector=vector), self.remembered)
        return verdict.accepted

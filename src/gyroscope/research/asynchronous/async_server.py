"""The server of an asynchronous run: it judges each gradient as it arrives, and applies those that it accepts."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from gyroscope.research.asynchronous.async_placement import AsyncDirection, AsyncPlacement
from gyroscope.research.asynchronous.dampening import Dampening
from gyroscope.research.asynchronous.filters import Arrival, Filter, FilterVerdict
from gyroscope.runs.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class ArrivalOutcome:
    """What the server did with a gradient that arrived."""

    verdict: FilterVerdict
    staleness: int
    """How many times the model changed since the worker fetched it."""
    weight: float
    """The factor Lambda(staleness) of the gradient."""
    age: float | None = None
    """How many versions ago the applied gradients were computed, averaged with the momentum's weights."""


class AsyncServer:
    """Hold the model, judge what arrives, and apply what is accepted: theta <- theta - lr / n * direction."""

    def __init__(
        self,
        parameters: Tensor,
        n: int,
        declared_f: int,
        filter: Filter[Any],
        placement: AsyncPlacement,
        dampening: Dampening,
        schedule: Schedule,
    ) -> None:
        self.parameters, self.n = parameters, n
        self.filter, self.placement, self.dampening, self.schedule = filter, placement, dampening, schedule
        self.filter_state = filter.begin(declared_f)
        self.version = 0
        """How many times the model has changed."""

    def receive(self, arrival: Arrival, step: int) -> ArrivalOutcome:
        """Judge a gradient; if it is accepted, the model has a new version."""
        verdict, self.filter_state = self.filter.judge(arrival, self.filter_state)
        staleness = self.version - arrival.version
        weight = self.dampening(staleness)
        if not verdict.accepted:
            return ArrivalOutcome(verdict, staleness, weight)
        direction = self.placement.applied(arrival.worker, arrival.vector, arrival.version, weight)
        return ArrivalOutcome(verdict, staleness, weight, self._apply(direction, step))

    def _apply(self, direction: AsyncDirection, step: int) -> float:
        age = self.version - direction.version
        self.parameters.sub_(direction.vector, alpha=self.schedule.at(step) / self.n)
        self.version += 1
        return age

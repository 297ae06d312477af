"""Who takes part in an asynchronous run: the honest workers, and the server that judges and applies."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from gyroscope.research.asynchronous.async_placement import AsyncDirection, AsyncPlacement
from gyroscope.research.asynchronous.dampening import Dampening
from gyroscope.research.asynchronous.filters import Arrival, Filter, FilterVerdict
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation.workers import SimulatedWorkers


class AsyncWorkers:
    """The honest workers, each by itself: worker i's k-th gradient is the one that it would have at step k of a round.

    What it is computed on is the model at that moment; the batch depends on (seed, i, k) alone.
    """

    def __init__(self, honest: SimulatedWorkers) -> None:
        self.members = [honest.alone(worker) for worker in range(honest.count)]

    def gradient(self, worker: int, count: int) -> tuple[float, Tensor]:
        """(loss, gradient): a vector that nobody else holds."""
        losses, rows = self.members[worker].sample(count)
        return float(losses[0]), rows[0]


@dataclasses.dataclass(frozen=True)
class ArrivalOutcome:
    """What became of a gradient that arrived."""

    verdict: FilterVerdict
    staleness: int
    """How many times the model changed since the worker fetched it."""
    weight: float
    """How much the gradient counted, by its staleness: Lambda."""
    age: float | None = None
    """How many versions ago what was applied had been computed, on average over the momentum's memory."""


class AsyncServer:
    """Holds the model, judges what arrives, and applies what it accepts: theta <- theta - lr / n * direction."""

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
        self.remembered = filter.begin(declared_f)
        self.version = 0

    def receive(self, arrival: Arrival, step: int) -> ArrivalOutcome:
        """Judge a gradient; if it is accepted, the model has a new version."""
        verdict, self.remembered = self.filter.judge(arrival, self.remembered)
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

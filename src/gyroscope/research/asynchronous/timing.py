"""The simulated clock of an asynchronous run: when each worker fetches the model, and when its gradient arrives.

Nothing here knows of gradients. One unit of time is what a worker of speed 1 takes to compute one.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Sequence

import torch

from gyroscope._core import random_streams, registry
from gyroscope._core.errors import ConfigError, UnknownNameError

ARRIVE, FETCH = 0, 1
"""The kinds of events. At the same time, gradients arrive before models are fetched."""


@dataclasses.dataclass(frozen=True, order=True)
class TimedEvent:
    """An event, ordered by time, then arrivals first, then by the worker's number: the order is deterministic."""

    time: float
    kind: int
    worker: int


class EventQueue:
    """The events to come, soonest first."""

    def __init__(self) -> None:
        self._heap: list[TimedEvent] = []

    def push(self, event: TimedEvent) -> None:
        heapq.heappush(self._heap, event)

    def pop(self) -> TimedEvent:
        return heapq.heappop(self._heap)

    def __len__(self) -> int:
        return len(self._heap)


@dataclasses.dataclass(frozen=True)
class WorkerTiming:
    """How long each computation of each worker takes.

    Stateless: the k-th computation of worker i takes the same time in whatever order one asks.

    A computation of worker i lasts 1 / speed_i, times exp(jitter * normal), times `straggler_factor` with the
    probability `stragglers`. Then an honest worker rests for `idle` times as long before it fetches the next model.
    """

    speeds: tuple[float, ...]
    """Of all workers, Byzantine ones last."""
    honest: int
    """How many workers are honest."""
    seed: int
    jitter: float = 0.0
    stragglers: float = 0.0
    straggler_factor: float = 10.0
    idle: float = 0.0

    def duration(self, worker: int, count: int) -> float:
        """Return how long the worker's computation number `count` takes."""
        plain = 1 / self.speeds[worker]
        if self.jitter == 0 and self.stragglers == 0:
            return plain
        stream = random_streams.generator(self.seed, "duration", worker, count)
        noise, luck = torch.randn((), generator=stream).item(), torch.rand((), generator=stream).item()
        slow = self.straggler_factor if luck < self.stragglers else 1.0
        return plain * math.exp(self.jitter * noise) * slow

    def rest(self, worker: int, lasted: float) -> float:
        """Return how long the worker pauses after a computation. Byzantine workers do not pause."""
        return self.idle * lasted if worker < self.honest else 0.0

    def start(self, worker: int) -> float:
        """Return when the worker fetches its first model: workers of one speed are spread evenly over their cycle."""
        first, end = (0, self.honest) if worker < self.honest else (self.honest, len(self.speeds))
        cycle = (1 + (self.idle if worker < self.honest else 0.0)) / self.speeds[worker]
        return cycle * (worker - first) / (end - first)


def speeds(spec: str, count: int, seed: int) -> tuple[float, ...]:
    """Return the honest workers' speeds: `equal`, `lognormal:sigma=0.5` (median 1), or one number for each."""
    how = "write equal, lognormal:sigma=0.5, or a number for each honest worker, as in 1,1,0.5"
    if spec[:1].isdigit() or spec[:1] == ".":
        given = _numbers(spec, how)
        if len(given) != count:
            raise ConfigError(f"{len(given)} speeds are given for {count} honest workers: {how}")
        return given
    name, parameters = registry.split(spec)
    if name not in ("equal", "lognormal"):
        raise UnknownNameError("distribution of speeds", name, ["equal", "lognormal"])
    known = ["sigma"] if name == "lognormal" else []
    for key in parameters:
        if key not in known:
            raise UnknownNameError("parameter", key, known, of=f"speeds {name!r}")
    if name == "equal":
        return (1.0,) * count
    sigma = parameters.get("sigma", 0.5)
    if isinstance(sigma, bool) or not isinstance(sigma, (int, float)) or not 0 <= sigma < math.inf:
        raise ConfigError(f"the sigma of lognormal speeds must be at least 0 and finite, got {sigma!r}")
    normal = torch.randn(count, generator=random_streams.generator(seed, "speeds"), dtype=torch.float64)
    return tuple(normal.mul_(sigma).exp_().tolist())


def _numbers(text: str, how: str) -> tuple[float, ...]:
    try:
        given = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"cannot read the speeds {text!r}: {how}") from None
    if not all(0 < speed < math.inf for speed in given):
        raise ConfigError(f"a speed must be positive and finite, got {text!r}: {how}")
    return given


def first_events(timing: WorkerTiming) -> EventQueue:
    """Return the queue at the start, in which every worker is about to fetch its first model."""
    queue = EventQueue()
    for worker in range(len(timing.speeds)):
        queue.push(TimedEvent(timing.start(worker), FETCH, worker))
    return queue


def all_speeds(honest: Sequence[float], byzantine: int, byzantine_speed: float) -> tuple[float, ...]:
    """Return the speeds of all workers, Byzantine ones last."""
    return (*honest, *([byzantine_speed] * byzantine))

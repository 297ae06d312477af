"""Who takes part in an asynchronous run: the honest workers, the adversary, and the server that judges and applies."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

from gyroscope import randomness
from gyroscope.asynchronous.dampening import Dampening
from gyroscope.asynchronous.filters import Arrival, Filter, Verdict
from gyroscope.asynchronous.placement import Direction, Placement
from gyroscope.attacks import Attack, View
from gyroscope.rules import make as make_rule
from gyroscope.schedule import Schedule
from gyroscope.statistics import Described
from gyroscope.workers import HonestWorkers


class Crew:
    """The honest workers, each by itself: worker i's k-th gradient is the one that it would have at step k of a round.

    What it is computed on is the model at that moment; the batch depends on (seed, i, k) alone.
    """

    def __init__(self, one: HonestWorkers, count: int) -> None:
        self.members = [copy.copy(one) for _ in range(count)]
        for number, member in enumerate(self.members):
            member.first = number

    def gradient(self, worker: int, count: int) -> tuple[float, Tensor]:
        """(loss, gradient): a vector that nobody else holds."""
        losses, rows = self.members[worker].sample(count)
        return float(losses[0]), rows[0]


class Adversary:
    """The Byzantine workers, who collude and know what every honest worker last sent.

    The attack makes its f rows of those, as in a round, and each of the f workers sends its own when its turn comes. As
    long as no honest worker has sent anything, they are silent.
    """

    def __init__(
        self, attack: Attack, f: int, declared_f: int, honest: int, like: Tensor, seed: int, place: str
    ) -> None:
        self.attack, self.f, self.declared_f, self.seed, self.place = attack, f, declared_f, seed, place
        self._rows = like.new_zeros(honest, like.numel())
        self._known = torch.zeros(honest, dtype=torch.bool)
        self._described: Described | None = None
        self._notes: dict[str, Tensor] = {}

    def overhear(self, worker: int, vector: Tensor) -> None:
        """An honest worker has sent something."""
        self._rows[worker] = vector
        self._known[worker] = True
        self._described = None

    def send(self, number: int, turn: int, step: int, parameters: Tensor) -> Tensor | None:
        """What Byzantine worker `number` (from 0) sends; None if it has nothing to go by.

        turn: how many gradients the Byzantine workers have sent, which is where their randomness comes from.
        """
        if not bool(self._known.any()):
            return None
        if self._described is None:
            self._described = Described(self._rows if bool(self._known.all()) else self._rows[self._known])
        view = View(
            rule=make_rule("average"),
            declared_f=self.declared_f,
            generator=randomness.generator(self.seed, "attack", turn),
            step=step,
            parameters=parameters.clone(),  # the adversary sees the parameters but cannot write them
            placement=self.place,
            memory=self._notes,
            honest=self._described,
        )
        return self.attack(self._described.rows, self.f, view)[number].clone()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a gradient that arrived."""

    verdict: Verdict
    staleness: int
    """How many times the model changed since the worker fetched it."""
    weight: float
    """How much the gradient counted, by its staleness: Lambda."""
    age: float | None = None
    """How many versions ago what was applied had been computed, on average over the momentum's memory."""


class Server:
    """Holds the model, judges what arrives, and applies what it accepts: theta <- theta - lr / n * direction."""

    def __init__(
        self,
        parameters: Tensor,
        n: int,
        declared_f: int,
        filter: Filter[Any],
        placement: Placement,
        dampening: Dampening,
        schedule: Schedule,
    ) -> None:
        self.parameters, self.n = parameters, n
        self.filter, self.placement, self.dampening, self.schedule = filter, placement, dampening, schedule
        self.remembered = filter.begin(declared_f)
        self.version = 0

    def receive(self, arrival: Arrival, step: int) -> Outcome:
        """Judge a gradient; if it is accepted, the model has a new version."""
        verdict, self.remembered = self.filter.judge(arrival, self.remembered)
        staleness = self.version - arrival.version
        weight = self.dampening(staleness)
        if not verdict.accepted:
            return Outcome(verdict, staleness, weight)
        direction = self.placement.applied(arrival.worker, arrival.vector, arrival.version, weight)
        return Outcome(verdict, staleness, weight, self._apply(direction, step))

    def _apply(self, direction: Direction, step: int) -> float:
        age = self.version - direction.version
        self.parameters.sub_(direction.vector, alpha=self.schedule.at(step) / self.n)
        self.version += 1
        return age

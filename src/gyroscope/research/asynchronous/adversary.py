"""The Byzantine workers of an asynchronous run: they collude, and each sends its row when its turn comes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from gyroscope import attacks
from gyroscope._core import random_streams
from gyroscope._core.errors import ConfigError
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks import AttackContext, Drop, nested
from gyroscope.research.asynchronous.async_config import ResolvedAsyncConfig
from gyroscope.research.asynchronous.async_placement import AsyncPlacement
from gyroscope.rules import Aggregate, Rule
from gyroscope.simulation.byzantine_gradients import flip, unchanged_buffers
from gyroscope.simulation.workers import SimulatedWorkers


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
    """A Byzantine worker is about to send something."""

    liar: int
    """Which of the f, from 0."""
    number: int
    """How many turns all of them have had, this one included: where their randomness comes from."""
    count: int
    """How many turns this one has had before."""
    step: int
    fetched: Tensor
    """The model that the server had given to it."""
    version: int
    """That model's number."""
    parameters: Tensor
    """The model as it is now: an omniscient adversary sees it."""


@dataclasses.dataclass(frozen=True)
class NoRule(Rule):
    """Stands where an attack looks for the configured rule. Who asks it for an aggregate is told that there is none."""

    name = "none"
    resilient = False
    guarantee = "none"

    def min_workers(self, f: int) -> int:
        return 1

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        raise ConfigError(
            "this attack asks what the rule will make of all rows, and asynchronous training has no rule: choose "
            "parameters for which it need not ask, or another attack"
        )


class OwnWork:
    """What the Byzantine workers would send if they followed the protocol, each at data of its own.

    A worker's row is computed when somebody asks for it at its turn: the gradient at the model that it was given,
    accumulated where momentum is at the workers. The others' rows are those of their last turns; who had none yet is
    taken to send the same. Nothing here changes the run: neither the model nor anybody's randomness.
    """

    def __init__(self, config: ResolvedAsyncConfig, honest: SimulatedWorkers, place: str) -> None:
        self.honest, self.f = honest, config.byzantine
        nesterov = config.nesterov and place == "workers"
        self.placements = {
            flipped: AsyncPlacement(place, config.workers, config.mu, nesterov) for flipped in (False, True)
        }
        self._workers: dict[bool, SimulatedWorkers] = {}
        self._last: dict[bool, dict[int, Tensor]] = {False: {}, True: {}}

    def at(self, turn: Turn) -> Callable[[bool], Tensor]:
        """A function from flipped to f rows; asking twice computes and accumulates once."""
        asked: set[bool] = set()

        def rows(flipped: bool = False) -> Tensor:
            last = self._last[flipped]
            if flipped not in asked:
                asked.add(flipped)
                gradient = self._gradient(turn, flipped)
                last[turn.liar] = self.placements[flipped].sent(turn.liar, gradient, turn.version)
            return torch.stack([last.get(liar, last[turn.liar]) for liar in range(self.f)])

        return rows

    def _gradient(self, turn: Turn, flipped: bool) -> Tensor:
        if flipped not in self._workers:
            relabel = flip(self.honest.data.targets) if flipped else None
            self._workers[flipped] = self.honest.beside(self.f, relabel)
        parameters = self.honest.parameters
        now = parameters.clone()
        with unchanged_buffers(self.honest.model):
            parameters.copy_(turn.fetched)
            try:
                _, rows = self._workers[flipped].alone(turn.liar).sample(turn.count)
            finally:
                parameters.copy_(now)
        return rows[0]


class Adversary:
    """The Byzantine workers, who collude and know what every honest worker last sent.

    The attack makes its f rows of those, as in a round, and each of the f workers sends its own when its turn comes. So
    a turn takes the place of a round, but for what an attack does by the step: that is a round of time. As long as no
    honest worker has sent anything, they are silent.
    """

    def __init__(self, config: ResolvedAsyncConfig, honest: SimulatedWorkers, place: str) -> None:
        self.attack = attacks.parse(config.attack)
        self.f, self.declared_f, self.seed, self.place = config.byzantine, config.declared_byzantine, config.seed, place
        self.own = OwnWork(config, honest, place)
        self._drops = any(isinstance(part, Drop) for part in nested.parts(self.attack))
        self._rows = honest.parameters.new_zeros(honest.count, honest.parameters.numel())
        self._known = torch.zeros(honest.count, dtype=torch.bool)
        self._described: CachedMoments | None = None
        self._notes: dict[str, Tensor] = {}

    def overhear(self, worker: int, vector: Tensor) -> None:
        """An honest worker has sent something."""
        self._rows[worker] = vector
        self._known[worker] = True
        self._described = None

    def send(self, turn: Turn) -> Tensor | None:
        """What a Byzantine worker sends at its turn; None where it has nothing to go by, or drops out."""
        if not bool(self._known.any()):
            return None
        if self._described is None:
            self._described = CachedMoments(self._rows if bool(self._known.all()) else self._rows[self._known])
        view = AttackContext(
            rule=NoRule(),
            declared_f=self.declared_f,
            generator=random_streams.generator(self.seed, "attack", turn.number),
            step=turn.step,
            parameters=turn.parameters.clone(),  # the adversary sees the parameters but cannot write them
            momentum=self.place,
            state=self._notes,
            moments=self._described,
            compute_gradients=self.own.at(turn),
        )
        row = self.attack(self._described.rows, self.f, view)[turn.liar].clone()
        # In a round a row of NaN stands for a worker that is missing. Here who is missing sends nothing.
        return None if self._drops and bool(row.isnan().all()) else row

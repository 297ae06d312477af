"""The Byzantine workers of an asynchronous run: they collude, and each sends its row when its turn comes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from gyroscope import attacks
from gyroscope._core import random_streams
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import matrix
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks import AttackContext, Drop, nested
from gyroscope.research.asynchronous.async_config import ResolvedAsyncConfig
from gyroscope.research.asynchronous.async_placement import AsyncPlacement
from gyroscope.rules import Aggregate, Rule
from gyroscope.simulation.byzantine_gradients import flip, unchanged_buffers
from gyroscope.simulation.workers import SimulatedWorkers


@dataclasses.dataclass(frozen=True, eq=False)
class ByzantineTurn:
    """The moment at which a Byzantine worker's message is due."""

    index: int
    """Which of the f Byzantine workers, from 0."""
    number: int
    """How many turns all of them have had, this one included: it selects their random stream."""
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
    """The rule that an attack's context holds, since asynchronous training has none: it refuses to aggregate."""

    name = "none"
    resilient = False
    guarantee = "none"

    def min_workers(self, f: int) -> int:
        return 1

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        raise ConfigError(
            "this attack asks what the rule will make of all rows, and asynchronous training has no rule: choose "
            "parameters with which it does not ask, or another attack"
        )


class AsyncByzantineGradients:
    """Compute what the Byzantine workers would send if they followed the protocol, each at data of its own.

    A worker's row is computed when an attack asks for it at the worker's turn: the gradient at the model that it
    fetched, accumulated where momentum is at the workers. The others' rows are those of their last turns; a worker that
    had no turn yet is assumed to send the same row. Nothing here changes the run: neither the model nor any random
    stream.
    """

    def __init__(self, config: ResolvedAsyncConfig, honest: SimulatedWorkers, placement: str) -> None:
        self.honest, self.f = honest, config.byzantine
        nesterov = config.nesterov and placement == "workers"
        self._placements = {
            flipped: AsyncPlacement(placement, config.workers, config.mu, nesterov) for flipped in (False, True)
        }
        self._workers: dict[bool, SimulatedWorkers] = {}
        self._last: dict[bool, dict[int, Tensor]] = {False: {}, True: {}}

    def at(self, turn: ByzantineTurn) -> Callable[[bool], Tensor]:
        """Return a function from `flipped` to (f, d) rows; asking twice computes and accumulates once."""
        asked: set[bool] = set()

        def rows(flipped: bool = False) -> Tensor:
            last = self._last[flipped]
            if flipped not in asked:
                asked.add(flipped)
                gradient = self._gradient(turn, flipped)
                last[turn.index] = self._placements[flipped].sent(turn.index, gradient, turn.version)
            return torch.stack([last.get(index, last[turn.index]) for index in range(self.f)])

        return rows

    def _gradient(self, turn: ByzantineTurn, flipped: bool) -> Tensor:
        if flipped not in self._workers:
            relabel = flip(self.honest.data.targets) if flipped else None
            self._workers[flipped] = self.honest.beside(self.f, relabel)
        parameters = self.honest.parameters
        now = parameters.clone()
        with unchanged_buffers(self.honest.model):
            parameters.copy_(turn.fetched)
            try:
                _, rows = self._workers[flipped].alone(turn.index).sample(turn.count)
            finally:
                parameters.copy_(now)
        return rows[0]


class Adversary:
    """The Byzantine workers, which collude and know what every honest worker last sent.

    At each turn the attack computes its f rows from those, as in a round, and the worker whose turn it is sends its
    own. So a turn takes the place of a round, except for what an attack does by the step: that is a round of time. They
    send nothing until an honest worker has sent something.
    """

    def __init__(self, config: ResolvedAsyncConfig, honest: SimulatedWorkers, placement: str) -> None:
        self.attack = attacks.parse(config.attack)
        self.f, self.declared_f, self.seed = config.byzantine, config.declared_byzantine, config.seed
        self.placement = placement
        self._gradients = AsyncByzantineGradients(config, honest, placement)
        self._drops = any(isinstance(part, Drop) for part in nested.parts(self.attack))
        self._rows = honest.parameters.new_zeros(honest.count, honest.parameters.numel())
        self._known = torch.zeros(honest.count, dtype=torch.bool)
        self._moments: CachedMoments | None = None
        self._state: dict[str, Tensor] = {}

    def observe(self, worker: int, vector: Tensor) -> None:
        """Take note of what an honest worker sent. A vector that is not finite tells nothing: the last one stays."""
        if not bool(matrix.all_finite(vector)):
            return
        self._rows[worker] = vector
        self._known[worker] = True
        self._moments = None

    def send(self, turn: ByzantineTurn) -> Tensor | None:
        """Return what a Byzantine worker sends at its turn; None where it knows no honest row, or drops out."""
        if not bool(self._known.any()):
            return None
        if self._moments is None:
            self._moments = CachedMoments(self._rows if bool(self._known.all()) else self._rows[self._known])
        context = AttackContext(
            rule=NoRule(),
            declared_f=self.declared_f,
            generator=random_streams.generator(self.seed, "attack", turn.number),
            step=turn.step,
            parameters=turn.parameters.clone(),  # the adversary reads the parameters but cannot write them
            momentum=self.placement,
            state=self._state,
            moments=self._moments,
            compute_gradients=self._gradients.at(turn),
        )
        row = self.attack(self._moments.rows, self.f, context)[turn.index].clone()
        # In a synchronous round a row of NaN stands for a missing worker. Here a missing worker sends nothing.
        return None if self._drops and bool(row.isnan().all()) else row

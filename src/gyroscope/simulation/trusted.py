"""Samples that the server itself holds, and what an honest worker with them would send: for zeno, fltrust and kin."""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._core import random_streams
from gyroscope._core.errors import ConfigError
from gyroscope.momentum import Adaptive, Placement, State
from gyroscope.simulation.workers import SimulatedWorkers

_ITS_NUMBER = -1  # no worker has it, so that nobody shares its dropout


class TrustedSamples:
    """`count` samples, drawn once from the training split without replacement. They stay in the workers' data, too.

    Their gradient is computed at all of them in every round, in the way of an honest worker: with the L2 term, clipped,
    and, where momentum comes before the rule, accumulated, so that it compares with the rows that the rule is shown.
    """

    def __init__(self, count: int, workers: SimulatedWorkers, placement: Placement, seed: int) -> None:
        available = len(workers.data)
        if count > available:
            raise ConfigError(
                f"the server cannot hold {count} samples where there are {available} to train with: lower trusted"
            )
        if isinstance(placement, Adaptive):
            raise ConfigError(
                f"the placement {placement.name!r} shows the rule now gradients, now accumulated ones, and a trusted "
                "gradient compares with one kind only: use workers, server-kept, server or none"
            )
        drawn = torch.randperm(available, generator=random_streams.generator(seed, "trusted"))[:count]
        self._chosen = drawn.to(workers.parameters.device)
        self._workers, self._placement, self._seed = workers, placement, seed
        self.state: State = placement.init(workers.parameters.unsqueeze(0))
        """The placement's, as if this were the only worker."""

    def gradient(self, step: int, mu: float) -> Tensor:
        """(d,), at the parameters as they are; mu is the momentum factor of this round."""
        workers, data = self._workers, self._workers.data
        inputs, targets = data.inputs.index_select(0, self._chosen), data.targets.index_select(0, self._chosen)
        if data.prepare is not None:
            inputs = data.prepare(inputs, random_streams.generator(self._seed, "trusted augment", step))
        row = workers.parameters.new_empty(1, workers.parameters.numel())
        noise = self._seed, step, _ITS_NUMBER
        workers.gradients(inputs.unsqueeze(0), targets.unsqueeze(0), noise, workers.terms(), row)
        placement = self._placement.at(mu)
        sent, self.state = placement.before(row, self.state)
        shown, self.state = placement.received(sent, self.state, 0, 1)
        return shown[0]

    def played(self, vector: Tensor) -> None:
        """What became of the round: some placements put it into the next round's rows."""
        if self._placement.accumulates_rows:
            _, self.state = self._placement.after(vector, self.state)

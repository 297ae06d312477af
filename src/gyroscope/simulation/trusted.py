"""Samples that the server itself holds, and what an honest worker with them would send: for zeno, fltrust and kin."""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._core import random_streams
from gyroscope._core.errors import ConfigError
from gyroscope.momentum import WorkerMomentum
from gyroscope.simulation.workers import SimulatedWorkers

_NOBODY = -1  # no worker has this number, so no worker shares its dropout


class TrustedSamples:
    """Hold `count` samples, drawn once from the training split without replacement. They stay in the workers' data too.

    Their gradient is computed at all of them in every round as an honest worker would: with the L2 term, clipped, and,
    where momentum comes before the rule, accumulated, so that it compares with the rows that the rule is given.
    """

    def __init__(self, count: int, workers: SimulatedWorkers, momentum: WorkerMomentum | None, seed: int) -> None:
        available = len(workers.data)
        if count > available:
            raise ConfigError(
                f"the server cannot hold {count} samples where there are {available} to train with: lower trusted"
            )
        drawn = torch.randperm(available, generator=random_streams.generator(seed, "trusted"))[:count]
        self._chosen = drawn.to(workers.parameters.device)
        self._workers, self.momentum, self._seed = workers, momentum, seed

    def gradient(self, step: int) -> Tensor:
        """Return the row (d,) at the parameters as they are."""
        workers, data = self._workers, self._workers.data
        inputs, targets = data.inputs.index_select(0, self._chosen), data.targets.index_select(0, self._chosen)
        if data.prepare is not None:
            inputs = data.prepare(inputs, random_streams.generator(self._seed, "trusted augment", step))
        row = workers.parameters.new_empty(1, workers.parameters.numel())
        noise = self._seed, step, (_NOBODY,)
        workers.gradients(inputs.unsqueeze(0), targets.unsqueeze(0), noise, workers.transform(), row)
        return row[0] if self.momentum is None else self.momentum.update(row[0])

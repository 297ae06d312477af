"""Where momentum lives when gradients arrive one by one.

| placement | order | whose sum |
|---|---|---|
| workers | filter(momentum(g)) | each worker's own, of all that it computed |
| server-each | momentum(filter(g)) | one per worker at the server, of what was accepted from it |
| server | momentum(filter(g)) | one for all at the server, of what was accepted from anybody |
| server-rounds | momentum(filter(g)) | the same, with a memory as long as a worker's |
| none | filter(g) | nobody's |

With a filter that accepts everything, `workers` and `server-each` are the same to the bit: that is the sense in which a
filter "commutes with momentum".
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope.momentum import WorkerMomentum

PLACEMENTS = {
    "workers": "before the filter, at each worker: its own gradients, accepted or not",
    "server": "after the filter, at the server: one sum of all accepted gradients",
    "server-each": "after the filter, at the server: a sum for each worker, of what was accepted from it",
    "server-rounds": "as server, with a factor of mu^(1/n), so that the memory lasts as many rounds as a worker's",
    "none": "plain SGD: nobody accumulates",
}


class Accumulator:
    """m <- mu * m + gain * g, and how old what is in m is, in versions of the model."""

    def __init__(self, mu: float, nesterov: bool = False, gain: float = 1.0) -> None:
        self.momentum = WorkerMomentum(mu, nesterov=nesterov)
        self.gain = gain
        self._weight = self._versions = 0.0

    def add(self, gradient: Tensor, version: int, weight: float = 1.0) -> Tensor:
        """The direction after one more gradient, which is counted `weight` times. It is never changed afterwards."""
        factor = weight * self.gain
        direction = self.momentum.update(gradient if factor == 1 else gradient * factor)
        self._weight = self.momentum.mu * self._weight + factor
        self._versions = self.momentum.mu * self._versions + factor * version
        return direction

    @property
    def version(self) -> float:
        """The mean version of the models at which what is in the sum was computed."""
        return self._versions / self._weight if self._weight > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class AsyncDirection:
    """What is applied to the model."""

    vector: Tensor
    version: float
    """The mean version of the models at which it was computed."""


class AsyncPlacement:
    """Two slots: what an honest worker sends, and what the server makes of a gradient that it accepted."""

    def __init__(self, name: str, n: int, mu: float, nesterov: bool = False) -> None:
        check(name, mu, nesterov)
        self.name, self.mu, self.nesterov = name, mu, nesterov
        self.at_workers = name == "workers"
        self._workers: dict[int, Accumulator] = {}
        self._server: dict[int, Accumulator] = {}
        self._slow = mu ** (1 / n) if mu > 0 else 0.0

    def sent(self, worker: int, gradient: Tensor, version: int) -> Tensor:
        """From the gradient that an honest worker computed to what it sends."""
        if not self.at_workers:
            return gradient
        if worker not in self._workers:
            self._workers[worker] = Accumulator(self.mu, self.nesterov)
        return self._workers[worker].add(gradient, version)

    def applied(self, worker: int, vector: Tensor, version: int, weight: float) -> AsyncDirection:
        """From an accepted vector, which is to count `weight` times, to the direction of the update."""
        if self.name in ("workers", "none"):
            own = self._workers.get(worker)
            return AsyncDirection(vector if weight == 1 else vector * weight, own.version if own else version)
        owner = worker if self.name == "server-each" else 0
        if owner not in self._server:
            self._server[owner] = self._at_server()
        accumulator = self._server[owner]
        return AsyncDirection(accumulator.add(vector, version, weight), accumulator.version)

    def _at_server(self) -> Accumulator:
        if self.name != "server-rounds":
            return Accumulator(self.mu, self.nesterov)
        gain = (1 - self._slow) / (1 - self.mu)  # the same sum of all weights, spread over more gradients
        return Accumulator(self._slow, self.nesterov, gain)


def check(name: str, mu: float, nesterov: bool) -> None:
    """Whether there is such a placement."""
    if name not in PLACEMENTS:
        raise UnknownNameError("momentum placement of asynchronous training", name, PLACEMENTS)
    WorkerMomentum(mu)  # says what a factor may be
    if name == "none" and nesterov:
        raise ConfigError("nesterov needs a momentum: choose a placement other than 'none'")

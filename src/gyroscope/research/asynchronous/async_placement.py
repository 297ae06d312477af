"""Where momentum is computed when gradients arrive one by one.

| placement | order | what is summed |
|---|---|---|
| workers | filter(momentum(g)) | at each worker, all gradients that it computed |
| server-each | momentum(filter(g)) | at the server, one sum per worker, of the gradients accepted from it |
| server | momentum(filter(g)) | at the server, one sum of all accepted gradients |
| server-rounds | momentum(filter(g)) | the same, with a memory as long as a worker's |
| none | filter(g) | nothing |

With a filter that accepts everything, `workers` and `server-each` are the same to the bit: in that sense a filter
"commutes with momentum".
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope._linalg import matrix
from gyroscope.momentum import WorkerMomentum
from gyroscope.momentum.worker_momentum import check_mu

PLACEMENTS = {
    "workers": "before the filter, at each worker: its own gradients, accepted or not",
    "server": "after the filter, at the server: one sum of all accepted gradients",
    "server-each": "after the filter, at the server: a sum for each worker, of what was accepted from it",
    "server-rounds": "as server, with a factor of mu^(1/n), so that the memory lasts as many rounds as a worker's",
    "none": "plain SGD: no momentum",
}


class VersionedMomentum:
    """Accumulate gradients, m <- mu * m + gain * g, and track at which versions of the model they were computed."""

    def __init__(self, mu: float, nesterov: bool = False, gain: float = 1.0) -> None:
        self.momentum = WorkerMomentum(mu, nesterov=nesterov)
        self.gain = gain
        self._weight = self._versions = 0.0

    def add(self, gradient: Tensor, version: int, weight: float = 1.0) -> Tensor:
        """Return the direction after one more gradient, multiplied by `weight`. Later calls do not change it.

        A gradient that is not finite is returned as it is and leaves no trace in the sum.
        """
        factor = weight * self.gain
        direction = self.momentum.update(gradient if factor == 1 else gradient * factor)
        if bool(matrix.all_finite(gradient)):
            self._weight = self.momentum.mu * self._weight + factor
            self._versions = self.momentum.mu * self._versions + factor * version
        return direction

    @property
    def version(self) -> float:
        """The mean version of the models at which the gradients in the sum were computed."""
        return self._versions / self._weight if self._weight > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class AsyncDirection:
    """The direction of an update."""

    vector: Tensor
    version: float
    """The mean version of the models at which it was computed."""


class AsyncPlacement:
    """Compute what an honest worker sends, and what the server applies when it has accepted a gradient."""

    def __init__(self, name: str, n: int, mu: float, nesterov: bool = False) -> None:
        check(name, mu, nesterov)
        self.name, self.mu, self.nesterov = name, mu, nesterov
        self._workers: dict[int, VersionedMomentum] = {}
        self._server: dict[int, VersionedMomentum] = {}
        self._slow = mu ** (1 / n) if mu > 0 else 0.0

    def sent(self, worker: int, gradient: Tensor, version: int) -> Tensor:
        """Return what an honest worker sends for a gradient that it computed."""
        if self.name != "workers":
            return gradient
        if worker not in self._workers:
            self._workers[worker] = VersionedMomentum(self.mu, self.nesterov)
        return self._workers[worker].add(gradient, version)

    def applied(self, worker: int, vector: Tensor, version: int, weight: float) -> AsyncDirection:
        """Return the direction of the update for an accepted vector, multiplied by `weight`."""
        if self.name in ("workers", "none"):
            own = self._workers.get(worker)
            return AsyncDirection(vector if weight == 1 else vector * weight, own.version if own else version)
        owner = worker if self.name == "server-each" else 0
        if owner not in self._server:
            self._server[owner] = self._new_at_server()
        momentum = self._server[owner]
        return AsyncDirection(momentum.add(vector, version, weight), momentum.version)

    def _new_at_server(self) -> VersionedMomentum:
        if self.name != "server-rounds":
            return VersionedMomentum(self.mu, self.nesterov)
        gain = (1 - self._slow) / (1 - self.mu)  # the same sum of all weights, spread over more gradients
        return VersionedMomentum(self._slow, self.nesterov, gain)


def check(name: str, mu: float, nesterov: bool) -> None:
    """Raise where there is no such placement, or no such momentum."""
    if name not in PLACEMENTS:
        raise UnknownNameError("momentum placement of asynchronous training", name, PLACEMENTS)
    check_mu(mu)
    if name == "none" and nesterov:
        raise ConfigError("nesterov needs a momentum: leave nesterov out, or choose a placement other than 'none'")

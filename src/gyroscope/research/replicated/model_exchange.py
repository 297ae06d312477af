"""The models that servers send to workers and to each other, and the median that each receiver takes of its quorum."""

from __future__ import annotations

import dataclasses
from collections.abc import MutableMapping

import torch
from torch import Tensor

from gyroscope._core import random_streams
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import order_statistics
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks import Attack, AttackContext
from gyroscope.research.replicated import quorums
from gyroscope.rules import Median


@dataclasses.dataclass(frozen=True)
class Replication:
    """How many servers there are, how large the quorums are, and what the Byzantine servers do."""

    servers: int
    byzantine: int
    """How many servers really are Byzantine: 0 without an attack."""
    declared_f: int
    """How many the others tolerate."""
    server_quorum: int
    """How many models a receiver waits for."""
    worker_quorum: int
    """How many rows a server waits for."""
    attack: Attack | None = None
    """Of the Byzantine servers, on models: see `ModelExchange`."""
    exchange_every: int = 1
    """How many steps there are between two exchanges of the servers' models."""

    @property
    def honest(self) -> int:
        """How many servers are honest."""
        return self.servers - self.byzantine


AdversaryStates = MutableMapping[str, dict[str, Tensor]]
"""The attacks' states, by phase and receiver."""


class ModelExchange:
    """The models that the servers send in one phase of a step: to the workers, or to each other.

    The messages of Byzantine servers always arrive in time. They do with the honest servers' *updates* what Byzantine
    workers do with gradients, so every attack on gradients is one on models, too: they send `before` plus what the
    attack makes of the honest models minus `before`, the mean honest model one step ago. `sign-flip` reverses the
    update, `zero` repeats the last model, `gaussian` sends a random model, `little` hides in the honest servers'
    deviation. The context's `server` is the receiver's number, by which an attack may equivocate.
    """

    def __init__(
        self,
        phase: str,
        step: int,
        seed: int,
        models: Tensor,
        before: Tensor,
        replication: Replication,
        states: AdversaryStates,
    ) -> None:
        self.phase, self.step, self.seed = phase, step, seed
        self.models, self.before, self.replication, self.states = models, before, replication, states
        self.updates = CachedMoments(models - before) if replication.byzantine else None

    def medians(self, receivers: int) -> Tensor:
        """Return (receivers, d): the median that each receiver computes. A server also hears itself."""
        if self.replication.byzantine:
            return torch.stack([median(self.received_by(receiver, receivers)) for receiver in range(receivers)])
        known: dict[tuple[int, ...], Tensor] = {}  # many workers share the few possible quorums of servers
        chosen = []
        for receiver in range(receivers):
            quorum = tuple(self._honest_senders(receiver).tolist())
            if quorum not in known:
                known[quorum] = median(self.received_by(receiver, receivers))
            chosen.append(known[quorum])
        return torch.stack(chosen)

    def received_by(self, receiver: int, receivers: int) -> Tensor:
        """Return (quorum, d): the models that reach this receiver in time, honest ones first."""
        received = self.models.index_select(0, self._honest_senders(receiver).to(self.models.device))
        if not self.replication.byzantine:
            return received
        return torch.cat([received, self._byzantine_models(receiver, receivers)])

    def _honest_senders(self, receiver: int) -> Tensor:
        return quorums.draw(
            self.seed,
            f"models to {self.phase}",
            receiver,
            self.step,
            len(self.models),
            self.replication.server_quorum - self.replication.byzantine,
            own=receiver if self.phase == "servers" else None,
        )

    def _byzantine_models(self, receiver: int, receivers: int) -> Tensor:
        replication = self.replication
        assert replication.attack is not None and self.updates is not None
        context = AttackContext(
            rule=Median(even="mean"),
            declared_f=replication.declared_f,
            generator=random_streams.generator(self.seed, f"server attack, {self.phase}", self.step),
            step=self.step,
            parameters=self.before.clone(),
            state=self.states.setdefault(f"{self.phase}/{receiver}", {}),
            moments=self.updates,
            compute_gradients=_no_data,
            server=receiver,
            servers=receivers,
        )
        return replication.attack(self.updates.rows, replication.byzantine, context) + self.before


def _no_data(flipped: bool) -> Tensor:
    raise ConfigError(
        "this attack begins with gradients at the attackers' own data, and servers have none: choose another "
        "server_attack, such as sign-flip, little or equivocate"
    )


def median(models: Tensor) -> Tensor:
    """Return the median of each coordinate; of an even number of models the mean of both middle values.

    The lower middle value, which rules take, would lower all parameters a little at every exchange. A quorum of an even
    number has at least two more honest models than Byzantine ones, so both middle values are within the honest range.
    """
    return order_statistics.median(models, even="mean")

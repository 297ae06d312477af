"""What others hear of the servers' models: the honest ones that arrived in time, and what the Byzantine ones sent."""

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
    """How many servers there are, whom of them and of the workers one waits for, and what the Byzantine ones do."""

    servers: int
    byzantine: int
    """How many servers really are Byzantine: 0 without an attack."""
    declared_f: int
    """How many the others must reckon with."""
    server_quorum: int
    worker_quorum: int
    attack: Attack | None = None
    """On models: see `ModelExchange`."""
    exchange_every: int = 1

    @property
    def honest(self) -> int:
        return self.servers - self.byzantine


AdversaryStates = MutableMapping[str, dict[str, Tensor]]
"""The adversary's, by phase and receiver."""


class ModelExchange:
    """The models that the servers send in one phase of a step: to the workers, or to each other.

    Byzantine servers are heard by everyone: their messages always arrive in time. They do with the honest servers'
    *updates* what Byzantine workers do with gradients, so every attack is one on models, too: they send `before` plus
    what the attack makes of the honest models minus `before`, the mean honest model one step ago. `sign-flip` is the
    update reversed, `zero` a server that stands still, `gaussian` a random model, `little` hides in the honest servers'
    own deviation. The context's `server` is the receiver's number: one who looks at it may tell everyone another story.
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
        """(receivers, d): what each of them takes for the model. Servers are receivers who also hear themselves."""
        if self.replication.byzantine:
            return torch.stack([median(self.heard_by(receiver, receivers)) for receiver in range(receivers)])
        known: dict[tuple[int, ...], Tensor] = {}  # workers are many, and quorums of few servers are few
        chosen = []
        for receiver in range(receivers):
            quorum = tuple(self._honest_heard_by(receiver).tolist())
            if quorum not in known:
                known[quorum] = median(self.heard_by(receiver, receivers))
            chosen.append(known[quorum])
        return torch.stack(chosen)

    def heard_by(self, receiver: int, receivers: int) -> Tensor:
        """(quorum, d): honest models first."""
        heard = self.models.index_select(0, self._honest_heard_by(receiver).to(self.models.device))
        return heard if not self.replication.byzantine else torch.cat([heard, self._lies(receiver, receivers)])

    def _honest_heard_by(self, receiver: int) -> Tensor:
        return quorums.draw(
            self.seed,
            f"models to {self.phase}",
            receiver,
            self.step,
            len(self.models),
            self.replication.server_quorum - self.replication.byzantine,
            own=receiver if self.phase == "servers" else None,
        )

    def _lies(self, receiver: int, receivers: int) -> Tensor:
        replication = self.replication
        assert replication.attack is not None and self.updates is not None
        view = AttackContext(
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
        return replication.attack(self.updates.rows, replication.byzantine, view) + self.before


def _no_data(flipped: bool) -> Tensor:
    raise ConfigError(
        "this attack begins with gradients at the attackers' own data, and servers have none: choose another "
        "server_attack, such as sign-flip, little or equivocate"
    )


def median(models: Tensor) -> Tensor:
    """Of each coordinate; of an even number the mean of both middles.

    The lower middle, which rules take, would push all parameters down a little at every exchange. A quorum of an even
    number has at least two honest models more than Byzantine ones, so both middles are within the honest range.
    """
    return order_statistics.median(models, even="mean")

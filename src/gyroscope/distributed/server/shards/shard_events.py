"""What passes between the links of a sharded server: the events of its shards, and whole rows made of their parts."""

from __future__ import annotations

from typing import Any, NamedTuple

from gyroscope.distributed.server.links import Links
from gyroscope.distributed.server.shards.channel import Message


class PartAnswered(NamedTuple):
    """A shard has its part of a worker's row."""

    worker: int
    step: int
    finite: bool
    momentum_finite: bool


class Admitted(NamedTuple):
    """A shard lets a worker join that has joined the coordinator."""

    worker: int
    epoch: int


class RowAnswered(NamedTuple):
    """All shards have their parts of a worker's row."""

    worker: int
    step: int
    loss: float
    finite: bool
    """Whether all parts are."""
    momentum_finite: bool


class FromShard(NamedTuple):
    """An event of a shard, at the coordinator."""

    shard: int
    event: Any


class ShardGone(NamedTuple):
    """A shard's process has ended."""

    shard: int


class QueuedLinks(Links):
    """Links among whose events the process that has them may queue others, so that one thread waits for both."""

    def queue_event(self, event: FromShard | ShardGone | Message) -> None:
        """Let `events` return this, too."""
        self._events.put(event)  # type: ignore[arg-type]

    def queued(self, seconds: float) -> list[Any]:
        """Return what `events` does, with what was queued."""
        return list(self.events(seconds))

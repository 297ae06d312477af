"""The links of a sharded server: to each worker one from the coordinator and one from every shard, as if they were one.

All decisions are made here, in the coordinator's thread: a worker has joined when it has joined everywhere, its row has
come when all parts have, and when one of its links is lost all of them are ended.
"""

from __future__ import annotations

import dataclasses
import itertools
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope.distributed.protocol import NO_STEP, OPEN_SHARDS, ROUND, Head, Offer
from gyroscope.distributed.server.link_events import Answered, Joined, LinkEvent, Lost, Refused, Rejected
from gyroscope.distributed.server.links import MomentumOf
from gyroscope.distributed.server.monitor import Link
from gyroscope.distributed.server.shards.channel import Message
from gyroscope.distributed.server.shards.shard_events import (
    Admitted,
    FromShard,
    PartAnswered,
    QueuedLinks,
    RowAnswered,
    ShardGone,
)
from gyroscope.distributed.server.shards.shard_handle import ShardGoneError, ShardHandle

_FRONT = -1
"""In place of a shard's number: the coordinator's own link."""


class FrontLinks(QueuedLinks):
    """The coordinator's own links, over which workers join, are told to begin, and report their losses: no values."""

    def tell(self, workers: Iterable[int], step: int) -> None:
        """Tell these linked workers to begin a step, and expect answers without values."""
        told = [self.linked[number] for number in workers if number in self.linked]
        if told:
            self._loop.call_soon_threadsafe(self._tell, told, step)

    def _tell(self, connections: list[Any], step: int) -> None:
        for connection in connections:
            connection.ask(step, Head(ROUND, step).pack())


@dataclasses.dataclass
class _Member:
    """A worker that has joined the coordinator, and its links to the shards."""

    who: str
    epoch: int
    admitted: set[int] = dataclasses.field(default_factory=set)
    """The shards that let it join."""
    joined: set[int] = dataclasses.field(default_factory=set)
    """The shards that it has joined, and _FRONT once it says so itself."""
    linked: bool = False
    """Whether it has joined everywhere."""
    step: int = NO_STEP
    """The step that it was asked for last."""
    parts: dict[int, Any] = dataclasses.field(default_factory=dict)
    """What has come of that step, by shard; the loss by _FRONT."""


class ShardedLinks:
    """What `Links` is to a server in one process. Only one thread calls the public methods.

    Args:
        front: The coordinator's own links.
        listeners: A listening socket for each shard.
        keys: The folder with the server's keys; None for connections without TLS.
        dimension: The number of columns.
    """

    def __init__(
        self,
        front: FrontLinks,
        listeners: list[socket.socket],
        keys: Path | None,
        dimension: int,
        stop: Callable[[], bool],
    ) -> None:
        if dimension < len(listeners):
            for listener in listeners:
                listener.close()
            raise ConfigError(
                f"{len(listeners)} server shards cannot split {dimension} columns: give --server-shards at most "
                f"{dimension}"
            )
        self.front, self.address, self.refusals, self.stop = front, front.address, front.refusals, stop
        bounds = [dimension * number // len(listeners) for number in range(len(listeners) + 1)]
        self.shards = [
            ShardHandle(number, begin, end, listener, keys, front.queue_event)
            for number, (listener, (begin, end)) in enumerate(zip(listeners, itertools.pairwise(bounds), strict=True))
        ]
        self._everywhere = {_FRONT, *range(len(self.shards))}
        self._members: dict[int, _Member] = {}
        self._epochs, self._serials = itertools.count(), itertools.count()
        self._step = NO_STEP
        self._momentum_of: MomentumOf = lambda number: (NO_STEP, None)
        self._is_open = False
        self._restored: tuple[Tensor, list[int]] | None = None

    def where(self) -> tuple[tuple[int, int], ...]:
        """Return each shard's port and the end of its columns, for the workers."""
        return tuple((shard.port, shard.end) for shard in self.shards)

    # -- as Links has it ----------------------------------------------------------------------------------------------

    def open(self, offer: Offer, momentum_of: MomentumOf, patience: float) -> None:
        """Let workers join from now on; see `Links.open`. Only the step of what `momentum_of` returns is used."""
        self._momentum_of = momentum_of
        threads = max(1, torch.get_num_threads() // len(self.shards))
        for shard in self.shards:
            part = dataclasses.replace(offer, dimension=shard.end - shard.begin, shards=())
            shard.order("open", part.text(), patience, threads)
            if self._restored is not None:
                momentum, steps = self._restored
                shard.order("restore", steps, values=[momentum[:, shard.begin : shard.end]])
        self._is_open, self._restored = True, None
        self.front.open(offer, lambda number: (NO_STEP, None), patience)

    def publish(self, step: int, parameters: Tensor) -> None:
        """Send each shard its part of the parameters of this step."""
        self._step = step
        for shard in self.shards:
            shard.order("publish", step, values=[parameters[shard.begin : shard.end]])

    def ask(self, workers: Iterable[int]) -> None:
        """Ask these linked workers for the parts of their rows of the step that was published last."""
        asked = [number for number in workers if number in self._members and self._members[number].linked]
        for number in asked:
            member = self._members[number]
            member.step, member.parts = self._step, {}
        if asked:
            for shard in self.shards:
                shard.order("ask", asked)
            self.front.tell(asked, self._step)

    def events(self, seconds: float) -> list[LinkEvent | RowAnswered]:
        """Return what has happened to workers since, and wait that long at most for the first report.

        Raises:
            ShardGoneError: A shard has ended.
        """
        found: list[LinkEvent | RowAnswered] = []
        for event in self.front.queued(seconds):
            if isinstance(event, ShardGone):
                self.front.queue_event(event)  # whoever asks again learns it again
                raise ShardGoneError(self.shards[event.shard].obituary())
            found += self._from_shard(event) if isinstance(event, FromShard) else self._from_front(event)
        return found

    def who_is_linked(self) -> dict[int, Link]:
        """Return who takes part now, by number; see `Links.who_is_linked`."""
        return self.front.who_is_linked()

    def preparing(self) -> set[int]:
        """Return the numbers of those who load their data now, or join the shards."""
        return self.front.preparing() | {number for number, member in self._members.items() if not member.linked}

    def close(self, over: bool, seconds: float) -> list[Any]:
        """Close all links, end the shards, and return the last events; see `Links.close`."""
        for shard in self.shards:
            shard.order("close", over, seconds)
        last = self.front.close(over, seconds)
        for shard in self.shards:
            shard.finish(seconds + 5.0)
        inner = [event.event if isinstance(event, FromShard) else event for event in [*last, *self.front.queued(0.0)]]
        return [event for event in inner if isinstance(event, Refused)]

    # -- what only shards have ----------------------------------------------------------------------------------------

    def forget(self, worker: int, step: int) -> None:
        """Let no shard continue from a worker's momentum of this step."""
        for shard in self.shards:
            shard.order("forget", worker, step)

    def restore(self, momentum: Tensor, steps: list[int]) -> None:
        """Begin with the workers' momentum of these steps."""
        self._restored = momentum, steps

    def momentum(self, steps: list[int], seconds: float) -> Tensor | None:
        """Return the workers' momentum of these steps, put together; None before any worker has joined.

        Raises:
            ShardGoneError: A shard has ended, or does not reply for so long.
        """
        if not self._is_open:
            return self._restored[0] if self._restored else None
        serial = next(self._serials)
        for shard in self.shards:
            shard.order("state", serial, steps)
        return torch.cat([shard.reply(serial, lambda: False, seconds).values[0] for shard in self.shards], dim=1)

    def aggregate(self, taken: list[int], measured: list[int] | None, stride: int, distances: bool) -> list[Message]:
        """Let the shards apply the rule to the rows of this round, and return their replies.

        Args:
            taken: The workers whose rows count.
            measured: The workers of whose rows the moments are wanted; None for no moments.
            stride: Of the columns to show; 0 for none.
            distances: Whether the rule reads the distances between rows.

        Raises:
            ShardGoneError: A shard has ended.
            RoundAbandonedError: The run is to stop.
        """
        serial = next(self._serials)
        for shard in self.shards:
            sampled = [-shard.begin % stride, stride] if stride else []
            shard.order("aggregate", serial, taken, measured, sampled)
        if distances:
            # Added up here, in the order of the shards, so that all select from the same bits.
            table = sum((reply.values[0] for reply in self._replies(serial)), start=torch.zeros(()))
            for shard in self.shards:
                shard.order("select", values=[table])
        return self._replies(serial)

    def _replies(self, serial: int) -> list[Message]:
        return [shard.reply(serial, self.stop, float("inf")) for shard in self.shards]

    # -- one worker, many links ---------------------------------------------------------------------------------------

    def _from_front(self, event: Any) -> list[LinkEvent | RowAnswered]:
        if isinstance(event, Refused):
            return [event]
        if isinstance(event, Joined):
            member = self._members[event.worker] = _Member(event.who, next(self._epochs))
            step, _ = self._momentum_of(event.worker)
            for shard in self.shards:
                shard.order("admit", event.worker, step, member.epoch)
            return []
        if isinstance(event, Answered) and event.step != OPEN_SHARDS:
            return self._part(_FRONT, event.worker, event.step, event.loss)
        return self._of_member(_FRONT, event)

    def _from_shard(self, report: FromShard) -> list[LinkEvent | RowAnswered]:
        shard, event = report
        if isinstance(event, Refused):
            return [event._replace(who=f"{event.who}, at shard {shard}")]
        if isinstance(event, PartAnswered):
            return self._part(shard, event.worker, event.step, (event.finite, event.momentum_finite))
        return self._of_member(shard, event)

    def _of_member(self, place: int, event: Any) -> list[LinkEvent | RowAnswered]:
        member = self._members.get(event.worker)
        if member is None:  # its links are being ended
            return []
        if isinstance(event, Admitted):
            if event.epoch == member.epoch:
                member.admitted.add(place)
                if len(member.admitted) == len(self.shards):
                    self.front.tell([event.worker], OPEN_SHARDS)
        elif isinstance(event, (Joined, Answered)):
            member.joined.add(place)
            if member.joined == self._everywhere and not member.linked:
                member.linked = True
                return [Joined(event.worker, member.who)]
        elif isinstance(event, Rejected):
            return [event] if member.linked else []
        elif place == _FRONT or place in member.joined:  # Lost
            return self._lost(place, event, member)
        return []

    def _lost(self, place: int, event: Lost, member: _Member) -> list[LinkEvent | RowAnswered]:
        """End a worker's other links, too."""
        where = "" if place == _FRONT else f" (shard {place})"
        del self._members[event.worker]
        for shard in self.shards:
            shard.order("drop", event.worker, "another link of this worker is lost")
        self.front.end_link(event.worker, f"its link to shard {place} is lost: {event.why}")
        if member.linked:
            return [event._replace(why=event.why + where)]
        return [Refused(member.who, f"could not join all shards: {event.why}{where}", event.worker)]

    def _part(self, place: int, worker: int, step: int, part: Any) -> list[LinkEvent | RowAnswered]:
        member = self._members.get(worker)
        if member is None or not member.linked or step != member.step:
            return []
        member.parts[place] = part
        if set(member.parts) != self._everywhere:
            return []
        of_shards = [member.parts[shard.number] for shard in self.shards]
        finite, momentum_finite = (all(each) for each in zip(*of_shards, strict=True))
        return [RowAnswered(worker, step, member.parts[_FRONT], finite, momentum_finite)]

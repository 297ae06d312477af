"""A worker's links to the shards of a server, each of which has some of the columns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gyroscope._core.errors import LinkError
from gyroscope.distributed import protocol
from gyroscope.distributed.connection import ServerConnection
from gyroscope.distributed.protocol import Head, Message, Offer, bytes_of


class RunOverError(Exception):
    """The server says that the run is over."""


class Refusal(NamedTuple):
    """A shard does not let the worker join."""

    code: int
    why: str


class _Shard:
    """One link: the columns behind it, and the message that answers for them."""

    def __init__(self, connection: ServerConnection, begin: int, end: int, offer: Offer, dtype: torch.dtype) -> None:
        self.connection, self.columns = connection, slice(begin, end)
        both = offer.whole_values // offer.dimension  # the row, and maybe the momentum behind it
        self.answer = Message(both * (end - begin), dtype)
        self.session = 0

    def fill(self, values: Tensor, dimension: int) -> None:
        """Take this shard's columns of a row, and of the momentum behind it."""
        for place, whole in zip(self.answer.values.view(-1, self.width), values.view(-1, dimension), strict=True):
            place.copy_(whole[self.columns])

    @property
    def width(self) -> int:
        return self.columns.stop - self.columns.start


class ShardLinks(contextlib.ExitStack):
    """The links to all shards; they end together.

    Args:
        offer: The server's offer, which lists the shards.
        connect: Returns a connection to this port of the server's host.
        dtype: Of the rows.
        seconds: How long the server may be silent, and how long so many bytes may take.
    """

    def __init__(
        self,
        offer: Offer,
        connect: Callable[[int], ServerConnection],
        dtype: torch.dtype,
        seconds: Callable[[int], float],
    ) -> None:
        super().__init__()
        self.offer, self.connect, self.dtype, self.seconds = offer, connect, dtype, seconds
        self.shards: list[_Shard] = []
        self.parameters = torch.zeros(offer.dimension, dtype=dtype)
        self.momentum: Tensor | None = None
        """What the worker continues with, once it has joined all."""

    def join(self, hello: bytes) -> Refusal | None:
        """Join all shards. Return why one does not let us, and None where all do.

        Raises:
            RunOverError: The run is over.
            LinkError: A shard sends what it should not.
            OSError: A shard cannot be reached.
        """
        begin, steps, momentum = 0, set(), torch.zeros_like(self.parameters)
        for port, end in self.offer.shards:
            shard = _Shard(self.enter_context(self.connect(port)), begin, end, self.offer, self.dtype)
            shard.connection.send(hello, self.seconds(0))
            head = self._head(shard, {protocol.OFFER: protocol.LONGEST_OFFER, protocol.REFUSE: protocol.LONGEST_TEXT})
            text = bytearray(head.size)
            shard.connection.receive(memoryview(text), self.seconds(0))
            if head.kind == protocol.REFUSE:
                return Refusal(head.step, text.decode(errors="replace"))
            shard.connection.send(Head(protocol.READY).pack(), self.seconds(0))
            part = bytes_of(momentum[shard.columns])
            head = self._head(shard, {protocol.WELCOME: len(part)})
            if head.size not in (0, len(part)):
                raise LinkError(f"a shard sent a momentum of {head.size} bytes instead of {len(part)}")
            shard.connection.receive(part[: head.size], self.seconds(head.size))
            shard.session = head.session
            steps.add(head.step if head.size else protocol.NO_STEP)
            self.shards.append(shard)
            begin = end
        known = len(steps) == 1 and protocol.NO_STEP not in steps  # parts of several steps are no momentum
        self.momentum = momentum if known else None
        return None

    def receive(self, step: int) -> None:
        """Receive the parameters of this step, from all shards.

        Raises:
            RunOverError, LinkError, OSError: As for `join`.
        """
        for shard in self.shards:
            part = bytes_of(self.parameters[shard.columns])
            while True:  # what it was asked before an answer was rejected may still be on its way
                head = self._head(shard, {protocol.ROUND: len(part)})
                if head.size != len(part):
                    raise LinkError(f"a shard sent parameters of {head.size} bytes instead of {len(part)}")
                shard.connection.receive(part, self.seconds(len(part)))
                if head.step == step:
                    break

    def send(self, step: int, values: Tensor, reply: Callable[[ServerConnection, Message, int], None]) -> None:
        """Send the row, to each shard its part."""
        for shard in self.shards:
            shard.fill(values, self.offer.dimension)
            shard.answer.seal(protocol.ANSWER, step, shard.session)
            reply(shard.connection, shard.answer, step)

    def _head(self, shard: _Shard, longest: dict[int, int]) -> Head:
        """Wait for the head of a message of these kinds, each with its longest payload."""
        while True:
            head = shard.connection.receive_head(self.seconds(0))
            if head.kind == protocol.END:
                raise RunOverError
            if head.kind in longest and head.size <= longest[head.kind]:
                return head
            if head.kind != protocol.PING or head.size:
                raise LinkError(f"a shard sent a message of kind {head.kind} with {head.size} bytes")

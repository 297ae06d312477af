"""What server and workers say to each other: messages over a link, and the few keys of the common store.

A message is bytes: a head, the values, and a tail. gloo delivers a message that is too short as if nothing were amiss,
so only the tail tells that all of it came; and because head and tail are wiped before, no old ones can be taken for
new ones. (A message that is too long ends the receiving process: see `link`.) Texts in the store are TOML or plain
words. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gyroscope import __version__
from gyroscope._core import optional
from gyroscope._core.errors import GyroscopeError, LinkError
from gyroscope.runs.config import ResolvedConfig

if TYPE_CHECKING:  # torch exports them, but does not tell the type checker so
    from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore
else:
    from torch.distributed import PrefixStore, ProcessGroupGloo, Store, TCPStore

__all__ = ["PrefixStore", "TCPStore"]  # for the others, who need them under these names

VERSION = 3
"""Of these messages and keys: both sides must have the same."""

WELCOME, ROUND, PING, END, ANSWER = range(5)
"""Kinds of messages: momentum to go on with, parameters, nothing, nothing more; and a worker's row."""

_HEAD = struct.Struct("<8sqqqqd")  # opening, kind, step, worker, bytes of values, loss
_TAIL = struct.Struct("<8sq")  # closing, step
_OPENING, _CLOSING = b"gyro-msg", b"gyro-end"
_NO_HEAD, _NO_TAIL = b"\xff" * _HEAD.size, b"\xff" * _TAIL.size

NO_STEP = -1
EVERYBODY = -1
"""In the place of a worker's number: parameters are the same for all, and so is the message with them."""

_RENDEZVOUS_SECONDS = 20.0


class UnfitError(Exception):
    """A message that is not what it should be."""


@dataclasses.dataclass(frozen=True)
class Head:
    """What a message says of itself."""

    kind: int
    step: int
    worker: int
    loss: float


class Message:
    """A buffer for messages with so many values, to be filled and sent, or received and read.

    buffer: memory of the right size (`Message.bytes`) that somebody else has, too; by default fresh memory.
    """

    def __init__(self, values: int, dtype: torch.dtype, buffer: Tensor | None = None) -> None:
        size = values * dtype.itemsize
        self.buffer = torch.zeros(self.bytes(values, dtype), dtype=torch.uint8) if buffer is None else buffer
        self.values = self.buffer[_HEAD.size : _HEAD.size + size].view(dtype)
        self._bytes = memoryview(self.buffer.numpy())  # type: ignore[arg-type]
        self._size = size

    @staticmethod
    def bytes(values: int, dtype: torch.dtype) -> int:
        """How long a message with so many values is."""
        return _HEAD.size + values * dtype.itemsize + _TAIL.size

    def wipe(self) -> None:
        """Forget head and tail. The values may stay: they are looked at only once a new tail, behind them, has come."""
        self._bytes[: _HEAD.size] = _NO_HEAD
        self._bytes[-_TAIL.size :] = _NO_TAIL

    def seal(self, kind: int, step: int, worker: int, loss: float = math.nan) -> None:
        """Write head and tail around the values."""
        _HEAD.pack_into(self._bytes, 0, _OPENING, kind, step, worker, self._size, loss)
        _TAIL.pack_into(self._bytes, _HEAD.size + self._size, _CLOSING, step)

    def read(self, kinds: tuple[int, ...], worker: int) -> Head:
        """The head of a complete message of one of these kinds; `UnfitError` says why it is none."""
        opening, kind, step, number, size, loss = _HEAD.unpack_from(self._bytes, 0)
        closing, again = _TAIL.unpack_from(self._bytes, _HEAD.size + self._size)
        if opening != _OPENING:
            raise UnfitError("it does not begin like a message")
        if kind not in kinds:
            raise UnfitError(f"a message of kind {kind} is out of place")
        if number != worker and (kind, number) != (ROUND, EVERYBODY):
            raise UnfitError(f"it is from worker {number}")
        if size != self._size:
            raise UnfitError(f"it announces {size} bytes of values instead of {self._size}")
        if closing != _CLOSING or again != step:
            raise UnfitError("it is too short")
        return Head(kind, step, number, loss)


class Wire:
    """One end of a link: a gloo group of two, server (rank 0) and worker (rank 1)."""

    def __init__(self, store: Store, worker: int, generation: str, rank: int, address: str) -> None:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        # Without a device of our own choice gloo would listen wherever the machine's name leads to.
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=_RENDEZVOUS_SECONDS)
        prefix = PrefixStore(f"link.{worker}.{generation}", store)
        self._peer = 1 - rank
        self._group: Any = ProcessGroupGloo(prefix, rank, 2, options)

    def send(self, message: Message, seconds: float) -> None:
        """Return once the other side has taken it; RuntimeError where that does not happen."""
        self._group.send([message.buffer], self._peer, 0).wait(timedelta(seconds=seconds))

    def receive(self, message: Message, seconds: float) -> None:
        """Wait for the next message; RuntimeError where none comes or the other side is gone."""
        message.wipe()
        self._group.recv([message.buffer], self._peer, 0).wait(timedelta(seconds=seconds))


def reach(host: str, port: int, seconds: float) -> TCPStore:
    """The store that a server has there."""
    return TCPStore(host, port, None, False, timedelta(seconds=seconds))


# -- the store: who may join, and what is trained ---------------------------------------------------------------------

OFFER = "offer"
"""What is trained, and how the links are made: TOML."""
OVER = "over"
"""Set once the run has ended."""


def link_key(worker: int) -> str:
    """Holds the generation of the link that waits for, or has, this worker; nothing while its process is not ready.

    Who claims a link whose process is yet to start waits for it in vain where starting takes long, and the process
    then waits for whoever has claimed it.
    """
    return f"link/{worker}"


def claim_key(worker: int, generation: str) -> str:
    """Holds who took the link: the first to write it has it."""
    return f"claim/{worker}/{generation}"


@dataclasses.dataclass(frozen=True)
class Offer:
    """What a worker needs to know before it joins."""

    config: ResolvedConfig
    count: int
    """Workers are numbered from 0 to count - 1."""
    dimension: int
    dtype: str
    deadline: float = dataclasses.field(compare=False)
    """Tells a worker how long a dead predecessor may go unnoticed; changes nothing that it computes."""

    @property
    def answer_values(self) -> int:
        """How many values a worker answers with: a row, and its momentum too where the row does not show it."""
        both = self.config.momentum == "workers" and self.config.nesterov
        return 2 * self.dimension if both else self.dimension

    def text(self) -> str:
        # The folder and the device are the server's own: a worker has its own.
        config = dataclasses.replace(self.config, data_dir=None, device="cpu", checkpoint_every=None)
        known = {field.name: getattr(config, field.name) for field in dataclasses.fields(ResolvedConfig)}
        values = {name: value for name, value in known.items() if value is not None}
        link = {
            "protocol": VERSION,
            "version": __version__,
            "count": self.count,
            "dimension": self.dimension,
            "dtype": self.dtype,
            "deadline": self.deadline,
        }
        return optional.format_toml({"link": link, "config": values})

    @classmethod
    def parse(cls, text: str) -> Offer:
        """Whatever the text says, the worst that can come of it is a LinkError."""
        try:
            values: dict[str, Any] = optional.parse_toml(text)
            link, config = values["link"], values["config"]
            protocol, version = int(link["protocol"]), str(link["version"])
            count, dimension = int(link["count"]), int(link["dimension"])
            dtype, deadline = str(link["dtype"]), float(link["deadline"])
        except (LookupError, TypeError, ValueError) as problem:
            raise LinkError(
                f"the server's offer cannot be read ({problem}): is it a gyroscope server of this version?"
            ) from problem
        if protocol != VERSION:
            raise LinkError(
                f"the server is gyroscope {version} and speaks version {protocol} of the protocol, this worker is "
                f"gyroscope {__version__} and speaks {VERSION}: install the same version on both"
            )
        try:
            # Not resolved here: to resolve a spec may import what it names, at the word of whoever sent the offer.
            return cls(ResolvedConfig(**config), count, dimension, dtype, deadline)
        except (GyroscopeError, TypeError) as problem:
            raise LinkError(f"the server's configuration cannot be used: {problem}") from problem

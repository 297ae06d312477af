"""The messages between server and workers, and the keys of the store through which a worker joins.

A message is bytes: a head, the values, and a tail. gloo delivers a message that is too short without an error, so only
the tail shows that the whole message came; the receiver wipes head and tail before, so that old ones cannot pass for
new ones. (A message that is too long ends the receiving process: see `server.link_process`.) Texts in the store are
TOML or plain words. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

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

__all__ = ["PrefixStore", "ProcessGroupGloo", "Store", "TCPStore"]  # imported from here by other modules

VERSION = 3
"""The version of these messages and keys, which must be the same on both sides."""

WELCOME, ROUND, PING, END, ANSWER = range(5)
"""Kinds of messages: the momentum to continue with, parameters, a heartbeat, the end of the run; a worker's row."""

_HEAD = struct.Struct("<8sqqqqd")  # opening, kind, step, worker, bytes of values, loss
_TAIL = struct.Struct("<8sq")  # closing, step
_OPENING, _CLOSING = b"gyro-msg", b"gyro-end"
_NO_HEAD, _NO_TAIL = b"\xff" * _HEAD.size, b"\xff" * _TAIL.size

NO_STEP = -1
EVERYBODY = -1
"""In place of a worker's number: all workers receive the same message with parameters."""

_RENDEZVOUS_SECONDS = 20.0


class MalformedMessageError(Exception):
    """A message that is incomplete, of the wrong kind or size, or from another worker."""


class Head(NamedTuple):
    """What a message says about itself."""

    kind: int
    step: int
    worker: int
    loss: float


class Message:
    """A buffer for a message with `count` values, to fill and send, or to receive and read.

    A message in shared memory can be passed to another process, which then reads and writes the same bytes.
    """

    def __init__(self, count: int, dtype: torch.dtype, buffer: Tensor | None = None, *, shared: bool = False) -> None:
        size = count * dtype.itemsize
        if buffer is None:
            buffer = torch.zeros(_HEAD.size + size + _TAIL.size, dtype=torch.uint8)
        if shared:
            buffer.share_memory_()  # type: ignore[no-untyped-call]
        self.buffer = buffer
        self.values = buffer[_HEAD.size : _HEAD.size + size].view(dtype)
        self._bytes = memoryview(buffer.numpy())  # type: ignore[arg-type]
        self._size = size

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, (self.values.numel(), self.values.dtype, self.buffer)

    def wipe(self) -> None:
        """Erase head and tail. The values may stay: nobody reads them before a new tail, behind them, has come."""
        self._bytes[: _HEAD.size] = _NO_HEAD
        self._bytes[-_TAIL.size :] = _NO_TAIL

    def seal(self, kind: int, step: int, worker: int, loss: float = math.nan) -> None:
        """Write head and tail around the values."""
        _HEAD.pack_into(self._bytes, 0, _OPENING, kind, step, worker, self._size, loss)
        _TAIL.pack_into(self._bytes, _HEAD.size + self._size, _CLOSING, step)

    def read(self, kinds: tuple[int, ...], worker: int) -> Head:
        """Return the head of a complete message of one of these kinds.

        Raises:
            MalformedMessageError: there is no such message in the buffer; its text says why.
        """
        opening, kind, step, number, size, loss = _HEAD.unpack_from(self._bytes, 0)
        closing, again = _TAIL.unpack_from(self._bytes, _HEAD.size + self._size)
        if opening != _OPENING:
            raise MalformedMessageError("it does not begin like a message")
        if kind not in kinds:
            raise MalformedMessageError(f"a message of kind {kind} is out of place")
        if number != worker and (kind, number) != (ROUND, EVERYBODY):
            raise MalformedMessageError(f"it is from worker {number}")
        if size != self._size:
            raise MalformedMessageError(f"it announces {size} bytes of values instead of {self._size}")
        if closing != _CLOSING or again != step:
            raise MalformedMessageError("it is too short")
        return Head(kind, step, number, loss)


class GlooConnection:
    """One end of a link: a gloo group of two, server (rank 0) and worker (rank 1)."""

    def __init__(self, store: Store, worker: int, generation: str, rank: int, address: str) -> None:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        # Without a named device gloo would listen on the address that the machine's name resolves to.
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=_RENDEZVOUS_SECONDS)
        prefix = PrefixStore(f"link.{worker}.{generation}", store)
        self._peer = 1 - rank
        self._group: Any = ProcessGroupGloo(prefix, rank, 2, options)

    def send(self, message: Message, seconds: float) -> None:
        """Send a message, and return once the other side has taken it; RuntimeError where it does not."""
        self._group.send([message.buffer], self._peer, 0).wait(timedelta(seconds=seconds))

    def receive(self, message: Message, seconds: float) -> None:
        """Wait for the next message; RuntimeError where none comes or the other side is gone."""
        message.wipe()
        self._group.recv([message.buffer], self._peer, 0).wait(timedelta(seconds=seconds))


def connect(host: str, port: int, seconds: float) -> TCPStore:
    """Connect to the store of the server that listens there."""
    return TCPStore(host, port, None, False, timedelta(seconds=seconds))


OFFER = "offer"
"""The store's key of the `Offer`, TOML, with which the handshake with a worker begins."""
OVER = "over"
"""A key that the server sets once the run has ended."""


def link_key(worker: int) -> str:
    """Return the key of the generation of this worker's link; it is empty until the link's process is ready."""
    return f"link/{worker}"


def claim_key(worker: int, generation: str) -> str:
    """Return the key of the identity that took the link: the first process that writes it has it."""
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
        """The number of values in an answer: a row, and the momentum behind it where the row does not show it."""
        both = self.config.momentum == "workers" and self.config.nesterov
        return 2 * self.dimension if both else self.dimension

    def text(self) -> str:
        """Return the TOML text that `parse` reads."""
        # The folder and the device are the server's; a worker has its own.
        config = dataclasses.replace(self.config, data_dir=None, device="cpu", checkpoint_every=None)
        known = {field.name: getattr(config, field.name) for field in dataclasses.fields(ResolvedConfig)}
        values = {name: value for name, value in known.items() if value is not None}
        link = {name: value for name, value in vars(self).items() if name != "config"}
        return optional.format_toml({"link": {"protocol": VERSION, "version": __version__, **link}, "config": values})

    @classmethod
    def parse(cls, text: str) -> Offer:
        """Read an offer. Whatever the text holds, nothing worse than a LinkError comes of it."""
        try:
            values: dict[str, Any] = optional.parse_toml(text)
            link, config = values["link"], values["config"]
            protocol, version = int(link["protocol"]), str(link["version"])
            count, dimension = int(link["count"]), int(link["dimension"])
            dtype, deadline = str(link["dtype"]), float(link["deadline"])
            # Not resolved here: resolving a spec may import the module it names, and a stranger may have written it.
            # Which folder to read and which device to use is the worker's own choice, whatever a server writes.
            own = {"data_dir": None, "device": "cpu"}
            resolved = ResolvedConfig(**{**config, **own}) if protocol == VERSION else None
        except (GyroscopeError, LookupError, TypeError, ValueError) as problem:
            raise LinkError(
                f"the server's offer cannot be read ({problem}): is it a gyroscope server of this version?"
            ) from problem
        if resolved is None:
            raise LinkError(
                f"the server is gyroscope {version} and speaks version {protocol} of the protocol, this worker is "
                f"gyroscope {__version__} and speaks {VERSION}: install the same version on both"
            )
        return cls(resolved, count, dimension, dtype, deadline)

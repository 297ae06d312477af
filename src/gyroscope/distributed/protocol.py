"""The messages between server and workers.

A message is a head of fixed size and a payload: plain numbers, or a short text. The head says how many bytes follow,
and the receiver compares that with what it expects before it takes any of them. Texts are TOML or plain words. Nothing
is ever unpickled. A stream of bytes that is reliable and in order carries the messages: TCP, with TLS or without.

    worker                                  server
    HELLO  number, who                 ->
                                       <-   OFFER  the configuration; or REFUSE  why
    READY                              ->
                                       <-   WELCOME  session, momentum
                                       <-   ROUND  step, parameters
    ANSWER  step, session, loss, row   ->                                ... and so on, until
                                       <-   END

A server with shards sends and receives no values itself: its offer lists the shards, each of which speaks the same way
and has some of the columns. The worker joins them when the server says so, and begins a round when it says so.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gyroscope import __version__
from gyroscope._core import optional
from gyroscope._core.errors import GyroscopeError, LinkError
from gyroscope._core.foreign_text import shortened
from gyroscope.distributed import row_formats
from gyroscope.distributed.row_formats import Full, RowFormat
from gyroscope.runs.config import ResolvedConfig

VERSION = 6
"""The version of these messages, which must be the same on both sides."""

HELLO, OFFER, REFUSE, READY, WELCOME, ROUND, ANSWER, PING, END = range(1, 10)
"""Kinds of messages."""

_HEAD = struct.Struct("<4sHHqqQd")  # opening, version, kind, step, session, bytes of payload, loss
_OPENING = b"gyro"
HEAD_SIZE = _HEAD.size

LONGEST_TEXT = 2048
"""Bytes in the text of a HELLO or a REFUSE."""
LONGEST_OFFER = 8192
"""Many times what an offer needs: the time that TOML takes to parse may grow with the square of its length."""

NO_STEP = -1
UNKNOWN = -1
"""In place of a worker's number: whoever the certificate names."""

OPEN_SHARDS = -2
"""In place of a ROUND's step: open the links to the shards. The worker answers once it has."""

LATER, TAKEN, FINAL = range(3)
"""In place of a REFUSE's step. LATER: the server is not ready. TAKEN: the number has a link. FINAL: not with this."""


class MalformedMessageError(Exception):
    """Bytes that are no message, or a message that is out of place."""


class Head(NamedTuple):
    """What a message says about itself."""

    kind: int
    step: int = NO_STEP
    session: int = 0
    size: int = 0
    """Bytes of payload."""
    loss: float = math.nan

    def pack(self) -> bytes:
        """Return the bytes that `parse` reads."""
        return _HEAD.pack(_OPENING, VERSION, self.kind, self.step, self.session, self.size, self.loss)

    @classmethod
    def parse(cls, content: bytes | bytearray | memoryview) -> Head:
        """Read HEAD_SIZE bytes.

        Raises:
            MalformedMessageError: they are no head; the text says why. Nothing else is raised, whatever the bytes are.
        """
        if len(content) != HEAD_SIZE:
            raise MalformedMessageError(f"a head has {HEAD_SIZE} bytes, these are {len(content)}")
        opening, version, kind, step, session, size, loss = _HEAD.unpack(content)
        if opening != _OPENING:
            raise MalformedMessageError("it does not begin like a message")
        if version != VERSION:
            raise MalformedMessageError(
                f"it is written in version {version} of the protocol, here gyroscope {__version__} speaks {VERSION}: "
                "install the same version on both sides"
            )
        if not HELLO <= kind <= END:
            raise MalformedMessageError(f"there are no messages of kind {kind}")
        return cls(kind, step, session, size, loss)


class Message:
    """A buffer with room for a head and `count` values, to fill and send."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        self.buffer = torch.zeros(HEAD_SIZE + count * dtype.itemsize, dtype=torch.uint8)
        self.values = self.buffer[HEAD_SIZE:].view(dtype)
        self.bytes = memoryview(self.buffer.numpy())  # type: ignore[arg-type]

    def seal(self, kind: int, step: int, session: int, loss: float = math.nan) -> None:
        """Write the head before the values."""
        self.bytes[:HEAD_SIZE] = Head(kind, step, session, len(self.bytes) - HEAD_SIZE, loss).pack()


def bytes_of(values: Tensor) -> memoryview:
    """Return the memory of a contiguous vector on the CPU."""
    return memoryview(values.view(torch.uint8).numpy())  # type: ignore[arg-type]


def text_message(kind: int, text: str, step: int = NO_STEP) -> bytes:
    """Return a message whose payload is a text, cut where it is longer than a receiver takes."""
    content = text.encode()[: LONGEST_OFFER if kind == OFFER else LONGEST_TEXT]
    return Head(kind, step, size=len(content)).pack() + content


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
    row_format: RowFormat = dataclasses.field(default_factory=Full)
    """How rows and momenta are written in answers. Parameters and a WELCOME's momentum are always as they are."""
    shards: tuple[tuple[int, int], ...] = dataclasses.field(default=(), compare=False)
    """The port of each shard, on the server's host, and the end of its columns; empty where the server has them all."""

    @property
    def hands_momentum(self) -> bool:
        """Whether the server hands a worker that joins the momentum that it sent last, to continue with."""
        return self.config.momentum == "workers" and self.row_format.shows_row

    @property
    def row_values(self) -> int:
        """The number of values that are sent of a row."""
        return self.row_format.count(self.dimension)

    @property
    def whole_values(self) -> int:
        """The number of values of a row, and of the momentum behind it where the row does not show it."""
        return 2 * self.row_values if self.hands_momentum and self.config.nesterov else self.row_values

    @property
    def answer_values(self) -> int:
        """The number of values in an answer to this server; to its shards go others."""
        return 0 if self.shards else self.whole_values

    @property
    def answer_dtype(self) -> torch.dtype:
        """The type of the values in an answer."""
        own: torch.dtype = getattr(torch, self.dtype)
        return self.row_format.dtype_for(own)

    def text(self) -> str:
        """Return the TOML text that `parse` reads."""
        # The folder and the device are the server's; a worker has its own.
        config = dataclasses.replace(self.config, data_dir=None, device="cpu", checkpoint_every=None)
        known = {field.name: getattr(config, field.name) for field in dataclasses.fields(ResolvedConfig)}
        values = {name: value for name, value in known.items() if value is not None}
        link = {name: value for name, value in vars(self).items() if name != "config"}
        link["row_format"] = str(self.row_format)
        return optional.format_toml({"link": {"version": __version__, **link}, "config": values})

    @classmethod
    def parse(cls, text: str) -> Offer:
        """Read an offer. Whatever the text holds, nothing worse than a LinkError comes of it."""
        try:
            values: dict[str, Any] = optional.parse_toml(text)
            link, config = values["link"], values["config"]
            count, dimension = int(link["count"]), int(link["dimension"])
            dtype, deadline = str(link["dtype"]), float(link["deadline"])
            if not (count > 0 and dimension > 0 and 0 < deadline < math.inf):
                raise ValueError(f"{count} workers, {dimension} parameters, a deadline of {deadline} s")
            row_format = row_formats.parse(str(link["row_format"]))
            shards = _checked_shards(link.get("shards", ()), dimension)
            # Not resolved here: resolving a spec may import the module it names, and a stranger may have written it.
            # Which folder to read and which device to use is the worker's own choice, whatever a server writes.
            own = {"data_dir": None, "device": "cpu"}
            resolved = ResolvedConfig(**{**config, **own})
        except (GyroscopeError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as problem:
            raise LinkError(
                f"the server's offer cannot be read ({shortened(problem, 200)}): is it a gyroscope server of this "
                "version?"
            ) from problem
        return cls(resolved, count, dimension, dtype, deadline, row_format, shards)


def _checked_shards(given: Any, dimension: int) -> tuple[tuple[int, int], ...]:
    shards = tuple((int(port), int(end)) for port, end in given)
    ends = [end for _, end in shards]
    if shards and ([0, *ends] != sorted({0, *ends}) or ends[-1] != dimension):
        raise ValueError(f"shards that end at columns {ends} are no parts of {dimension} columns")
    if not all(0 < port < 65536 for port, _ in shards):
        raise ValueError("the port of a shard is not from 1 to 65535")
    return shards

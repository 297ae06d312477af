"""Messages between the coordinator and its shards: processes of one server on one machine, which trust each other.

A message is a line of JSON, and tensors behind it. They go over a pair of sockets that only the two processes have, so
no stranger can send any.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gyroscope.distributed.protocol import bytes_of

_LENGTH = struct.Struct("<Q")


class Message(NamedTuple):
    """What one process tells the other."""

    kind: str
    facts: list[Any]
    """Numbers and texts, as JSON has them."""
    values: list[Tensor]


class Channel:
    """One end of the pair of sockets. One thread sends, and one, possibly another, receives."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def send(self, kind: str, *facts: Any, values: Sequence[Tensor] = ()) -> None:
        """Send a message; OSError where the other process has ended."""
        parts = [value.detach().to("cpu").contiguous() for value in values]
        shapes = [(str(part.dtype).removeprefix("torch."), list(part.shape)) for part in parts]
        head = json.dumps([kind, facts, shapes]).encode()
        self._socket.sendall(_LENGTH.pack(len(head)) + head)
        for part in parts:
            self._socket.sendall(bytes_of(part.view(-1)))

    def receive(self) -> Message:
        """Wait for the next message; EOFError or OSError where the other process has ended."""
        (length,) = _LENGTH.unpack(self._filled(bytearray(_LENGTH.size)))
        kind, facts, shapes = json.loads(self._filled(bytearray(length)))
        values = [torch.empty(shape, dtype=getattr(torch, dtype)) for dtype, shape in shapes]
        for value in values:
            self._filled(bytes_of(value.view(-1)))
        return Message(kind, facts, values)

    def _filled(self, place: Any) -> Any:
        view = memoryview(place)
        filled = 0
        while filled < len(view):
            count = self._socket.recv_into(view[filled:])
            if count == 0:
                raise EOFError
            filled += count
        return place

    def close(self) -> None:
        """End the channel; the other process notices."""
        self._socket.close()

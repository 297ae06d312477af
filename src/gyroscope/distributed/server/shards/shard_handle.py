"""The coordinator's end of a shard: its process, the orders to it, and what it replies."""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gyroscope._core.errors import RoundAbandonedError
from gyroscope.distributed.server.link_events import Joined, Lost, Refused, Rejected
from gyroscope.distributed.server.shards import shard_process
from gyroscope.distributed.server.shards.channel import Channel, Message
from gyroscope.distributed.server.shards.shard_events import Admitted, FromShard, PartAnswered, ShardGone

_EVENTS: dict[str, Any] = {kind.__name__: kind for kind in (Admitted, Joined, Lost, PartAnswered, Refused, Rejected)}
_SLICE_SECONDS = 0.2
_END_SECONDS = 5.0


class ShardGoneError(RoundAbandonedError):
    """A shard's process has ended, and with it the columns that it had."""


class ShardHandle:
    """A shard's process and its channel. Only one thread gives orders.

    Args:
        number: Which shard this is, from 0.
        begin, end: Its columns.
        listener: Where workers connect to it; it is the shard's from now on.
        keys: The folder with the server's keys; None for connections without TLS.
        queue_event: Called with each event of the shard, from a thread of its own.
    """

    def __init__(
        self,
        number: int,
        begin: int,
        end: int,
        listener: socket.socket,
        keys: Path | None,
        queue_event: Callable[[FromShard | ShardGone], None],
    ) -> None:
        self.number, self.begin, self.end = number, begin, end
        self.port: int = listener.getsockname()[1]
        self.failure = ""
        self._queue_event = queue_event
        self._replies: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        ours, its = socket.socketpair()
        descriptors = (its.fileno(), listener.fileno())
        command = [
            sys.executable,
            "-m",
            shard_process.__name__,
            *map(str, descriptors),
            str(keys.resolve()) if keys else "",
        ]
        self.process = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL)
        its.close()
        listener.close()
        self.channel = Channel(ours)
        threading.Thread(target=self._read, name=f"shard-{number}", daemon=True).start()

    def _read(self) -> None:
        """Sort what the shard says, until it ends."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self.channel.receive()
                if message.kind == "event":
                    name, fields = message.facts
                    self._queue_event(FromShard(self.number, _EVENTS[name](*fields)))
                elif message.kind == "reply":
                    self._replies.put(message)
                else:
                    self.failure = str(message.facts[0])
        self._replies.put(None)
        self._queue_event(ShardGone(self.number))

    def order(self, kind: str, *facts: Any, values: Sequence[Tensor] = ()) -> None:
        """Tell the shard what to do. Where it has ended, whoever waits for it next learns so."""
        with contextlib.suppress(OSError):
            self.channel.send(kind, *facts, values=values)

    def reply(self, serial: int, stop: Callable[[], bool], seconds: float) -> Message:
        """Wait for the reply to an order.

        Raises:
            ShardGoneError: The shard has ended, or does not reply for so long.
            RoundAbandonedError: The run is to stop.
        """
        begun = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                message = self._replies.get(timeout=_SLICE_SECONDS)
                if message is None:
                    self._replies.put(None)
                    raise ShardGoneError(self.obituary())
                if message.facts[0] == serial:  # else of an order that was abandoned
                    return message
            if time.monotonic() - begun > seconds:
                raise ShardGoneError(f"shard {self.number} has not replied for {seconds:g} s")
            if stop():
                raise RoundAbandonedError("")

    def obituary(self) -> str:
        """Return how the shard ended, for people."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
        code = self.process.returncode
        how = self.failure or (f"it was killed by signal {-code}" if code and code < 0 else f"its exit code is {code}")
        return f"the process of shard {self.number} (columns {self.begin} to {self.end - 1}) has ended: {how}"

    def finish(self, seconds: float) -> None:
        """Wait for the process to end, which it was told to do; kill it where it does not."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.channel.close()

"""Many workers in one process: each has a connection and a certificate of its own, and answers every round at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import ssl
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.stub_workers import HOST
from benchmarks.transport_workers import as_bytes, rows_of
from gyroscope.distributed import protocol, tls
from gyroscope.distributed.connection import HANDSHAKE_SECONDS
from gyroscope.distributed.protocol import HEAD_SIZE, Head
from gyroscope.distributed.worker import _CONNECT_SECONDS, _LONGEST_PAUSE, _POLL_SECONDS


class CrowdReport(NamedTuple):
    """What the crowd has seen until the end of the run."""

    began: float
    """When its first worker began to connect, by the clock that all processes of a machine share."""
    attempts: int
    """Connections that it has begun: more than workers, where some did not come about."""
    heartbeats: int
    processor: float
    """Seconds."""


class _Crowd:
    """What all workers of the process share. What they receive is all the same, so it goes to one place."""

    def __init__(self, n: int, d: int) -> None:
        self.rows = rows_of(n, d)
        self.place = memoryview(bytearray(max(protocol.LONGEST_OFFER, 4 * d)))
        self.attempts = self.heartbeats = 0


class _Client(asyncio.BufferedProtocol):
    """One worker's end of a connection."""

    transport: Any

    def __init__(self, crowd: _Crowd, number: int) -> None:
        self.crowd, self.number, self.session, self.over = crowd, number, 0, False
        self.row = as_bytes(crowd.rows[number])
        self.ended = asyncio.Event()
        self._head_bytes = memoryview(bytearray(HEAD_SIZE))
        self._head: Head | None = None
        self._target, self._filled = self._head_bytes, 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(protocol.text_message(protocol.HELLO, "one of many"))

    def connection_lost(self, problem: Exception | None) -> None:
        self.ended.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._target):
            return
        if self._head is None:
            self._head = Head.parse(self._head_bytes)
            self._target, self._filled = self.crowd.place[: self._head.size], 0
            if self._head.size:
                return
        head, self._head = self._head, None
        self._target, self._filled = self._head_bytes, 0
        self._handle(head)

    def _handle(self, head: Head) -> None:
        if head.kind == protocol.OFFER:
            self.transport.write(Head(protocol.READY).pack())
        elif head.kind == protocol.WELCOME:
            self.session = head.session
        elif head.kind == protocol.ROUND:
            self.transport.write(Head(protocol.ANSWER, head.step, self.session, len(self.row), 0.0).pack())
            self.transport.write(self.row)
        elif head.kind == protocol.PING:
            self.crowd.heartbeats += 1
        else:  # the end, or a refusal
            self.over = head.kind == protocol.END
            self.transport.close()


def _same(client: _Client) -> _Client:
    return client


async def _work(crowd: _Crowd, number: int, port: int, context: ssl.SSLContext) -> None:
    """Connect, and connect again after the same pauses as a worker process, until the run is over."""
    loop, pause = asyncio.get_running_loop(), _POLL_SECONDS
    while True:
        crowd.attempts += 1
        client = _Client(crowd, number)
        made = functools.partial(_same, client)
        connecting = loop.create_connection(made, HOST, port, ssl=context, server_hostname=HOST)
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(connecting, _CONNECT_SECONDS + HANDSHAKE_SECONDS)
            await client.ended.wait()
        if client.over:
            return
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE)


async def _work_together(crowd: _Crowd, port: int, contexts: list[ssl.SSLContext]) -> None:
    await asyncio.gather(*(_work(crowd, number, port, context) for number, context in enumerate(contexts)))


def crowd(number: int, pipe: Connection, port: int, keys: Path, n: int, d: int) -> None:
    """Be n workers of the server at this port until its run is over, and report."""
    contexts = [tls.worker_context(keys / f"worker-{one}.crt") for one in range(n)]
    shared, began, before = _Crowd(n, d), time.monotonic(), time.process_time()
    asyncio.run(_work_together(shared, port, contexts))
    pipe.send(CrowdReport(began, shared.attempts, shared.heartbeats, time.process_time() - before))

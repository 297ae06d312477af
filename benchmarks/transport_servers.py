"""The server's side of the transports that `benchmarks.transports` compares."""

from __future__ import annotations

import asyncio
import functools
import importlib
import queue
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks import stub_workers
from benchmarks.stub_workers import HOST, PATIENCE
from benchmarks.transport_workers import (
    CURVE,
    SECONDS,
    Kind,
    as_bytes,
    grpc_listen,
    grpc_options,
    pieces,
    receive,
    rows_of,
)
from gyroscope._core.errors import LinkError
from gyroscope.distributed import tls


class Memory:
    """The parameters and the matrix of rows, and the bytes of both."""

    def __init__(self, n: int, d: int) -> None:
        self.n, self.d = n, d
        self.parameters, self.rows = torch.zeros(d), torch.zeros(n, d)
        self.sent, self.received = as_bytes(self.parameters), [as_bytes(row) for row in self.rows]


class Server:
    """The server's side of a transport. It listens from its construction on."""

    port: int

    def __init__(self, kind: Kind, memory: Memory, folder: Path) -> None:
        self.kind, self.memory, self.folder, self.rounds = kind, memory, folder, 0

    def connect(self) -> None:
        """Wait for workers, where that cannot wait until the first round."""

    def round(self) -> None:
        """Send the parameters and receive the rows."""
        raise NotImplementedError

    def checked_round(self) -> None:
        """Make a round, and make sure that all rows have come."""
        self.memory.rows.zero_()
        self.numbered_round()
        if not self.memory.rows.equal(rows_of(self.memory.n, self.memory.d)):
            raise LinkError(f"{self.kind}: these are not the rows that the workers have sent")

    def numbered_round(self) -> None:
        """Make a round with parameters that tell a worker which round it is."""
        self.rounds += 1
        self.memory.parameters[-1] = self.rounds
        self.round()

    def close(self) -> None:
        """Stop listening."""


class ThreadServer(Server):
    """A thread per worker, with a blocking socket."""

    def __init__(self, kind: Kind, memory: Memory, folder: Path) -> None:
        super().__init__(kind, memory, folder)
        self.orders: list[queue.SimpleQueue[bool]] = [queue.SimpleQueue() for _ in range(memory.n)]
        self.done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.listen()

    def listen(self) -> None:
        self.listener = socket.create_server((HOST, 0), backlog=self.memory.n)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def round(self) -> None:
        for order in self.orders:
            order.put(True)
        for _ in self.orders:
            self.done.get(timeout=SECONDS)

    def close(self) -> None:
        for order in self.orders:
            order.put(False)

    def _accept(self) -> None:
        for _ in range(self.memory.n):
            connection, _ = self.listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        self.listener.close()

    def _serve(self, plain: socket.socket) -> None:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = tls.server_context(self.folder) if self.kind.encrypted else None
        with context.wrap_socket(plain, server_side=True) if context else plain as connection:
            number = connection.recv(1)[0]
            while self.orders[number].get():
                connection.sendall(self.memory.sent)
                receive(connection, self.memory.received[number])
                self.done.put(number)


class GrpcThreadServer(ThreadServer):
    """gRPC's server with a thread per stream. Messages are bytes: nothing parses them."""

    def listen(self) -> None:
        import grpc

        self.server = grpc.server(ThreadPoolExecutor(self.memory.n), options=grpc_options(self.kind))
        self.port = grpc_listen(self.server, self._stream, self.kind, self.folder)
        self.server.start()

    def round(self) -> None:
        self.parameters = list(pieces(self.memory.sent, self.kind.chunk))  # once for all workers
        super().round()

    def close(self) -> None:
        super().close()
        self.server.stop(None).wait()

    def _stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        number = int(dict(context.invocation_metadata())["worker"])
        while self.orders[number].get():
            yield from self.parameters
            row, done = self.memory.received[number], 0
            while done < len(row):
                piece = next(requests)
                row[done : done + len(piece)] = piece
                done += len(piece)
            self.done.put(number)


class LoopServer(Server):
    """Something in the event loop, which has a thread of its own: the main thread gives the order and waits."""

    def __init__(self, kind: Kind, memory: Memory, folder: Path) -> None:
        super().__init__(kind, memory, folder)
        self.all_here, self.row_done = threading.Event(), asyncio.Event()
        self.streams: dict[int, Any] = {}
        in_loop(self.listen())

    async def listen(self) -> None:
        raise NotImplementedError

    async def exchange(self) -> None:
        """Make a round, in the loop."""
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    def joined(self, number: int, stream: Any) -> None:
        self.streams[number] = stream
        if len(self.streams) == self.memory.n:
            self.all_here.set()

    def connect(self) -> None:
        if not self.all_here.wait(SECONDS):
            raise LinkError(f"{self.kind}: {len(self.streams)} of {self.memory.n} workers are here")

    def round(self) -> None:
        in_loop(self.exchange())

    def close(self) -> None:
        in_loop(self.stop())


class GrpcLoopServer(LoopServer):
    """gRPC's asyncio server."""

    async def listen(self) -> None:
        import grpc.aio

        self.server = grpc.aio.server(options=grpc_options(self.kind))
        self.port = grpc_listen(self.server, self._stream, self.kind, self.folder)
        await self.server.start()

    async def exchange(self) -> None:
        parameters = list(pieces(self.memory.sent, self.kind.chunk))
        await asyncio.gather(*(self._one(number, parameters) for number in self.streams))

    async def stop(self) -> None:
        await self.server.stop(None)

    async def _one(self, number: int, parameters: list[bytes]) -> None:
        stream = self.streams[number]
        for piece in parameters:
            await stream.write(piece)
        row, done = self.memory.received[number], 0
        while done < len(row):
            piece = await stream.read()
            row[done : done + len(piece)] = piece
            done += len(piece)

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.joined(int(dict(context.invocation_metadata())["worker"]), context)
        await asyncio.Event().wait()  # until the stream is cancelled


class AsyncioServer(LoopServer):
    """asyncio with its own sockets and ssl; rows arrive where they belong."""

    async def listen(self) -> None:
        secure = tls.server_context(self.folder) if self.kind.encrypted else None
        make = functools.partial(_AsyncioConnection, self)
        self.server = await asyncio.get_running_loop().create_server(make, HOST, 0, ssl=secure, backlog=self.memory.n)
        self.port = self.server.sockets[0].getsockname()[1]

    async def exchange(self) -> None:
        self.missing = self.memory.n
        self.row_done.clear()
        for stream in self.streams.values():
            stream.send()
        await self.row_done.wait()

    def has_row(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.row_done.set()

    async def stop(self) -> None:
        self.server.close()


class _AsyncioConnection(asyncio.BufferedProtocol):
    def __init__(self, server: AsyncioServer) -> None:
        self.server, self.number = server, -1
        self.buffer, self.filled = memoryview(bytearray(1)), 0
        self.sent, self.paused = 0, False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.filled += nbytes
        if self.filled < len(self.buffer):
            return
        self.filled = 0
        if self.number < 0:
            self.number = self.buffer[0]
            self.buffer = self.server.memory.received[self.number]
            self.server.joined(self.number, self)
        else:
            self.server.has_row()

    def send(self) -> None:
        self.sent = 0
        self._write()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._write()

    def _write(self) -> None:
        values, chunk = self.server.memory.sent, self.server.kind.chunk
        while self.sent < len(values) and not self.paused:
            begin, self.sent = self.sent, self.sent + chunk
            self.transport.write(values[begin : begin + chunk])


class ZmqServer(Server):
    """ZeroMQ: one ROUTER socket, whole rows as messages."""

    def __init__(self, kind: Kind, memory: Memory, folder: Path) -> None:
        zmq: Any = importlib.import_module("zmq")
        importlib.import_module("zmq.auth.thread")

        super().__init__(kind, memory, folder)
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.guard = zmq.auth.thread.ThreadAuthenticator(self.context)
        if kind.encrypted:
            (folder / CURVE).mkdir()
            for side in ("server", "worker"):
                zmq.auth.create_certificates(folder / CURVE, side)
            self.guard.start()
            self.guard.configure_curve(domain="*", location=str(folder / CURVE))
            public, secret = zmq.auth.load_certificate(folder / CURVE / "server.key_secret")
            self.socket.curve_publickey, self.socket.curve_secretkey, self.socket.curve_server = public, secret, True
        self.port = self.socket.bind_to_random_port(f"tcp://{HOST}")

    def connect(self) -> None:
        self.names = [self.socket.recv_multipart()[0] for _ in range(self.memory.n)]

    def round(self) -> None:
        for name in self.names:
            self.socket.send_multipart([name, self.memory.sent], copy=False)
        for _ in self.names:
            name, row = self.socket.recv_multipart(copy=False)
            self.memory.received[int(name.bytes)][:] = row.buffer

    def close(self) -> None:
        if self.kind.encrypted:
            self.guard.stop()
        self.context.destroy(linger=0)


class GlooServer(Server):
    """gloo in this process: a group of two per worker."""

    def __init__(self, kind: Kind, memory: Memory, folder: Path) -> None:
        super().__init__(kind, memory, folder)
        self.store = stub_workers.store()
        self.port = self.store.port

    def connect(self) -> None:
        self.groups = [stub_workers.pair(self.store, number, 0) for number in range(self.memory.n)]

    def round(self) -> None:
        works = [group.send([self.memory.parameters], 1, 0) for group in self.groups]
        works += [group.recv([row], 1, 0) for group, row in zip(self.groups, self.memory.rows, strict=True)]
        for work in works:
            work.wait(PATIENCE)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def in_loop(thing: Coroutine[Any, Any, None]) -> None:
    """Run this in the event loop's thread, and wait for it."""
    asyncio.run_coroutine_threadsafe(thing, _loop()).result(SECONDS)

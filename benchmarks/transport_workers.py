"""The workers' side of the transports that `benchmarks.transports` compares, and what both sides share."""

from __future__ import annotations

import asyncio
import datetime
import importlib
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks import stub_workers
from benchmarks.stub_workers import HOST
from gyroscope._core.errors import LinkError
from gyroscope.distributed import certificates, tls

METHOD = "/server/round"
WORKER = "worker-0"
"""The name in the certificate that all workers of a measurement show."""
CURVE = "curve"
"""The folder of ZeroMQ's keys, which reads every file that is called *.key."""
SECONDS = 60.0
"""After so long without a row the measurement is given up."""


class Kind(NamedTuple):
    """Which transport, and how it is set up."""

    name: str
    encrypted: bool = False
    chunk: int = 256 * 1024
    """Bytes that are written at once, where the transport does not choose it."""

    def __str__(self) -> str:
        size = f", {self.chunk // 1024} KiB" if self.name.startswith("gRPC") else ""
        cipher = "" if not self.encrypted else ", CURVE" if self.name == "ZeroMQ" else ", TLS"
        return self.name + size + cipher


def as_bytes(values: Tensor) -> memoryview:
    """Return the memory of a vector."""
    return memoryview(values.numpy()).cast("B")  # type: ignore[arg-type]


def pieces(values: memoryview, chunk: int) -> Iterator[bytes]:
    """Copy the values to messages of this size, which is what gRPC can send."""
    return (bytes(values[begin : begin + chunk]) for begin in range(0, len(values), chunk))


def rows_of(n: int, d: int) -> Tensor:
    """Return the rows that workers answer with: all different, in the memory of hardly more than one."""
    return stub_workers.row_of(0, n + d).unfold(0, d, 1)[:n]


# -- the workers -------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a worker meets the server, and how."""

    kind: Kind
    port: int
    folder: Path
    """It has certificates and keys."""


class Worker(NamedTuple):
    """A worker that has its row ready."""

    number: int
    row: Tensor
    parameters: Tensor
    """Where it receives parameters: the same for all workers of a process, since they all receive the same."""

    def check(self, count: int) -> None:
        if int(self.parameters[-1]) != count:
            raise LinkError(f"worker {self.number} has not received the parameters of round {count}")


Side = Callable[[Worker, Place], Any]
"""What a worker does with a transport: a function for a thread of its own, or a coroutine."""


def work(number: int, pipe: Connection, side: Side, place: Place, each: int, n: int, d: int) -> None:
    """Be `each` of n workers, until this process is ended."""
    rows, parameters = rows_of(n, d), torch.zeros(d)
    workers = [Worker(one, rows[one], parameters) for one in range(number * each, (number + 1) * each)]
    pipe.send(os.getpid())
    if asyncio.iscoroutinefunction(side):
        asyncio.run(_together([side(worker, place) for worker in workers]))
    with ThreadPoolExecutor(each) as pool:
        for done in [pool.submit(side, worker, place) for worker in workers]:
            done.result()


async def _together(things: list[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*things)


def socket_worker(worker: Worker, place: Place) -> None:
    plain = socket.create_connection((HOST, place.port), SECONDS)
    plain.settimeout(None)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = plain
    if place.kind.encrypted:
        context = tls.worker_context(place.folder / f"{WORKER}.crt")
        connection = context.wrap_socket(plain, server_hostname=HOST)
    connection.sendall(bytes([worker.number]))
    row, incoming, count = as_bytes(worker.row), as_bytes(worker.parameters), 0
    while True:
        receive(connection, incoming)
        worker.check(count := count + 1)
        connection.sendall(row)


async def grpc_worker(worker: Worker, place: Place) -> None:
    import grpc.aio

    target, options = f"{HOST}:{place.port}", grpc_options(place.kind)
    if place.kind.encrypted:
        credentials = grpc.ssl_channel_credentials(*grpc_certificates(place.folder, WORKER))
        channel = grpc.aio.secure_channel(target, credentials, options)
    else:
        channel = grpc.aio.insecure_channel(target, options)
    call = channel.stream_stream(METHOD)(metadata=(("worker", str(worker.number)),))
    row, incoming, count = as_bytes(worker.row), as_bytes(worker.parameters), 0
    while True:
        done = 0
        while done < len(incoming):
            piece = await call.read()
            incoming[done : done + len(piece)] = piece
            done += len(piece)
        worker.check(count := count + 1)
        for piece in pieces(row, place.kind.chunk):
            await call.write(piece)


def zmq_worker(worker: Worker, place: Place) -> None:
    zmq: Any = importlib.import_module("zmq")
    importlib.import_module("zmq.auth")

    connection = zmq.Context.instance().socket(zmq.DEALER)
    connection.routing_id = str(worker.number).encode()
    if place.kind.encrypted:
        connection.curve_publickey, connection.curve_secretkey = zmq.auth.load_certificate(
            place.folder / CURVE / "worker.key_secret"
        )
        connection.curve_serverkey, _ = zmq.auth.load_certificate(place.folder / CURVE / "server.key")
    connection.connect(f"tcp://{HOST}:{place.port}")
    connection.send(b"here")
    row, incoming, count = as_bytes(worker.row), as_bytes(worker.parameters), 0
    while True:
        incoming[:] = connection.recv(copy=False).buffer
        worker.check(count := count + 1)
        connection.send(row, copy=False)


def gloo_worker(worker: Worker, place: Place) -> None:
    group = stub_workers.pair(stub_workers.store(place.port), worker.number, 1)
    always, count, row = datetime.timedelta(days=1), 0, worker.row.clone()
    while True:
        group.recv([worker.parameters], 0, 0).wait(always)
        worker.check(count := count + 1)
        group.send([row], 0, 0).wait(always)


# -- sockets, gRPC and certificates ------------------------------------------------------------------------------------


def receive(connection: socket.socket, buffer: memoryview) -> None:
    """Fill the buffer."""
    done = 0
    while done < len(buffer):
        count = connection.recv_into(buffer[done:])
        if not count:
            raise ConnectionError("the other side has closed the connection")
        done += count


def grpc_options(kind: Kind) -> list[tuple[str, int]]:
    """Return the options of server and channel. Without a pool of its own, channels of a process share a connection."""
    return [("grpc.max_receive_message_length", kind.chunk), ("grpc.use_local_subchannel_pool", 1)]


def grpc_listen(server: Any, stream: Any, kind: Kind, folder: Path) -> int:
    """Let a server handle the one method with this function; return its port."""
    import grpc

    _, service, method = METHOD.split("/")
    handler = grpc.stream_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    if not kind.encrypted:
        return int(server.add_insecure_port(f"{HOST}:0"))
    authority, key, chain = grpc_certificates(folder, "server")
    credentials = grpc.ssl_server_credentials([(key, chain)], authority, require_client_auth=True)
    return int(server.add_secure_port(f"{HOST}:0", credentials))


def make_certificates(folder: Path) -> None:
    """Write certificates of an authority, and from it for the server and for the workers, which share one."""
    certificates.create_authority(folder)
    certificates.add_worker(folder, WORKER)


def grpc_certificates(folder: Path, side: str) -> list[bytes]:
    """Return the authority's certificate, and this side's key and certificate."""
    return [(folder / name).read_bytes() for name in ("ca.crt", f"{side}.key", f"{side}.crt")]

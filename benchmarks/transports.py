"""Compare network transports for the server's round: the same parameters to every worker, and a row back from each.

    python -m benchmarks.transports --rounds 9 --workers 4 --values 79510

The server is this process, whatever the transport. Up to 8 workers are processes of their own; more are threads or
tasks of one process, which then works as hard as the server. Workers answer at once. Both sides check what they
receive. All transports are connected all the time, and take turns: other load on the machine slows all of them alike.
Wall time still depends on that load; processor time (user and system) does so much less.

gRPC and ZeroMQ are left out where they are not installed. Certificates are made with `cryptography`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import stub_workers
from benchmarks import transport_servers as servers
from benchmarks import transport_workers as workers
from benchmarks.transport_servers import Memory, Server
from benchmarks.transport_workers import Kind, Place, Side

WORKERS, VALUES = (4, 64), (79_510, 1_310_922)
_WARM_UP = 2
_MOST_PROCESSES = 8
_PASS_BYTES = 50_000_000
"""Rounds back to back in a pass move about so many bytes, so that a short round is not timed alone."""


class Transport(NamedTuple):
    """Both sides of a transport."""

    server: Callable[[Kind, Memory, Path], Server]
    worker: Side
    chunks: tuple[int, ...] = (256,)
    """In KiB."""
    encrypted: tuple[bool, ...] = (False, True)
    needs: str = "torch"


TRANSPORTS = {
    "gRPC aio": Transport(servers.GrpcLoopServer, workers.grpc_worker, (64, 256, 1024), needs="grpc"),
    "gRPC threads": Transport(servers.GrpcThreadServer, workers.grpc_worker, (64, 256, 1024), needs="grpc"),
    "sockets, threads": Transport(servers.ThreadServer, workers.socket_worker),
    "sockets, asyncio": Transport(servers.AsyncioServer, workers.socket_worker),
    "ZeroMQ": Transport(servers.ZmqServer, workers.zmq_worker, needs="zmq"),
    "gloo": Transport(servers.GlooServer, workers.gloo_worker, encrypted=(False,)),
}


class Cost(NamedTuple):
    """Seconds of a round: on the clock, and of the processors."""

    wall: float
    server: float
    workers: float


def kinds(only: list[str]) -> list[Kind]:
    """Return what can be measured here and has one of these texts in its name."""
    installed = {name: each for name, each in TRANSPORTS.items() if importlib.util.find_spec(each.needs)}
    every = [
        Kind(name, encrypted, 1024 * chunk)
        for name, each in installed.items()
        for encrypted in each.encrypted
        for chunk in each.chunks
    ]
    return [kind for kind in every if not only or any(text in str(kind) for text in only)]


def processor_time(processes: list[int]) -> float:
    """Return the user and system seconds of these processes. Linux has a clock for each of them."""
    return sum(time.clock_gettime((~process << 3) | 2) for process in processes)


@contextlib.contextmanager
def connected(kind: Kind, memory: Memory) -> Iterator[tuple[Server, list[int]]]:
    """Yield the server's side of a transport once its workers are there, and the numbers of their processes."""
    count = memory.n if memory.n <= _MOST_PROCESSES else 1
    with tempfile.TemporaryDirectory() as name:
        folder, transport = Path(name), TRANSPORTS[kind.name]
        if kind.encrypted:
            workers.make_certificates(folder)
        server = transport.server(kind, memory, folder)
        sizes = (memory.n // count, memory.n, memory.d)
        with (
            contextlib.closing(server),  # after the workers, which would complain
            stub_workers.started(
                workers.work, count, transport.worker, Place(kind, server.port, folder), *sizes
            ) as pipes,
        ):
            server.connect()
            yield server, [pipe.recv() for pipe in pipes]


def measure(n: int, d: int, only: list[str], passes: int) -> dict[Kind, list[Cost]]:
    """Let the transports take turns, and return the cost of a round in each pass."""
    memory, ours = Memory(n, d), [os.getpid()]
    costs: dict[Kind, list[Cost]] = {kind: [] for kind in kinds(only)}
    together = max(1, min(25, _PASS_BYTES // (8 * n * d)))
    with contextlib.ExitStack() as stack:
        ready = [stack.enter_context(connected(kind, memory)) for kind in costs]
        for number in range(_WARM_UP + passes):
            for server, theirs in ready:
                if number < _WARM_UP:
                    server.checked_round()
                    continue
                before = time.perf_counter(), processor_time(ours), processor_time(theirs)
                for _ in range(together):
                    server.numbered_round()
                after = time.perf_counter(), processor_time(ours), processor_time(theirs)
                costs[server.kind].append(Cost(*((b - a) / together for a, b in zip(before, after, strict=True))))
            print(".", end="", file=sys.stderr, flush=True)
    return costs


def table(n: int, d: int, costs: dict[Kind, list[Cost]]) -> Iterator[str]:
    """Yield the lines of a table: medians over the passes."""
    middles = {kind: [statistics.median(column) for column in zip(*each, strict=True)] for kind, each in costs.items()}
    fastest = min(wall for wall, _, _ in middles.values())
    for kind, middle in middles.items():
        times = " | ".join(f"{1e3 * value:,.3g}" if value < 1 else f"{1e3 * value:,.0f}" for value in middle)
        yield f"| {kind} | {n} | {d:,} | {times} | {middle[0] / fastest:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare network transports for the parameter server's round.")
    parser.add_argument("--rounds", type=int, default=9, help="passes over all transports")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="those with this text in the name")
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS, help="at most 256")
    parser.add_argument("--values", type=int, nargs="*", default=VALUES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| transport | n | d | wall ms | server CPU ms | workers CPU ms | wall / fastest |")
    print("|---|---|---|---|---|---|---|")
    for n in arguments.workers:
        for d in arguments.values:
            costs = measure(n, d, arguments.only, arguments.rounds)
            print("\n".join(table(n, d, costs)), flush=True)


if __name__ == "__main__":
    main()

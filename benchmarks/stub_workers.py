"""Worker processes that compute nothing, so that only the server's own time is measured."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gyroscope.distributed.collectives import PrefixStore, ProcessGroupGloo
from gyroscope.distributed.protocol import Offer
from gyroscope.distributed.worker import RowComputer, Worker

if TYPE_CHECKING:  # torch exports it, but does not tell the type checker so
    from torch._C._distributed_c10d import TCPStore
else:
    from torch.distributed import TCPStore

HOST = "127.0.0.1"
PATIENCE = timedelta(minutes=5)
"""How long processes wait for each other: a benchmark must not fail because one is late."""

Role = Callable[..., object]


@contextlib.contextmanager
def started(role: Role, count: int, *arguments: Any) -> Iterator[list[Connection]]:
    """Start `count` processes that call `role(number, pipe, *arguments)`, and yield our ends of their pipes.

    They end with this block, or with this process, however it ends.
    """
    context = multiprocessing.get_context("forkserver")
    # Imported once, in the process from which the others are forked.
    context.set_forkserver_preload(["benchmarks.ranks"])
    ours, processes = [], []
    for number in range(count):
        mine, its = context.Pipe()
        process = context.Process(target=_run_role, args=(role, number, its, arguments), daemon=True)
        process.start()
        its.close()
        ours.append(mine)
        processes.append(process)
    try:
        yield ours
    finally:
        for pipe in ours:
            pipe.close()
        for process in processes:
            process.join()


def store(port: int = 0) -> TCPStore:
    """Return a new store, by which processes find each other, or the one that another process has at this port."""
    return TCPStore(HOST, port, None, port == 0, PATIENCE, wait_for_workers=False)


def _run_role(role: Role, number: int, pipe: Connection, arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_exit_when_closed, args=(pipe,), daemon=True).start()
    torch.set_num_threads(1)
    role(number, pipe, *arguments)


def _exit_when_closed(pipe: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        pipe.recv_bytes()  # nothing is ever sent this way: it returns when the pipe closes
    os._exit(0)


# -- roles that answer with d values at once ---------------------------------------------------------------------------


def work(number: int, pipe: Connection, port: int, keys: Path | None) -> None:
    """Run a real worker whose gradient is ready before the server asks for it; without keys, without TLS."""
    certificate = keys / f"worker-{number}.crt" if keys else None
    _StubWorker(HOST, port, number, certificate=certificate, patience=PATIENCE.total_seconds()).work()


def pair(store: TCPStore, number: int, rank: int) -> Any:
    """Return a gloo group of two: the process that measures (rank 0) and stub `number` (rank 1)."""
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=HOST)]
    options._timeout = PATIENCE
    return gloo(PrefixStore(f"bare.{number}", store), rank, 2, options)


def row_of(number: int, d: int) -> Tensor:
    """Return the row that a stub answers with."""
    return torch.randn(d, generator=torch.Generator().manual_seed(number))


class _StubComputer(RowComputer):
    """Has its row ready before the server asks for it."""

    def __init__(self, offer: Offer, number: int) -> None:
        self.offer, self.number, self.d = offer, number, offer.dimension
        self.dtype = torch.float32
        self.row = row_of(number, self.d)
        self.filled: Tensor | None = None

    def load_momentum(self, momentum: Tensor | None) -> None: ...

    def answer(self, step: int, parameters: Tensor, values: Tensor) -> float:
        if values is not self.filled:
            values.copy_(self.row)
            self.filled = values
        return 0.0


class _StubWorker(Worker):
    def make_computer(self, offer: Offer) -> RowComputer:
        return _StubComputer(offer, self.number)

"""Worker processes that compute nothing, so that only the server's own time is measured."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gyroscope.distributed.protocol import ANSWER, Message, Offer, PrefixStore, TCPStore
from gyroscope.distributed.worker import RowComputer, Worker

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
    context.set_forkserver_preload(["benchmarks.ranks", "gyroscope.distributed.server.link_process"])
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


def _run_role(role: Role, number: int, pipe: Connection, arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_exit_when_closed, args=(pipe,), daemon=True).start()
    torch.set_num_threads(1)
    role(number, pipe, *arguments)


def _exit_when_closed(pipe: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        pipe.recv_bytes()  # nothing is ever sent this way: it returns when the pipe closes
    os._exit(0)


# -- roles that answer with d values at once ---------------------------------------------------------------------------


def work(number: int, pipe: Connection, port: int) -> None:
    """Run a real worker whose gradient is ready before the server asks for it."""
    _StubWorker(HOST, port, number, patience=PATIENCE.total_seconds()).work()


def echo(number: int, pipe: Connection, port: int, d: int) -> None:
    """Answer d values with d values over gloo, and do nothing else."""
    group = pair(TCPStore(HOST, port, None, False, PATIENCE), number, 1)
    row, parameters = row_of(number, d), torch.empty(d)
    always = timedelta(days=1)
    while True:
        group.recv([parameters], 0, 0).wait(always)
        group.send([row], 0, 0).wait(always)


def pair(store: TCPStore, number: int, rank: int) -> Any:
    """Return a gloo group of two: the process that measures (rank 0) and stub `number` (rank 1)."""
    group: Any = getattr(dist, "ProcessGroupGloo")  # noqa: B009  torch does not declare it
    options = group._Options()
    options._devices = [group.create_device(hostname=HOST)]
    options._timeout = PATIENCE
    return group(PrefixStore(f"bare.{number}", store), rank, 2, options)


def row_of(number: int, d: int) -> Tensor:
    """Return the row that a stub answers with."""
    return torch.randn(d, generator=torch.Generator().manual_seed(number))


class _StubComputer(RowComputer):
    """Has its row ready before the server asks for it."""

    def __init__(self, offer: Offer, number: int) -> None:
        self.offer, self.number, self.d = offer, number, offer.dimension
        self.dtype = torch.float32
        self.row = row_of(number, self.d)
        self.filled: Message | None = None

    def load_momentum(self, momentum: Tensor | None) -> None: ...

    def answer(self, step: int, parameters: Tensor, answer: Message) -> None:
        if answer is not self.filled:
            answer.values.copy_(self.row)
            self.filled = answer
        answer.seal(ANSWER, step, self.number, 0.0)


class _StubWorker(Worker):
    def make_computer(self, offer: Offer) -> RowComputer:
        return _StubComputer(offer, self.number)

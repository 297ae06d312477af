"""The other ends of what is measured: processes that compute nothing, so that only the server's own time is left."""

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
"""How long anybody waits for anybody: a benchmark is not the place to find out who is late."""

Role = Callable[..., object]


@contextlib.contextmanager
def started(role: Role, count: int, *arguments: Any) -> Iterator[list[Connection]]:
    """So many processes that do `role(number, pipe, *arguments)`, and our ends of their pipes.

    They end with this block, or with this process, however it ends.
    """
    context = multiprocessing.get_context("forkserver")
    # Imported once, in the process that the others are forked from.
    context.set_forkserver_preload(["benchmarks.ranks", "gyroscope.distributed.server.link_process"])
    ours, processes = [], []
    for number in range(count):
        mine, its = context.Pipe()
        process = context.Process(target=_live, args=(role, number, its, arguments), daemon=True)
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


def _live(role: Role, number: int, pipe: Connection, arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    torch.set_num_threads(1)
    role(number, pipe, *arguments)


def _end_with(pipe: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        pipe.recv_bytes()  # nothing is ever sent this way but the end
    os._exit(0)


# -- who answers with d values at once --------------------------------------------------------------------------------


def work(number: int, pipe: Connection, port: int) -> None:
    """A real worker whose gradient is ready before it is asked for."""
    _Puppet(HOST, port, number, patience=PATIENCE.total_seconds()).work()


def echo(number: int, pipe: Connection, port: int, d: int) -> None:
    """Answers d values with d values over gloo, and knows nothing else."""
    group = pair(TCPStore(HOST, port, None, False, PATIENCE), number, 1)
    row, parameters = row_of(number, d), torch.empty(d)
    always = timedelta(days=1)
    while True:
        group.recv([parameters], 0, 0).wait(always)
        group.send([row], 0, 0).wait(always)


def pair(store: TCPStore, number: int, rank: int) -> Any:
    """A gloo group of two: the one who measures (rank 0) and puppet `number` (rank 1)."""
    group: Any = getattr(dist, "ProcessGroupGloo")  # noqa: B009  torch has it, but does not tell the type checker so
    options = group._Options()
    options._devices = [group.create_device(hostname=HOST)]
    options._timeout = PATIENCE
    return group(PrefixStore(f"bare.{number}", store), rank, 2, options)


def row_of(number: int, d: int) -> Tensor:
    """What a puppet answers."""
    return torch.randn(d, generator=torch.Generator().manual_seed(number))


class _Ready(RowComputer):
    """Has its row before it is asked."""

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


class _Puppet(Worker):
    def make_computer(self, offer: Offer) -> RowComputer:
        return _Ready(offer, self.number)

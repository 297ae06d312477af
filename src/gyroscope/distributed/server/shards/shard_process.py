"""A shard: the process that holds some of the columns of all rows. The coordinator starts it and tells it what to do.

    python -m gyroscope.distributed.server.shards.shard_process CHANNEL LISTENER KEYS

CHANNEL and LISTENER are descriptors of sockets that it inherits: one end of the coordinator's `Channel`, and the socket
where the workers connect. KEYS is the folder with the server's keys, or empty. It ends when the coordinator does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyroscope import rules
from gyroscope._linalg import distances, memory, moments
from gyroscope._linalg.matrix import all_finite, copy_finite
from gyroscope.distributed.protocol import LATER, NO_STEP, Offer
from gyroscope.distributed.server import descriptors
from gyroscope.distributed.server.connection import WorkerConnection
from gyroscope.distributed.server.link_events import Answered
from gyroscope.distributed.server.linked_worker import LinkedWorker
from gyroscope.distributed.server.shards.channel import Channel, Message
from gyroscope.distributed.server.shards.shard_events import Admitted, PartAnswered, QueuedLinks

_LONG = 3600.0
_WARM_UP_COLUMNS = 10_000


class ShardLinks(QueuedLinks):
    """Links of workers that the coordinator has admitted."""

    admitted: frozenset[int] = frozenset()

    def introduced(self, connection: WorkerConnection, number: int) -> None:
        worker = connection.identity.number if connection.identity else number
        if worker in self.admitted or self._offer is None or self._over:
            super().introduced(connection, number)
            return
        why = f"worker {worker} has no link to the coordinator of this server: join that first"
        self._refuse(connection, "protocol", LATER, why, worker)


class Shard:
    """Hold columns of the rows, report which parts have come, and aggregate them when told to.

    Each method `_do_...` obeys one kind of order; its arguments are the order's facts.
    """

    def __init__(self, channel: Channel, links: ShardLinks) -> None:
        self.channel, self.links = channel, links
        self.closed = False
        self._asked = NO_STEP
        self._wanted: tuple[int, list[int] | None, list[int]] = (0, None, [])

    def run(self) -> None:
        """Obey orders and report events until the coordinator closes the shard."""
        threading.Thread(target=self._read_orders, daemon=True).start()
        while not self.closed:
            for event in self.links.queued(_LONG):
                if isinstance(event, Message):
                    getattr(self, f"_do_{event.kind}")(*event.facts, *event.values)
                elif isinstance(event, Answered):
                    self._take_part(event)
                else:
                    self._report(event)

    def _read_orders(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.links.queue_event(self.channel.receive())
        os._exit(0)  # without its coordinator a shard is of no use

    def _report(self, event: Any) -> None:
        self.channel.send("event", type(event).__name__, list(event))

    def _reply(self, serial: int, *facts: Any, values: list[Tensor]) -> None:
        self.channel.send("reply", serial, *facts, values=values)

    # -- who is there -------------------------------------------------------------------------------------------------

    def _do_open(self, offer_text: str, patience: float, threads: int) -> None:
        """Begin a run. The offer's dimension is the number of columns here."""
        torch.set_num_threads(threads)
        offer = Offer.parse(offer_text)
        descriptors.allow(offer.count)
        config = offer.config
        self.rule, self.f = rules.parse(config.rule), config.declared_byzantine
        self.accumulates, self.width = config.momentum == "workers", offer.dimension
        dtype: torch.dtype = getattr(torch, offer.dtype)
        self.rows = memory.table(offer.count, self.width, torch.empty(0, dtype=dtype))
        self.each = [LinkedWorker(number) for number in range(offer.count)]
        self._warm_up()
        self.links.open(offer, lambda number: self.each[number].momentum(), patience)

    def _warm_up(self) -> None:
        """Use every kernel once, so that those compiled or loaded at first use do not cost the first deadline."""
        some = self.rows[:, :_WARM_UP_COLUMNS]
        copy_finite(some[0].clone(), some[0])
        self.rule.on_columns(some, self.f, distances.squared_distances(some))
        moments.moments(some)

    def _do_restore(self, steps: list[int], momentum: Tensor) -> None:
        for worker, step, values in zip(self.each, steps, momentum, strict=True):
            worker.momenta = [] if step == NO_STEP else [(step, values)]

    def _do_admit(self, number: int, step: int, epoch: int) -> None:
        """Let a worker join, which continues with its momentum of this step, and none other."""
        worker = self.each[number]
        worker.momenta = [known for known in worker.momenta if known[0] == step]
        worker.copy_momenta()
        self.links.admitted |= {number}
        self._report(Admitted(number, epoch))

    def _do_drop(self, number: int, why: str) -> None:
        self.links.admitted -= {number}
        self.links.end_link(number, why)

    # -- a round ------------------------------------------------------------------------------------------------------

    def _do_publish(self, step: int, parameters: Tensor) -> None:
        self._asked = step
        self.links.publish(step, parameters)

    def _do_ask(self, numbers: list[int]) -> None:
        self.links.ask(numbers)

    def _take_part(self, event: Answered) -> None:
        """Copy a part of this round into the matrix, keep the momentum, and say whether both are finite."""
        worker, values = self.each[event.worker], event.values
        row, momentum = values[: self.width], values[-self.width :]
        current = event.step == self._asked
        finite = copy_finite(row, self.rows[event.worker]) if current else bool(all_finite(row))
        momentum_finite = finite if len(values) == self.width else bool(all_finite(momentum))
        if self.accumulates:
            if momentum_finite:
                worker.keep_momentum(event.step, momentum)
            else:
                worker.copy_momenta()
        self._report(PartAnswered(event.worker, event.step, finite, momentum_finite))

    def _do_forget(self, number: int, step: int) -> None:
        """Do not continue from this step, whose momentum is not finite in another shard."""
        worker = self.each[number]
        worker.momenta = [known for known in worker.momenta if known[0] != step]
        worker.copy_momenta()

    def _do_aggregate(self, serial: int, taken: list[int], measured: list[int] | None, sampled: list[int]) -> None:
        """Aggregate the rows of this round.

        Args:
            serial: Of this order, for its replies.
            taken: The workers whose rows are there. The others' are NaN, whatever parts of them have come.
            measured: The workers of whose rows the moments are wanted; None for no moments.
            sampled: The first column to show of all rows, and the distance to the next; empty for no columns.
        """
        for number in sorted(set(range(len(self.rows))) - set(taken)):
            self.rows[number].fill_(torch.nan)
        self._wanted = serial, measured, sampled
        if self.rule.reads == "distances":
            self._reply(serial, values=[distances.squared_distances(self.rows)])
        else:
            self._apply_rule(None)

    def _do_select(self, table: Tensor) -> None:
        """Go on with the squared distances between whole rows."""
        self._apply_rule(table)

    def _apply_rule(self, table: Tensor | None) -> None:
        serial, measured, sampled = self._wanted
        aggregate = self.rule.on_columns(self.rows, self.f, table)
        none = torch.empty(0)
        weight = none if aggregate.weight is None else aggregate.weight
        mean, squares = none, 0.0
        if measured is not None:
            of_rows = moments.moments(self.rows if len(measured) == len(self.rows) else self.rows[measured])
            mean, squares = of_rows.mean, of_rows.squares
        shown = self.rows[:, sampled[0] :: sampled[1]] if sampled else none
        self._reply(serial, squares, values=[aggregate.vector, weight, mean, shown])

    # -- the end ------------------------------------------------------------------------------------------------------

    def _do_state(self, serial: int, steps: list[int]) -> None:
        """Return the workers' momentum of these steps."""
        momentum = torch.zeros(len(self.each), self.width, dtype=self.rows.dtype)
        for worker, step in zip(self.each, steps, strict=True):
            known = dict(worker.momenta).get(step)
            if known is not None:
                momentum[worker.number].copy_(known)
            elif step != NO_STEP:
                raise RuntimeError(f"the momentum of worker {worker.number} after step {step} is not here")
        self._reply(serial, values=[momentum])

    def _do_close(self, over: bool, seconds: float) -> None:
        for event in self.links.close(over, seconds):
            if not isinstance(event, (Answered, Message)):
                self._report(event)
        self.closed = True


def main(channel: int, listener: int, keys: str) -> None:
    """Be a shard."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the coordinator handles them, and tells us
    memory.keep_freed_memory()
    to_coordinator = Channel(socket.socket(fileno=channel))
    shard = Shard(to_coordinator, ShardLinks(socket.socket(fileno=listener), Path(keys) if keys else None))
    try:
        shard.run()
    except Exception as problem:
        with contextlib.suppress(OSError):
            to_coordinator.send("failed", f"{type(problem).__name__}: {problem}")
        raise


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

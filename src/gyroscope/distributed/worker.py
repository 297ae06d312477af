"""A worker process: joins a server as worker K, and answers every round with its row."""

from __future__ import annotations

import dataclasses
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import LinkError, UnknownNameError
from gyroscope.distributed import protocol
from gyroscope.distributed.protocol import OVER, GlooConnection, Message, Offer, TCPStore
from gyroscope.distributed.server.link_process import HEARTBEAT_SECONDS
from gyroscope.momentum import WorkerMomentum
from gyroscope.runs import setup, training
from gyroscope.simulation import tasks
from gyroscope.simulation.data import shards

PATIENCE = 120.0
_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.1
_LONGEST_PAUSE = 3.0
_SILENCE_SECONDS = 6 * HEARTBEAT_SECONDS
"""An idle link sends heartbeats, so after that long a silence the server is gone, even where no connection breaks."""
_ANSWER_SECONDS = 10.0
"""A link is always ready to take an answer. gloo does not always notice that the other side is gone: then this does."""
_SLOWEST_NETWORK = 1e6
"""Bytes per second: an answer has so much more time."""


class ServerGoneError(LinkError):
    """The server cannot be reached, for longer than the worker's patience."""


class RowComputer:
    """Compute a worker's row from the parameters; with momentum at the workers, accumulated."""

    def __init__(self, offer: Offer, number: int, machine: Mapping[str, Any]) -> None:
        config = dataclasses.replace(offer.config, **machine)
        # A name that is not in our tables would be imported, and whoever reaches the server's port can write it.
        for kind, spec, table in (("task", config.task, tasks.TASKS), ("sharding", config.shards, shards.SHARDINGS)):
            name, _ = registry.split(spec)
            if name not in table:
                raise UnknownNameError(kind, name, table)
        config, self.worker = setup.simulated_workers(config, training.load_task(config), only=number)
        d, dtype = self.worker.parameters.numel(), str(self.worker.parameters.dtype).removeprefix("torch.")
        if (d, dtype) != (offer.dimension, offer.dtype):
            raise LinkError(
                f"the server's model has {offer.dimension} parameters of {offer.dtype}, this worker's has {d} of "
                f"{dtype}: install the same version of gyroscope on both"
            )
        self.number, self.offer, self.d = number, offer, d
        self.dtype = self.worker.parameters.dtype
        self.momentum = WorkerMomentum(config.mu, nesterov=config.nesterov) if config.momentum == "workers" else None
        self.row = self.worker.parameters.new_zeros(1, d)
        self.worker.sample(0, out=self.row)  # so that kernels compiled at first use do not cost the first deadline

    def load_momentum(self, momentum: Tensor | None) -> None:
        """Continue with this momentum, or begin with none."""
        if self.momentum is not None:
            known = None if momentum is None else momentum.to(self.row.device).view(1, -1)
            self.momentum.load_state_dict({} if known is None else {"momentum": known})

    def answer(self, step: int, parameters: Tensor, answer: Message) -> None:
        """Write the row of this step into the answer."""
        self.worker.parameters.copy_(parameters)
        losses, sampled = self.worker.sample(step, out=self.row)
        sent = sampled if self.momentum is None else self.momentum.update(sampled)
        answer.values[: self.d].copy_(sent[0])
        if answer.values.numel() > self.d:  # a row with Nesterov's look-ahead does not show the momentum behind it
            assert self.momentum is not None and self.momentum.buffer is not None
            answer.values[self.d :].copy_(self.momentum.buffer[0])
        answer.seal(protocol.ANSWER, step, self.number, float(losses[0]))


class Worker:
    """Be one worker of whatever a `Server` trains: `Worker("10.0.0.5", 29517, number=0).work()`."""

    def __init__(
        self,
        host: str,
        port: int,
        number: int,
        *,
        patience: float = PATIENCE,
        machine: Mapping[str, Any] | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Prepare a worker; `work` connects it.

        Args:
            host, port: where the server listens.
            number: which worker this is, from 0.
            patience: seconds without the server after which `work` gives up.
            machine: settings of this machine (`device`, `threads`, `data_dir`) in place of the server's.
            report: called with a line of text when the worker joins, loses the server, or ends.
        """
        self.host, self.port, self.number = host, port, number
        self.patience, self.machine, self.report = patience, machine or {}, report
        self.identity = f"{socket.gethostname()} process {os.getpid()} ({secrets.token_hex(4)})"
        self.claimed: set[str] = set()
        self.computer: RowComputer | None = None
        self.linked = False
        self.last_contact = time.monotonic()

    def work(self) -> None:
        """Join, answer every round, and join again whenever the link breaks. Return once the run is over.

        Raises:
            ServerGoneError: the server was unreachable for longer than the patience.
            LinkError: the server's offer cannot be used, or the number does not exist or is taken.
        """
        pause = _POLL_SECONDS
        while True:
            try:
                if self._work_once():
                    self.report("the run is over")
                    return
            except (RuntimeError, OSError) as problem:  # of the store, of gloo, or of the network
                why = (str(problem).splitlines() or [type(problem).__name__])[0][:120]
            else:
                why = "the link was closed"
            if self.linked:
                self.linked, pause = False, _POLL_SECONDS
                self.report(f"lost the server ({why}): trying again for {self.patience:g} s")
            silence = time.monotonic() - self.last_contact
            if silence > self.patience:
                raise ServerGoneError(
                    f"no server at {self.host}:{self.port} for {silence:.0f} s ({why}). What to do: start it with "
                    "gyroscope serve (--resume DIR continues a run), then start this worker again"
                )
            time.sleep(pause * random.uniform(0.5, 1.0))  # not all workers at the same moment
            pause = min(2 * pause, _LONGEST_PAUSE)

    def make_computer(self, offer: Offer) -> RowComputer:
        """Return what computes the rows; a subclass may override this."""
        return RowComputer(offer, self.number, self.machine)

    def _work_once(self) -> bool:
        """Return whether the run is over; return, or raise RuntimeError or OSError, when the link breaks."""
        # A plain connection first: it fails at once and quietly, and shows which of our addresses the server sees.
        with socket.create_connection((self.host, self.port), timeout=_CONNECT_SECONDS) as probe:
            own_address = probe.getsockname()[0]
        store = protocol.connect(self.host, self.port, _CONNECT_SECONDS)
        if store.check([OVER]):
            return True
        self.last_contact = time.monotonic()
        if not store.check([protocol.OFFER]):
            return False  # the server is loading its data
        offer = Offer.parse(store.get(protocol.OFFER).decode(errors="replace"))
        if not 0 <= self.number < offer.count:
            raise LinkError(f"there is no worker {self.number}: numbers go from 0 to {offer.count - 1} (--number)")
        if self.computer is None or self.computer.offer != offer:
            self.computer = self.make_computer(offer)
        generation = self._claim(store, offer)
        if generation is None:
            return bool(store.check([OVER]))
        return self._answer_rounds(GlooConnection(store, self.number, generation, 1, own_address), self.computer)

    def _claim(self, store: TCPStore, offer: Offer) -> str | None:
        """Claim a link and return its generation; None to try again later."""
        # A worker that died may still hold its link, until the server's next message to it fails.
        until = time.monotonic() + offer.deadline + 2.0
        link = protocol.link_key(self.number)
        while store.check([link]):
            generation = store.get(link).decode(errors="replace")
            if not generation:
                return None
            if generation not in self.claimed:
                key = protocol.claim_key(self.number, generation)
                holder = store.compare_set(key, "", self.identity).decode(errors="replace")
                if holder == self.identity:
                    self.claimed.add(generation)
                    return generation
                if time.monotonic() > until:
                    raise LinkError(
                        f"worker {self.number} is taken by {holder}: choose another --number, or stop that process"
                    )
            elif time.monotonic() > until:
                return None
            if store.check([OVER]):
                return None
            time.sleep(_POLL_SECONDS)
        return None

    def _answer_rounds(self, connection: GlooConnection, computer: RowComputer) -> bool:
        message = Message(computer.d, computer.dtype)
        answer = Message(computer.offer.answer_values, computer.dtype)
        kinds = (protocol.WELCOME, protocol.ROUND, protocol.PING, protocol.END)
        while True:
            connection.receive(message, _SILENCE_SECONDS)
            try:
                head = message.read(kinds, self.number)
            except protocol.MalformedMessageError as problem:
                raise LinkError(f"the server sent a message that cannot be read: {problem}") from problem
            self.last_contact = time.monotonic()
            if head.kind == protocol.END:
                return True
            if head.kind == protocol.WELCOME:
                self.linked = True
                computer.load_momentum(message.values if head.step != protocol.NO_STEP else None)
                self.report(f"joined as worker {self.number}")
            elif head.kind == protocol.ROUND:
                computer.answer(head.step, message.values, answer)
                self.reply(connection, answer, head.step)

    def reply(self, connection: GlooConnection, answer: Message, step: int) -> None:
        """Send the answer; a subclass may override this."""
        connection.send(answer, _ANSWER_SECONDS + answer.buffer.numel() / _SLOWEST_NETWORK)

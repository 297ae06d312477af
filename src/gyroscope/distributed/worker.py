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
from gyroscope.distributed.protocol import (
    ANSWER,
    END,
    NO_STEP,
    OFFER,
    OVER,
    PING,
    ROUND,
    WELCOME,
    Message,
    Offer,
    TCPStore,
    UnfitError,
    Wire,
    claim_key,
    link_key,
    reach,
)
from gyroscope.distributed.server.link_process import PING_SECONDS
from gyroscope.momentum import WorkerMomentum
from gyroscope.runs import setup, training
from gyroscope.simulation import tasks
from gyroscope.simulation.data import shards

PATIENCE = 120.0
_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.1
_LONGEST_PAUSE = 3.0
_SILENCE_SECONDS = 6 * PING_SECONDS
"""An idle link pings, so after that long a silence the server is gone, even where no connection breaks."""
_ANSWER_SECONDS = 10.0
"""A link is always ready to take an answer. gloo does not always notice that the other side is gone: then this does."""
_SLOWEST_NETWORK = 1e6
"""Bytes per second that an answer may take besides."""


class ServerGoneError(LinkError):
    """The server cannot be reached, for longer than the worker's patience."""


class Calculator:
    """What a worker computes: parameters in, its row out; with momentum at the workers, accumulated."""

    def __init__(self, offer: Offer, number: int, machine: Mapping[str, Any]) -> None:
        config = dataclasses.replace(offer.config, **machine)
        # Anything not listed would be imported, at the word of whoever reaches the server's port.
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
        self.worker.sample(0, out=self.row)  # what is compiled at first use shall not count against a deadline

    def take_up(self, memory: Tensor | None) -> None:
        """Go on with this momentum, or begin with none."""
        if self.momentum is not None:
            self.momentum.load_state_dict(
                {} if memory is None else {"momentum": memory.to(self.row.device).view(1, -1)}
            )

    def answer(self, step: int, parameters: Tensor, answer: Message) -> None:
        """The row of this step, written into the message that goes back."""
        self.worker.parameters.copy_(parameters)
        losses, sampled = self.worker.sample(step, out=self.row)
        sent = sampled if self.momentum is None else self.momentum.update(sampled)
        answer.values[: self.d].copy_(sent[0])
        if answer.values.numel() > self.d:  # Nesterov's look-ahead does not show the momentum that is behind it
            assert self.momentum is not None and self.momentum.memory is not None
            answer.values[self.d :].copy_(self.momentum.memory[0])
        answer.seal(ANSWER, step, self.number, float(losses[0]))


class Worker:
    """Worker `number` of whatever is trained at host:port. `work` returns once the run is over."""

    def __init__(
        self,
        host: str,
        port: int,
        number: int,
        *,
        patience: float = PATIENCE,
        machine: Mapping[str, Any] | None = None,
        told: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.host, self.port, self.number = host, port, number
        self.patience, self.machine, self.told = patience, machine or {}, told
        self.who = f"{socket.gethostname()} process {os.getpid()} ({secrets.token_hex(4)})"
        self.claimed: set[str] = set()
        self.calculator: Calculator | None = None
        self.linked = False
        self.last_contact = time.monotonic()

    def work(self) -> None:
        """Join, answer, and join again whenever the link breaks; LinkError where that is of no use any more."""
        pause = _POLL_SECONDS
        while True:
            try:
                if self._work_once():
                    self.told("the run is over")
                    return
            except (RuntimeError, OSError) as problem:  # of the store, of gloo, or of the network
                why = (str(problem).splitlines() or [type(problem).__name__])[0][:120]
            else:
                why = "the link was closed"
            if self.linked:
                self.linked, pause = False, _POLL_SECONDS
                self.told(f"lost the server ({why}): trying again for {self.patience:g} s")
            silence = time.monotonic() - self.last_contact
            if silence > self.patience:
                raise ServerGoneError(
                    f"no server at {self.host}:{self.port} for {silence:.0f} s ({why}). What to do: start it with "
                    "gyroscope serve (--resume DIR continues a run), then start this worker again"
                )
            time.sleep(pause * random.uniform(0.5, 1.0))  # not all workers at the same moment
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _work_once(self) -> bool:
        """Whether the run is over. Returns, or raises RuntimeError or OSError, when the link is broken."""
        # A plain connection first: it fails at once and quietly, and it tells which of our addresses the server sees.
        with socket.create_connection((self.host, self.port), timeout=_CONNECT_SECONDS) as probe:
            own_address = probe.getsockname()[0]
        store = reach(self.host, self.port, _CONNECT_SECONDS)
        if store.check([OVER]):
            return True
        self.last_contact = time.monotonic()
        if not store.check([OFFER]):
            return False  # the server is loading its data
        offer = Offer.parse(store.get(OFFER).decode(errors="replace"))
        if not 0 <= self.number < offer.count:
            raise LinkError(f"there is no worker {self.number}: numbers go from 0 to {offer.count - 1} (--number)")
        if self.calculator is None or self.calculator.offer != offer:
            self.calculator = self.make_calculator(offer)
        generation = self._claim(store, offer)
        if generation is None:
            return bool(store.check([OVER]))
        wire = Wire(store, self.number, generation, 1, own_address)
        return self._converse(wire, self.calculator)

    def make_calculator(self, offer: Offer) -> Calculator:
        return Calculator(offer, self.number, self.machine)

    def _claim(self, store: TCPStore, offer: Offer) -> str | None:
        """The generation of the link that is ours now; None where it is to be tried again."""
        # A worker that died may still hold its link, until the server's next message to it fails.
        until = time.monotonic() + offer.deadline + 2.0
        while store.check([link_key(self.number)]):
            generation = store.get(link_key(self.number)).decode(errors="replace")
            if not generation:
                return None
            if generation not in self.claimed:
                holder = store.compare_set(claim_key(self.number, generation), "", self.who).decode(errors="replace")
                if holder == self.who:
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

    def _converse(self, wire: Wire, calculator: Calculator) -> bool:
        message = Message(calculator.d, calculator.dtype)
        answer = Message(calculator.offer.answer_values, calculator.dtype)
        while True:
            wire.receive(message, _SILENCE_SECONDS)
            try:
                head = message.read((WELCOME, ROUND, PING, END), self.number)
            except UnfitError as problem:
                raise LinkError(f"the server sent a message that cannot be read: {problem}") from problem
            self.last_contact = time.monotonic()
            if head.kind == END:
                return True
            if head.kind == WELCOME:
                self.linked = True
                calculator.take_up(message.values if head.step != NO_STEP else None)
                self.told(f"joined as worker {self.number}")
            elif head.kind == ROUND:
                calculator.answer(head.step, message.values, answer)
                self.reply(wire, answer, head.step)

    def reply(self, wire: Wire, answer: Message, step: int) -> None:
        wire.send(answer, _ANSWER_SECONDS + answer.buffer.numel() / _SLOWEST_NETWORK)

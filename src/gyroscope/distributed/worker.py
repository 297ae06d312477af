"""A worker process: joins a server as worker K, and answers every round with its row."""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import LinkError, UnknownNameError
from gyroscope._core.foreign_text import shortened
from gyroscope.distributed import protocol, tls
from gyroscope.distributed.certificates import WorkerKeys, validity
from gyroscope.distributed.connection import ServerConnection, TryAgainError
from gyroscope.distributed.protocol import Head, Message, Offer
from gyroscope.distributed.row_formats import RowWriter
from gyroscope.distributed.shard_links import RunOverError, ShardLinks
from gyroscope.momentum import WorkerMomentum
from gyroscope.runs import setup, training
from gyroscope.simulation import tasks
from gyroscope.simulation.data import shards

PATIENCE = 120.0
_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.1
_LONGEST_PAUSE = 3.0
_SILENCE_SECONDS = 30.0
"""The server sends heartbeats, so after that long a silence it is gone, even where no connection breaks."""
_TAKEN_SECONDS = 12.0
"""So long a number may be taken by a process that has died, before this is an error."""
_LONGEST_WHY = 300
"""Letters of a reason, which may be a server's, in a line of the log."""
_SLOWEST_NETWORK = 1e6
"""Bytes per second: a message has so much more time."""


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
        self.writer = RowWriter(offer.row_format)
        self.row = self.worker.parameters.new_zeros(1, d)
        self.worker.sample(0, out=self.row)  # so that kernels compiled at first use do not cost the first deadline

    def load_momentum(self, momentum: Tensor | None) -> None:
        """Continue with this momentum, or begin with none, as with nothing that was not sent."""
        self.writer.forget()
        if self.momentum is not None:
            known = None if momentum is None else momentum.to(self.row.device).view(1, -1)
            self.momentum.load_state_dict({} if known is None else {"momentum": known})

    def answer(self, step: int, parameters: Tensor, values: Tensor) -> float:
        """Write the row of this step into the values of the answer, and return the loss."""
        self.worker.parameters.copy_(parameters)
        losses, sampled = self.worker.sample(step, out=self.row)
        sent = sampled if self.momentum is None else self.momentum.update(sampled)
        size = self.offer.row_values
        row, behind = values[:size], values[size:]
        self.writer.write(sent[0], row)
        if behind.numel():  # a row with Nesterov's look-ahead does not show the momentum behind it
            assert self.momentum is not None and self.momentum.buffer is not None
            self.offer.row_format.encode(self.momentum.buffer[0], behind)
        return float(losses[0])


class Worker:
    """Be one worker of whatever a `Server` trains: `Worker("10.0.0.5", 29517, certificate="worker-0.crt").work()`."""

    def __init__(
        self,
        host: str,
        port: int,
        number: int = protocol.UNKNOWN,
        *,
        certificate: str | Path | None = None,
        patience: float = PATIENCE,
        machine: Mapping[str, Any] | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Prepare a worker; `work` connects it.

        Args:
            host, port: where the server listens.
            number: which worker this is, from 0; not needed with a certificate, which says it.
            certificate: the worker's certificate, its key and ca.crt beside it; None for a server without TLS.
            patience: seconds without the server after which `work` gives up.
            machine: settings of this machine (`device`, `threads`, `data_dir`) in place of the server's.
            report: called with a line of text when the worker joins, loses the server, or ends.

        Raises:
            CertificateError: the certificate cannot be used.
        """
        self.host, self.port, self.number = host, port, number
        self.context: ssl.SSLContext | None = None
        self.expiry: datetime.datetime | None = None
        """When this worker's certificate, or that of its authority, expires."""
        if certificate is not None:
            self.context = tls.worker_context(Path(certificate))
            keys = WorkerKeys.load(Path(certificate).parent, Path(certificate).stem)
            self.number = keys.identity.number if number == protocol.UNKNOWN else number
            self.expiry = keys.expiry
        self.patience, self.machine, self.report = patience, machine or {}, report
        self.identity = f"{socket.gethostname()} process {os.getpid()}"
        self.computer: RowComputer | None = None
        self.linked = False
        self.last_contact = time.monotonic()
        self._taken_since: float | None = None
        self._said: set[str] = set()
        """Why it could not join, as reported since it was linked last."""

    def work(self) -> None:
        """Join, answer every round, and join again whenever the link breaks. Return once the run is over.

        Raises:
            ServerGoneError: the server was unreachable for longer than the patience.
            LinkError: the server's offer cannot be used, or it does not let this worker join.
        """
        pause = _POLL_SECONDS
        keys = "" if self.context else ". Or, if it has --keys: an address that begins with https://, and --cert"
        command = "gyroscope serve --keys DIR" if self.context else "gyroscope serve"
        while True:
            try:
                self._work_once()
                self.report("the run is over")
                return
            except OSError as problem:
                if self.expiry is not None and validity(self.expiry) == "expired":
                    raise LinkError(
                        f"this worker's certificate, or its authority's, expired on {self.expiry:%Y-%m-%d %H:%M} UTC, "
                        "and no server accepts it: ask for a new one (gyroscope keys add)"
                    ) from problem
                why = (str(problem).splitlines() or [type(problem).__name__])[0][:_LONGEST_WHY]
                answered = isinstance(problem, TryAgainError)
            if self.linked:
                self.linked, pause, self._said = False, _POLL_SECONDS, set()
                self.report(f"lost the server ({why}): trying again for {self.patience:g} s")
            elif not self._said or (answered and why not in self._said):
                self.report(f"no server that lets this worker join yet ({why}): trying for {self.patience:g} s{keys}")
            self._said.add(why)
            silence = time.monotonic() - self.last_contact
            if silence > self.patience:
                raise ServerGoneError(
                    f"no server at {self.host}:{self.port} for {silence:.0f} s ({why}). What to do: start it with "
                    f"{command} (--resume RUN continues a run), then start this worker again{keys}"
                )
            time.sleep(pause * random.uniform(0.5, 1.0))  # not all workers at the same moment
            pause = min(2 * pause, _LONGEST_PAUSE)

    def make_computer(self, offer: Offer) -> RowComputer:
        """Return what computes the rows; a subclass may override this."""
        return RowComputer(offer, self.number, self.machine)

    def _work_once(self) -> None:
        """Return once the run is over; raise OSError to try again."""
        with ServerConnection(self.host, self.port, self.context, _CONNECT_SECONDS) as connection:
            connection.send(protocol.text_message(protocol.HELLO, self.identity, self.number), _CONNECT_SECONDS)
            head = connection.receive_head(_SILENCE_SECONDS)
            self.last_contact = time.monotonic()
            if head.kind == protocol.END:
                return
            longest = {protocol.OFFER: protocol.LONGEST_OFFER, protocol.REFUSE: protocol.LONGEST_TEXT}.get(head.kind, 0)
            if not 0 < head.size <= longest:
                raise LinkError(f"the server answers with a message of kind {head.kind} and {head.size} bytes")
            content = bytearray(head.size)
            connection.receive(memoryview(content), _SILENCE_SECONDS)
            text = content.decode(errors="replace")
            if head.kind == protocol.REFUSE:  # a text for a terminal, which obeys some characters
                self._refused(head.step, shortened(text, protocol.LONGEST_TEXT))
            offer = Offer.parse(text)
            if self.computer is None or self.computer.offer != offer:
                self.computer = self.make_computer(offer)
            self.computer.offer = offer  # a restarted server may have other shards, or none
            connection.send(Head(protocol.READY).pack(), _CONNECT_SECONDS)
            self._taken_since = None
            if offer.shards:
                self._answer_sharded_rounds(connection, self.computer, offer)
            else:
                self._answer_rounds(connection, self.computer)

    def _refused(self, code: int, why: str) -> NoReturn:
        """Raise TryAgainError, or a LinkError where trying again would not help."""
        now = time.monotonic()
        if code == protocol.TAKEN:
            # A worker that died may still hold its link, until the server's next message to it fails.
            self._taken_since = self._taken_since or now
            if now - self._taken_since > _TAKEN_SECONDS:
                remedy = (
                    "revoke this certificate (gyroscope keys revoke)" if self.context else "choose another --number"
                )
                raise LinkError(f"{why}: stop that process, or {remedy}")
        elif code != protocol.LATER:
            raise LinkError(why)
        raise TryAgainError(why)

    def _answer_rounds(self, connection: ServerConnection, computer: RowComputer) -> None:
        message = Message(computer.d, computer.dtype)
        answer = Message(computer.offer.answer_values, computer.offer.answer_dtype)
        session, parameters = 0, message.bytes[protocol.HEAD_SIZE :]
        while True:
            head = connection.receive_head(_SILENCE_SECONDS)
            self.last_contact = time.monotonic()
            if head.kind == protocol.PING and not head.size:
                continue
            if head.kind == protocol.END:
                return
            expected = {protocol.WELCOME: (0, len(parameters)), protocol.ROUND: (len(parameters),)}
            if head.size not in expected.get(head.kind, ()):
                raise LinkError(f"the server sent a message of kind {head.kind} with {head.size} bytes")
            connection.receive(parameters[: head.size], _longest_transfer(head.size))
            if head.kind == protocol.WELCOME:
                self.linked, session = True, head.session
                computer.load_momentum(message.values if head.size else None)
                self.report(f"joined as worker {self.number}")
            else:
                loss = computer.answer(head.step, message.values, answer.values)
                answer.seal(protocol.ANSWER, head.step, session, loss)
                self.reply(connection, answer, head.step)

    def _answer_sharded_rounds(self, connection: ServerConnection, computer: RowComputer, offer: Offer) -> None:
        """Answer the rounds of a server whose shards have the columns; it says when to join them and to begin."""

        def connect(port: int) -> ServerConnection:
            return ServerConnection(self.host, port, self.context, _CONNECT_SECONDS)

        values, session = torch.zeros(offer.whole_values, dtype=computer.dtype), 0
        with ShardLinks(offer, connect, computer.dtype, _longest_transfer) as links:
            try:
                while True:
                    head = connection.receive_head(_SILENCE_SECONDS)
                    self.last_contact, loss = time.monotonic(), math.nan
                    if head.kind == protocol.END:
                        return
                    if head.size or head.kind not in (protocol.PING, protocol.WELCOME, protocol.ROUND):
                        raise LinkError(f"the server sent a message of kind {head.kind} with {head.size} bytes")
                    if head.kind == protocol.WELCOME:
                        session = head.session
                    if head.kind != protocol.ROUND:
                        continue
                    if head.step == protocol.OPEN_SHARDS:
                        refusal = links.join(protocol.text_message(protocol.HELLO, self.identity, self.number))
                        if refusal:
                            self._refused(*refusal)
                        computer.load_momentum(links.momentum)
                        self.linked = True
                        self.report(f"joined as worker {self.number}, with {len(offer.shards)} shards")
                    else:
                        links.receive(head.step)
                        loss = computer.answer(head.step, links.parameters, values)
                        links.send(head.step, values, self.reply)
                    connection.send(Head(protocol.ANSWER, head.step, session, 0, loss).pack(), _SILENCE_SECONDS)
            except RunOverError:
                return

    def reply(self, connection: ServerConnection, answer: Message, step: int) -> None:
        """Send the answer; a subclass may override this."""
        connection.send(answer.bytes, _longest_transfer(len(answer.bytes)))


def _longest_transfer(size: int) -> float:
    """Return the seconds that so many bytes may take."""
    return _SILENCE_SECONDS + size / _SLOWEST_NETWORK

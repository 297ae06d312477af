"""The links to all workers: a listening socket and an event loop in a thread of its own.

A stranger costs the server one descriptor and, with TLS, 0.3 MB for a few seconds. Memory for rows belongs to workers'
numbers, not to connections, so that nobody can have more of it allocated by joining often.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyroscope._core.foreign_text import shortened
from gyroscope.distributed import tls
from gyroscope.distributed.certificates import RevocationList
from gyroscope.distributed.protocol import (
    END,
    FINAL,
    LATER,
    NO_STEP,
    OFFER,
    ROUND,
    TAKEN,
    UNKNOWN,
    WELCOME,
    Head,
    Message,
    Offer,
    bytes_of,
    text_message,
)
from gyroscope.distributed.server.connection import CLOSED, GREETING, LEAVING, LINKED, PREPARING, WorkerConnection
from gyroscope.distributed.server.handshake_failures import explain
from gyroscope.distributed.server.link_events import Answered, Joined, LinkEvent, Lost, Rejected
from gyroscope.distributed.server.monitor import Link
from gyroscope.distributed.server.refusals import Reason, Refusals

MomentumOf = Callable[[int], tuple[int, Tensor | None]]
"""Returns the momentum that a worker continues with, and its step; (NO_STEP, None) for none."""

HEARTBEAT_SECONDS = 5.0
"""An idle link sends a message that often, so that a worker can tell a slow server from one that is gone."""
_INTRODUCTION_SECONDS = 10.0
"""For the handshake of TLS, and for a HELLO after it."""
PREPARATION_SECONDS = 600.0
"""For a worker's data to be loaded."""
_MOST_STRANGERS = 128
"""Connections before their HELLO, or after a refusal, besides one for each worker that is missing: all of them may come
at once. Beyond, the oldest of the address that has most of them goes: an honest worker needs a fraction of a second."""
_CROWD_SECONDS = 0.002
"""A pause after each connection while there are many strangers: about a handshake's processor time."""
_MOST_JOINS, _JOIN_SECONDS = 10, 60.0
"""Times that a worker may join within a minute: each costs the server its momentum to send, and lines in the log."""
_TICK_SECONDS = 1.0


class Links:
    """Accept workers, send them parameters, and report what comes back. Only one thread calls the public methods.

    Args:
        listener: A listening socket, which is closed in the end.
        keys: The folder with the server's keys; None for connections without TLS.
        report: Called with what the operator should hear, from the thread of the loop.
    """

    def __init__(
        self, listener: socket.socket, keys: Path | None = None, report: Callable[[str], None] = lambda text: None
    ) -> None:
        self.host, self.port = listener.getsockname()[:2]
        self.context = tls.server_context(keys) if keys else None
        self.revoked = RevocationList(keys / "revoked.txt", report) if keys else None
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.address = f"{'https' if keys else 'http'}://{host}:{self.port}"
        self.answer_bytes = 0
        self.linked: dict[int, WorkerConnection] = {}
        """By number, from a worker's introduction on."""
        self._offer: Offer | None = None
        self._patience = 60.0
        self._over = self._closing = False
        self._joins: dict[int, list[float]] = {}
        self._events: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
        self.refusals = Refusals(self._events.put)
        self._strangers: dict[asyncio.Task[None], bytes] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._listener = listener
        listener.setblocking(False)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)
        self._thread.start()

    # -- what the run calls -------------------------------------------------------------------------------------------

    def open(self, offer: Offer, momentum_of: MomentumOf, patience: float) -> None:
        """Let workers join from now on.

        Args:
            offer: What they are told. Its count says how many there are.
            momentum_of: Asked when a worker joins.
            patience: Seconds without an answer after which a worker's link is closed.
        """
        dtype: torch.dtype = getattr(torch, offer.dtype)
        # A worker's last row stays where it came in: a worker that restarts continues with it. Then the next one needs
        # a place of its own.
        slots = 2 if offer.hands_momentum else 1
        answers = torch.empty(offer.count, slots, offer.answer_values, dtype=offer.answer_dtype)
        # With their bytes, once: every operation on a tensor may have to wait for the thread that plays the rounds.
        self._answers = [[(values, bytes_of(values)) for values in each] for each in answers]
        self._turns = [0] * offer.count
        self._rounds = tuple(Message(offer.dimension, dtype) for _ in range(2))
        self._slot, self._step = 0, NO_STEP
        self._momentum_of, self._patience = momentum_of, patience
        self.answer_bytes = offer.answer_values * offer.answer_dtype.itemsize
        self._offer_message = text_message(OFFER, offer.text())
        self._offer = offer

    def publish(self, step: int, parameters: Tensor) -> None:
        """Copy the parameters of this step, which the next questions send.

        They go to the slot from which no link still sends older ones. If links still send from both, those of one
        round must join again: the fewer, or the slower ones.
        """
        while True:
            sending = [each for each in list(self.linked.values()) if each.sending]
            by_slot = {slot: [each for each in sending if each.slot == slot] for slot in range(2)}
            if not all(by_slot.values()):
                break
            slow = min(by_slot.values(), key=lambda group: (len(group), group[0].asked))
            self._in_loop(self._drop(slow, f"still receives the parameters of step {slow[0].asked}")).result()
        self._slot, self._step = 1 if by_slot[0] else 0, step
        message = self._rounds[self._slot]
        message.values.copy_(parameters)
        message.seal(ROUND, step, 0)

    def ask(self, workers: Iterable[int]) -> None:
        """Send these linked workers what was published last, and expect their answers."""
        asked = [self.linked[number] for number in workers if number in self.linked]
        for connection in asked:
            connection.asked, connection.slot = self._step, self._slot
        if asked:
            self._loop.call_soon_threadsafe(self._send_round, asked, self._step, self._slot)

    def end_link(self, worker: int, why: str) -> None:
        """Close a worker's link, where it has one; it may join again."""
        if connection := self.linked.get(worker):
            self._in_loop(self._drop([connection], why)).result()

    def events(self, seconds: float) -> list[LinkEvent]:
        """Return what has happened since, and wait that long at most for the first event."""
        for task in self._tasks:
            if task.done() and not self._closing:
                task.result()  # raises what has ended it: without it nobody could join, or be noticed missing
        found: list[LinkEvent] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._events.get(timeout=seconds) if seconds > 0 else self._events.get_nowait())
            while True:
                found.append(self._events.get_nowait())
        return found

    def who_is_linked(self) -> dict[int, Link]:
        """Return who takes part now, by number. Any thread may ask."""
        linked = [each for each in list(self.linked.values()) if each.state == LINKED]
        return {each.number: Link(each.who.partition(" ")[0], each.expires) for each in linked}

    def preparing(self) -> set[int]:
        """Return the numbers of those who load their data now."""
        return {each.number for each in list(self.linked.values()) if each.state == PREPARING}

    def close(self, over: bool, seconds: float) -> list[LinkEvent]:
        """Close all links, within that time, and the socket; return the last events.

        With `over` the workers learn that the run has ended; else they look for a server again.
        """
        if self._thread.is_alive():
            with contextlib.suppress(concurrent.futures.TimeoutError):  # before Python 3.11 not TimeoutError
                self._in_loop(self._close(over, seconds)).result(seconds + 5.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)
        self._listener.close()
        self.refusals.summarise(now=True)
        return self.events(0.0)

    def _in_loop(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    # -- all that follows runs in the loop's thread -------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        tasks = self._tasks = [self._loop.create_task(self._accept()), self._loop.create_task(self._tick())]
        try:
            self._loop.run_forever()
        finally:
            for task in [*tasks, *self._strangers]:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, *self._strangers, return_exceptions=True))
            self._loop.close()

    async def _accept(self) -> None:
        while True:
            try:
                connected, address = await self._loop.sock_accept(self._listener)
            except OSError as problem:  # out of descriptors: those who are there must go first
                self.refusals.add("resources", "", f"a connection could not be accepted: {shortened(problem)}")
                await asyncio.sleep(0.2)
                continue
            try:
                _prepare(connected, self._patience)
            except OSError:  # it is gone already
                connected.close()
                continue
            peer = f"{address[0]}:{address[1]}"
            if len(self._strangers) >= self._most_strangers():
                [(crowd, _)] = collections.Counter(self._strangers.values()).most_common(1)
                oldest = next(task for task, network in self._strangers.items() if network == crowd)
                del self._strangers[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._greet(connected, peer))
            self._strangers[task] = _network(address[0])
            task.add_done_callback(lambda done: self._strangers.pop(done, None))
            # While others wait to be accepted, `sock_accept` does not let anything else run: without this, those who
            # came first would be closed before their handshake has begun. A crowd is greeted in the order in which it
            # came, so that the first are done before the last begin; the system keeps the others until then.
            await asyncio.sleep(_CROWD_SECONDS if len(self._strangers) > _MOST_STRANGERS // 2 else 0)

    def _most_strangers(self) -> int:
        missing = self._offer.count - len(self.linked) if self._offer else 0
        return _MOST_STRANGERS + missing

    async def _greet(self, connected: socket.socket, peer: str) -> None:
        """Bring a connection up to its introduction, or end it."""
        connection = WorkerConnection(self, peer)
        handshake = _INTRODUCTION_SECONDS if self.context else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, connected, ssl=self.context, ssl_handshake_timeout=handshake
            )
            try:
                await asyncio.wait_for(connection.settled.wait(), _INTRODUCTION_SECONDS)
            except asyncio.TimeoutError:
                raise ConnectionAbortedError(f"it said nothing for {_INTRODUCTION_SECONDS:g} s") from None
        except asyncio.CancelledError:
            if connection.state in (GREETING, LEAVING):  # else it has just been introduced
                self._turn_away(connection, "crowd", f"more than {self._most_strangers()} connections are being made")
        except OSError as problem:
            # It has come through functions of asyncio that know it, and the connection: see `connection_lost`.
            problem.__traceback__ = None
            self._turn_away(connection, *explain(problem, handshake))

    def _turn_away(self, connection: WorkerConnection, reason: Reason, why: str) -> None:
        """Report a stranger, and end its connection; asyncio ends one that did not come about."""
        if not self._closing and connection.state != LEAVING:  # else it has been reported
            self.refusals.add(reason, connection.who, why)
        if hasattr(connection, "transport"):
            connection.close(why)

    async def _tick(self) -> None:
        """Send heartbeats, and close links whose worker is silent, or revoked."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self.refusals.summarise()
            now = time.monotonic()
            for connection in list(self.linked.values()):
                identity = connection.identity
                if identity and self.revoked and self.revoked.is_revoked(identity.serial):
                    connection.close(f"the certificate of {identity.name} was revoked")
                elif connection.state == PREPARING:
                    if now - connection.since > PREPARATION_SECONDS:
                        connection.close(f"not ready after {PREPARATION_SECONDS:g} s")
                elif connection.pending != NO_STEP:
                    if now - connection.since > self._patience:
                        connection.close(f"no answer for {self._patience:g} s")
                elif now - connection.since > HEARTBEAT_SECONDS:
                    connection.since = now
                    connection.ping()

    # -- what connections report --------------------------------------------------------------------------------------

    def introduced(self, connection: WorkerConnection, number: int) -> None:
        identity = connection.identity
        claimed, number = number, identity.number if identity else number
        holder = self.linked.get(number)
        if self._over:
            connection.say_and_close(Head(END).pack())
        elif self._offer is None:
            connection.refuse(LATER, "the server is loading its data")
        elif identity and self.revoked and self.revoked.is_revoked(identity.serial):
            self._refuse(connection, "revoked", FINAL, f"the certificate of {identity.name} is revoked", number)
        elif identity and claimed not in (UNKNOWN, number):
            why = f"the certificate of {identity.name} is worker {number}'s, not worker {claimed}'s"
            self._refuse(connection, "number", FINAL, why, claimed)
        elif not 0 <= number < self._offer.count:
            why = f"there is no worker {number}: numbers go from 0 to {self._offer.count - 1}"
            self._refuse(connection, "number", FINAL, why, number)
        elif holder:
            self._refuse(connection, "taken", TAKEN, f"worker {number} is taken by {holder.who}", number)
        elif not self._may_join(number):
            why = f"worker {number} has joined {_MOST_JOINS} times within a minute"
            self._refuse(connection, "joins", LATER, why, number)
        else:
            connection.number, connection.since, connection.state = number, time.monotonic(), PREPARING
            connection.settled.set()
            self.linked[number] = connection
            connection.post(self._offer_message)

    def not_understood(self, connection: WorkerConnection, why: str) -> None:
        self._refuse(connection, "protocol", FINAL, f"what it says first cannot be read: {why}", None)

    def _may_join(self, number: int) -> bool:
        # Attempts that are refused do not count, or a worker that tries again and again would never get in.
        now = time.monotonic()
        recent = [at for at in self._joins.get(number, []) if now - at < _JOIN_SECONDS]
        allowed = len(recent) < _MOST_JOINS
        self._joins[number] = [*recent, now] if allowed else recent
        return allowed

    def _refuse(self, connection: WorkerConnection, reason: Reason, code: int, why: str, worker: int | None) -> None:
        self.refusals.add(reason, connection.who, why, worker)
        connection.refuse(code, why)

    def prepared(self, connection: WorkerConnection) -> None:
        connection.state, connection.since = LINKED, time.monotonic()
        connection.session = secrets.randbits(62)
        step, momentum = self._momentum_of(connection.number)
        payload = b"" if momentum is None else bytes(bytes_of(momentum.to(self._rounds[0].values.dtype).contiguous()))
        connection.post(Head(WELCOME, step, connection.session, len(payload)).pack(), payload)
        self._events.put(Joined(connection.number, connection.who))

    def place_of_answer(self, connection: WorkerConnection) -> memoryview:
        return self._answers[connection.number][self._turns[connection.number]][1]

    def answered(self, connection: WorkerConnection, step: int, loss: float) -> None:
        number = connection.number
        turn, slots = self._turns[number], self._answers[number]
        self._turns[number] = (turn + 1) % len(slots)
        self._events.put(Answered(number, step, loss, slots[turn][0]))

    def rejected(self, connection: WorkerConnection, why: str, logged: bool) -> None:
        self._events.put(Rejected(connection.number, why, logged))

    def closed(self, connection: WorkerConnection, why: str, rejected: bool) -> None:
        if self.linked.get(connection.number) is connection:
            del self.linked[connection.number]
            if connection.session:
                self._events.put(Lost(connection.number, why, rejected))
            else:
                self.refusals.add("unfinished", connection.who, f"could not join: {why}", connection.number)
        elif rejected:  # before it could say anything
            self.refusals.add("certificate", connection.who, why)

    def _send_round(self, connections: list[WorkerConnection], step: int, slot: int) -> None:
        for connection in connections:
            connection.ask(step, self._rounds[slot].bytes)

    async def _drop(self, connections: list[WorkerConnection], why: str) -> None:
        for connection in connections:
            connection.close(why)
        while any(connection.state != CLOSED for connection in connections):
            await asyncio.sleep(0)

    async def _close(self, over: bool, seconds: float) -> None:
        self._over, self._closing = over, True
        for connection in list(self.linked.values()):
            if over and connection.state != CLOSED:
                connection.say_and_close(Head(END).pack())
            else:
                connection.close("the server ends")
        until = time.monotonic() + seconds
        while self.linked and time.monotonic() < until:
            await asyncio.sleep(0.01)
        for connection in list(self.linked.values()):
            connection.close("the server ends")


def _prepare(connected: socket.socket, patience: float) -> None:
    """Send small messages at once, and notice a machine that is gone."""
    connected.setblocking(False)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(min(1000 * patience, 2**31 - 1)))


def _network(host: str) -> bytes:
    """Return what one party has: an address, or in IPv6 the half that names a network."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host.partition("%")[0])
    return packed[:8] if any(packed[:8]) and len(packed) == 16 else packed

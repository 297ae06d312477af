"""The server's end of one connection: it reads what a worker may send at this moment, and sends what is due."""

from __future__ import annotations

import asyncio
import collections
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol

from gyroscope._core.errors import CertificateError
from gyroscope._core.foreign_text import shortened
from gyroscope.distributed.certificates import WorkerIdentity, expiry, identity_of
from gyroscope.distributed.protocol import (
    ANSWER,
    HEAD_SIZE,
    HELLO,
    LONGEST_TEXT,
    NO_STEP,
    PING,
    READY,
    REFUSE,
    UNKNOWN,
    Head,
    MalformedMessageError,
    text_message,
)
from gyroscope.distributed.server.handshake_failures import explain_end

GREETING, PREPARING, LINKED, LEAVING, CLOSED = "greeting", "preparing", "linked", "leaving", "closed"
"""The states of a connection: before its HELLO, before its READY, while it takes part in rounds, once this side has
decided to end it and nothing that comes counts any more, and after."""

_CHUNK = 262_144
"""Bytes that are written at once: enough that it is not slow, few enough that others get their turn."""
_MOST_STRAYS = 3
"""Messages in a row that nobody asked for, after which a worker must join again."""
_LONGEST_WHO = 200
_scratch = memoryview(bytearray(65_536))  # what is read and not used


class Owner(Protocol):
    """What a connection reports to."""

    answer_bytes: int

    def introduced(self, connection: WorkerConnection, number: int) -> None:
        """A HELLO has come, from whoever says to be this number."""

    def not_understood(self, connection: WorkerConnection, why: str) -> None:
        """Something has come in place of a HELLO, such as one of another version."""

    def prepared(self, connection: WorkerConnection) -> None:
        """A READY has come."""

    def place_of_answer(self, connection: WorkerConnection) -> memoryview:
        """Return where the values of the next answer are to be written."""

    def answered(self, connection: WorkerConnection, step: int, loss: float) -> None:
        """The values that were asked for have come."""

    def rejected(self, connection: WorkerConnection, why: str, logged: bool) -> None:
        """Something has come that nobody asked for; `logged` says that the log has a line on it since the last row."""

    def closed(self, connection: WorkerConnection, why: str, rejected: bool) -> None:
        """The connection has ended; `rejected` says that this side ended it because of what came."""


class WorkerConnection(asyncio.BufferedProtocol):
    """One connection, from its acceptance to its end. All of it runs in the thread of the event loop.

    Attributes:
        peer: the address on the other side.
        identity: who the certificate names; None without TLS.
        expires: when the certificate expires, in seconds since 1970.
        number: which worker this is, once it has been introduced.
        who: for people: the name, the process, the address.
        asked, sent: the last step that the worker was asked for, and the last whose parameters were sent completely.
    """

    transport: Any

    def __init__(self, owner: Owner, peer: str) -> None:
        self.owner, self.peer, self.who = owner, peer, peer
        self.identity: WorkerIdentity | None = None
        self.expires: float | None = None
        self.number, self.session, self.state = UNKNOWN, 0, GREETING
        self.asked = self.sent = self.pending = NO_STEP
        self.slot = 0
        self.settled = asyncio.Event()
        """Set once it has been introduced, or has ended."""
        self.since = time.monotonic()
        """When it was accepted; later, when it was last asked, or last heard of."""
        self._why, self._rejected, self._strays, self._complained = "", False, 0, False
        self._head_bytes = memoryview(bytearray(HEAD_SIZE))
        self._head: Head | None = None  # of the message whose payload is being read
        self._target, self._filled, self._skip = self._head_bytes, 0, 0
        self._outbox: collections.deque[tuple[memoryview, Callable[[], None] | None]] = collections.deque()
        self._offset, self._paused = 0, False

    # -- what asyncio calls -------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        # A transport that keeps a part of what it was given pauses until all of it is sent, because the next parameters
        # will be written to the same memory. (With TLS asyncio pauses at the limit, without only above it.)
        transport.set_write_buffer_limits(high=1 if transport.get_extra_info("sslcontext") else 0, low=0)
        if tls := transport.get_extra_info("ssl_object"):
            # Here and not in a task: the first message may have come with the end of the handshake, and is read next.
            try:
                pem = ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True)).encode()
                self.identity, self.expires = identity_of(pem), expiry(pem).timestamp()
                self.who = f"{self.identity.name} at {self.peer}"
            except CertificateError as problem:
                self.close(str(problem), rejected=True)

    def connection_lost(self, problem: Exception | None) -> None:
        if self.state != CLOSED:
            self._why = self._why or explain_end(problem)
        self.state = CLOSED
        self.settled.set()
        self._outbox.clear()
        # The transport knows this object, too. Only a collection of all garbage, which is rare in a process with many
        # objects, would find such a pair: until then each connection that has ended would keep 0.3 MB and more.
        del self.transport
        self.owner.closed(self, self._why, self._rejected)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.state in (LEAVING, CLOSED):
            return _scratch
        return self._target[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.state in (LEAVING, CLOSED):
            return
        self._filled += nbytes
        if self._filled < len(self._target):
            return
        try:
            self._complete()
        except MalformedMessageError as problem:
            if self.state == GREETING:
                self._head = None
                self._read_into(self._head_bytes)
                self.owner.not_understood(self, str(problem))
            else:
                self.close(str(problem), rejected=True)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._finish_first()
        self._write()

    # -- what is read -------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        """What was awaited has come: a head, a payload, or a part of one that is not used."""
        if self._skip:
            self._skip -= self._filled
            self._read_into(_scratch[: min(self._skip, len(_scratch))] if self._skip else self._head_bytes)
            return
        if self._head is None:
            self._head = Head.parse(self._head_bytes)
            self._read_into(self._payload_place(self._head))
            if self._skip or len(self._target):
                return
            if self._head is None:  # nobody asked for it, and it has no payload that could be skipped
                self._read_into(self._head_bytes)
                return
        head, payload = self._head, self._target
        self._head = None
        self._read_into(self._head_bytes)
        self._handle(head, payload)

    def _read_into(self, target: memoryview) -> None:
        self._target, self._filled = target, 0

    def _payload_place(self, head: Head) -> memoryview:
        """Return the memory for a payload; MalformedMessageError where it must not come now, or not so long."""
        kind, longest = {GREETING: (HELLO, LONGEST_TEXT), PREPARING: (READY, 0)}.get(self.state, (ANSWER, 0))
        if head.kind != kind:
            raise MalformedMessageError(f"a message of kind {head.kind} is out of place")
        if kind != ANSWER:
            if head.size > longest:
                raise MalformedMessageError(f"it announces {head.size:,} bytes, at most {longest:,} can be right")
            return memoryview(bytearray(head.size))
        if head.size != self.owner.answer_bytes:
            raise MalformedMessageError(
                f"it announces {head.size:,} bytes of values instead of {self.owner.answer_bytes:,}"
            )
        if fault := self._fault(head):
            self._stray(fault)
            self._head, self._skip = None, head.size
            return _scratch[: min(head.size, len(_scratch))]
        return self.owner.place_of_answer(self)

    def _fault(self, head: Head) -> str:
        if self.pending == NO_STEP:
            return f"it answers step {head.step}, which is answered already"
        if head.step != self.pending:
            return f"it answers step {head.step}, but step {self.pending} is asked for"
        if head.session != self.session:
            return f"it answers step {head.step} in the name of another session"
        if self.sent != self.pending:
            return f"it answers step {head.step} before it has its parameters"
        return ""

    def _stray(self, why: str) -> None:
        self._strays += 1
        if self._strays >= _MOST_STRAYS:
            raise MalformedMessageError(f"{_MOST_STRAYS} answers in a row that nobody asked for, the last: {why}")
        self.owner.rejected(self, why, logged=self._complained)
        self._complained = True  # a line per good row, so that a flood of bad messages does not fill the log

    def _handle(self, head: Head, payload: memoryview) -> None:
        if head.kind == HELLO:
            said = bytes(payload).decode(errors="replace")
            name = f"{self.identity.name} " if self.identity else ""
            self.who = f"{name}{shortened(said, _LONGEST_WHO)} at {self.peer}"
            self.owner.introduced(self, head.step)
        elif head.kind == READY:
            self.owner.prepared(self)
        else:
            step, self.pending = self.pending, NO_STEP
            self._strays, self._complained = 0, False
            self.since = time.monotonic()
            self.owner.answered(self, step, head.loss)

    # -- what is sent -------------------------------------------------------------------------------------------------

    def post(self, *parts: bytes | memoryview, sent: Callable[[], None] | None = None) -> None:
        """Send these bytes, after what is being sent already; `sent` is called once nobody needs them any more."""
        if self.state == CLOSED:
            return
        filled = [part for part in parts if len(part)]
        for number, part in enumerate(filled, 1):
            self._outbox.append((memoryview(part), sent if number == len(filled) else None))
        self._write()

    def ask(self, step: int, message: bytes | memoryview) -> None:
        """Send a ROUND, and wait for the answer to its step.

        Head and parameters are one piece of memory, the same for all workers: a head by itself would wake a worker to
        no purpose, or make a packet of its own.
        """

        def sent() -> None:
            self.sent = step

        self.pending, self.since = step, time.monotonic()
        self.post(message, sent=sent)

    def ping(self) -> None:
        """Show that this side is there, unless something is on its way that shows it."""
        if not self._outbox:
            self.post(Head(PING).pack())

    @property
    def sending(self) -> bool:
        """Whether parameters that it was asked to send may still be read."""
        return self.state != CLOSED and self.asked != self.sent

    def _write(self) -> None:
        while self._outbox and not self._paused and self.state != CLOSED:
            part, _ = self._outbox[0]
            begin, self._offset = self._offset, self._offset + _CHUNK
            self.transport.write(part[begin : self._offset])
            if not self._paused:
                self._finish_first()

    def _finish_first(self) -> None:
        """Take the first part off the list if all of it has been sent."""
        if self._outbox and self._offset >= len(self._outbox[0][0]):
            _, sent = self._outbox.popleft()
            self._offset = 0
            if sent:
                sent()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self, why: str, rejected: bool = False) -> None:
        """End the connection at once, whatever is on its way."""
        if self.state != CLOSED:
            self._why, self._rejected, self.state = why, rejected, LEAVING
            self.transport.abort()

    def say_and_close(self, message: bytes) -> None:
        """Send a last message, and close the connection after it. What the other side still says does not count."""
        if self.state != CLOSED:
            self.state = LEAVING
            self.post(message, sent=self.transport.close)

    def refuse(self, code: int, why: str) -> None:
        """Tell the other side that it cannot join, and close the connection."""
        self._why = why
        self.say_and_close(text_message(REFUSE, why, code))

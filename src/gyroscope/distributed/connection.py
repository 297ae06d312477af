"""A worker's end of its connection to the server."""

from __future__ import annotations

import socket
import ssl
import time

from gyroscope._core.errors import LinkError
from gyroscope.distributed.protocol import HEAD_SIZE, Head, MalformedMessageError

_TLS_ALERT = b"\x15\x03"
_NO_TLS = ("WRONG_VERSION", "RECORD_LAYER")
"""In the reason of an SSLError: what came in the handshake is no TLS."""
_MISTAKES = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "UNSUPPORTED", "ALERT_DECRYPT")
"""In the reason of an SSLError: trying again would not help."""


HANDSHAKE_SECONDS = 20.0
"""A server whose thousand workers come at the same moment greets them one after another."""


class TryAgainError(OSError):
    """Whoever answers does not let this worker join, for a reason that may pass; the text says what to do."""


class ServerConnection:
    """A stream of messages from and to the server.

    Args:
        host: Where the server listens.
        port: Its port.
        context: For TLS; None without.
        seconds: For the connection to come about, before the handshake of TLS.

    Raises:
        TryAgainError: Whoever answers does not prove to be the server of this worker's ca.crt.
        OSError: There is no connection.
    """

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, seconds: float) -> None:
        self._context, self._host = context, host
        self._socket = socket.create_connection((host, port), timeout=seconds)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if context:
                self._socket.settimeout(HANDSHAKE_SECONDS)
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLError as problem:
            self._socket.close()
            raise self._unproven(problem) from problem
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> ServerConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, content: bytes | memoryview, seconds: float) -> None:
        """Send all of it; OSError where that takes longer, or the server is gone."""
        self._socket.settimeout(seconds)
        try:
            self._socket.sendall(content)
        except ssl.SSLError as problem:
            raise self._explained(problem) from problem

    def receive_head(self, seconds: float) -> Head:
        """Wait for the head of the next message.

        Raises:
            LinkError: What came is no message of ours.
            OSError: Nothing came, or the connection has ended.
        """
        content = bytearray(HEAD_SIZE)
        self.receive(memoryview(content), seconds)
        try:
            return Head.parse(content)
        except MalformedMessageError as problem:
            raise LinkError(f"the server sent a message that cannot be read: {problem}") from problem

    def receive(self, place: memoryview, seconds: float) -> None:
        """Fill this memory; OSError where that takes longer, or the connection ends before."""
        until, filled = time.monotonic() + seconds, 0
        while filled < len(place):
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            try:
                count = self._socket.recv_into(place[filled:])
            except ssl.SSLError as problem:
                raise self._explained(problem) from problem
            if count == 0:
                raise ConnectionError("the server closed the connection")
            filled += count
            if self._context is None and bytes(place[:2]) == _TLS_ALERT:
                raise LinkError("the server speaks TLS: name this worker's certificate with --cert")

    def _unproven(self, problem: ssl.SSLError) -> OSError:
        """Return the error of a handshake. It ends no worker for good: anybody on the way could have caused it."""
        if isinstance(problem, ssl.SSLCertVerificationError):
            return TryAgainError(
                f"the server at {self._host} does not prove that it is the one of ca.crt ({problem.verify_message}): "
                "use the ca.crt of its keys, and a host name or address that gyroscope keys init was given"
            )
        if any(word in (problem.reason or "") for word in _NO_TLS):
            return TryAgainError(
                f"what answers at {self._host} does not speak TLS, so it does not prove to be the server: start the "
                "server with --keys, and let a proxy before it pass TLS on as it is"
            )
        return problem

    def _explained(self, problem: ssl.SSLError) -> OSError | LinkError:
        """Return the error of a proven link: a LinkError where trying again would not help."""
        reason = problem.reason or ""
        if any(word in reason for word in _MISTAKES):
            return LinkError(
                f"the server does not accept this worker's certificate ({reason.replace('_', ' ').lower()}): ask for a "
                "new one (gyroscope keys add)"
            )
        return problem

"""What strangers and lying workers do to a server, over real connections: with TLS where they have a certificate."""

from __future__ import annotations

import contextlib
import datetime
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch

from gyroscope._core.errors import LinkError
from gyroscope.distributed import certificates, tls
from gyroscope.distributed.certificates import authority, signing
from gyroscope.distributed.connection import ServerConnection
from gyroscope.distributed.protocol import ANSWER, HELLO, OFFER, READY, REFUSE, UNKNOWN, WELCOME, Head, text_message

HOST = "127.0.0.1"
SECONDS = 20.0


class Peer:
    """A worker's program that does what it is told, with a certificate or (None) without TLS."""

    def __init__(self, port: int, certificate: Path | None, seconds: float = SECONDS) -> None:
        context = tls.worker_context(certificate) if certificate else None
        self.connection = ServerConnection(HOST, port, context, seconds)
        self.session = 0

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.__exit__()

    def send(self, content: bytes) -> None:
        self.connection.send(content, SECONDS)

    def receive(self) -> tuple[Head, bytes]:
        head = self.connection.receive_head(SECONDS)
        content = bytearray(head.size)
        self.connection.receive(memoryview(content), SECONDS)
        return head, bytes(content)

    def hello(self, number: int = UNKNOWN) -> tuple[Head, bytes]:
        self.send(text_message(HELLO, "a test", number))
        return self.receive()

    def join(self, number: int = UNKNOWN) -> None:
        head, said = self.hello(number)
        assert head.kind == OFFER, said
        self.send(Head(READY).pack())
        head, _ = self.receive()
        assert head.kind == WELCOME
        self.session = head.session

    def answer(self, step: int, values: torch.Tensor, session: int | None = None) -> None:
        content = values.numpy().tobytes()
        self.send(Head(ANSWER, step, self.session if session is None else session, len(content), 0.5).pack() + content)

    def is_cut_off(self) -> bool:
        """Whether the server ends the connection."""
        with contextlib.suppress(OSError, LinkError):
            while True:
                self.receive()
        return True


def plain(port: int) -> socket.socket:
    """Return a connection without TLS, over which nothing has been sent."""
    return socket.create_connection((HOST, port), timeout=SECONDS)


def ended(peer: socket.socket) -> bool:
    """Whether the server closes the connection."""
    with contextlib.suppress(ConnectionError):
        while peer.recv(65536):
            pass
    return True


def send_random_bytes(port: int) -> None:
    """Send some, over a few connections, which the server must end."""
    random.seed(1)
    for size in (1, 5, 100, 5000, 100_000):
        with plain(port) as peer:
            with contextlib.suppress(ConnectionError):
                peer.sendall(random.randbytes(size))
                peer.shutdown(socket.SHUT_WR)
            assert ended(peer)


def answer_to(port: int, keys: Path, certificate: Path | None) -> bytes:
    """Return what the server of these keys answers to whoever has this certificate, with its key beside it, or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(keys / "ca.crt")
    if certificate:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with (
        contextlib.suppress(ssl.SSLError, ConnectionError),
        plain(port) as bare,
        context.wrap_socket(bare, server_hostname=HOST) as peer,
    ):
        peer.sendall(text_message(HELLO, "let me in", 2))
        return peer.recv(1000)
    return b""


def flood_of_joins(port: int, certificate: Path) -> tuple[Head, bytes]:
    """Begin to join and leave, over and over, and return what the server answers in the end."""
    for _ in range(40):
        with Peer(port, certificate) as peer:
            head, said = peer.hello()
            if head.kind == REFUSE:
                break
    return head, said


# -- certificates ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def days_ago(days: int) -> Iterator[None]:
    """Make certificates as if it were some days ago."""
    moment = authority.utc_now() - datetime.timedelta(days=days)
    with contextlib.ExitStack() as stack:
        for module in (authority, signing):
            stack.enter_context(mock.patch.object(module, "utc_now", return_value=moment))
        yield


def certificate_of_another_authority(folder: Path) -> Path:
    """Make an authority in this folder, and return a certificate from it, for worker 2."""
    certificates.create_authority(folder)
    certificates.add_worker(folder, "worker-2")
    return folder / "worker-2.crt"


def expired_certificate(keys: Path) -> Path:
    """Return a certificate of these keys that has expired."""
    with days_ago(30):
        certificates.add_worker(keys, "worker-9", days=1)
    return keys / "worker-9.crt"

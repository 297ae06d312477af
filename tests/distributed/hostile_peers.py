"""What strangers and lying workers do to a server, over real connections: with TLS where they have a certificate."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import gyroscope as gy
from gyroscope._core.errors import LinkError
from gyroscope.distributed import certificates, tls
from gyroscope.distributed.certificates import authority, signing
from gyroscope.distributed.connection import ServerConnection
from gyroscope.distributed.protocol import (
    ANSWER,
    END,
    HELLO,
    NO_STEP,
    OFFER,
    READY,
    REFUSE,
    ROUND,
    UNKNOWN,
    WELCOME,
    Head,
    Offer,
    text_message,
)
from gyroscope.distributed.server.link_events import Answered, Joined, LinkEvent, Lost, Refused
from gyroscope.distributed.server.links import Links
from gyroscope.distributed.server.parameter_server import listen

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


def in_one_segment(port: int, certificate: Path, *messages: bytes) -> bytes:
    """Send messages in the very packet that ends the handshake, and return what the server answers before it is silent.

    The server has all of them before anything else of it can run.
    """
    context = tls.worker_context(certificate)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = context.wrap_bio(incoming, outgoing, server_hostname=HOST)
    said = b""
    with plain(port) as bare:
        while True:
            try:
                peer.do_handshake()
                break
            except ssl.SSLWantReadError:
                bare.sendall(outgoing.read())
                incoming.write(bare.recv(65536))
        for message in messages:
            peer.write(message)
        bare.sendall(outgoing.read())
        bare.settimeout(1.0)
        with contextlib.suppress(OSError, ssl.SSLError):
            while content := bare.recv(65536):
                incoming.write(content)
                with contextlib.suppress(ssl.SSLWantReadError):
                    while more := peer.read(65536):
                        said += more
    return said


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


def flood_of_joins(port: int, certificate: Path, attempts: int = 40) -> tuple[Head, bytes]:
    """Begin to join and leave, over and over, and return what the server answers in the end."""
    for _ in range(attempts):
        with Peer(port, certificate) as peer:
            head, said = peer.hello()
            if head.kind == REFUSE:
                break
    return head, said


# -- a server to attack ----------------------------------------------------------------------------------------------


class Rig:
    """Links for three workers, and honest ones for two of them."""

    def __init__(self, folder: Path, dimension: int = 1000, momentum: str = "workers", patience: float = 60.0) -> None:
        self.keys, self.dimension = folder / "keys", dimension
        with days_ago(40):
            certificates.create_authority(self.keys)
        for number in range(3):
            certificates.add_worker(self.keys, f"worker-{number}")
        self.links = Links(listen("127.0.0.1", 0, exposed=True), self.keys)
        config = gy.Config(workers=3, momentum=momentum).resolve()
        self.offer = Offer(config, 3, dimension, "float32", 1.0)
        self.seen: list[LinkEvent] = []
        self.step = -1
        self.patience = patience

    def open(self) -> None:
        self.links.open(self.offer, lambda number: (NO_STEP, None), self.patience)

    def peer(self, name: str, seconds: float = SECONDS) -> Peer:
        """Connect the owner of one of the certificates."""
        return Peer(self.links.port, self.keys / f"{name}.crt", seconds)

    def until(self, happened: Callable[[], bool]) -> None:
        begun = time.monotonic()
        while not happened():
            assert time.monotonic() - begun < SECONDS, self.seen
            self.seen += self.links.events(0.05)

    def of(self, kind: Any, worker: int | None = None) -> list[Any]:
        return [each for each in self.seen if isinstance(each, kind) and worker in (None, each.worker)]

    def refused(self, word: str) -> Refused:
        """Wait for a refusal whose reason has this word, and return it."""
        self.until(lambda: any(word in each.why for each in self.of(Refused)))
        return next(each for each in self.of(Refused) if word in each.why)

    def play(self) -> None:
        """Play a round with the two honest workers, which answer with their numbers and the step."""
        self.step += 1
        before = len(self.of(Answered))
        self.links.publish(self.step, torch.full((self.dimension,), float(self.step)))
        self.links.ask([0, 1])
        self.until(lambda: len(self.of(Answered)) == before + 2)
        for answer in self.of(Answered)[-2:]:
            assert answer.step == self.step
            assert answer.values.unique().tolist() == [10.0 * answer.worker + self.step]


def honest(peer: Peer, number: int, dimension: int) -> None:
    with peer, contextlib.suppress(OSError, LinkError):
        while True:
            head, content = peer.receive()
            if head.kind == END:
                return
            if head.kind == ROUND:
                parameters = torch.frombuffer(bytearray(content), dtype=torch.float32)
                assert parameters.unique().tolist() == [float(head.step)]
                peer.answer(head.step, torch.full((dimension,), 10.0 * number + head.step))


@contextlib.contextmanager
def running(rig: Rig) -> Iterator[Rig]:
    """Let the two honest workers join, and play a round before and after what the test does."""
    threads = []
    try:
        rig.open()
        for number in range(2):
            peer = rig.peer(f"worker-{number}")
            peer.join()
            threads.append(threading.Thread(target=honest, args=(peer, number, rig.dimension), daemon=True))
            threads[-1].start()
        rig.until(lambda: len(rig.of(Joined)) == 2)
        rig.play()
        yield rig
        rig.play()
        assert not rig.of(Lost, 0) and not rig.of(Lost, 1)
    finally:
        rig.links.close(True, 5.0)
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()


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


def forged_by(keys: Path, name: str, folder: Path) -> Path:
    """Return a certificate for worker 1 and for this machine, signed by a worker's key, with the chain up to it."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    issuer_pem = (keys / f"{name}.crt").read_bytes()
    issuer = x509.load_pem_x509_certificate(issuer_pem), load_pem_private_key((keys / f"{name}.key").read_bytes(), None)
    names = [x509.UniformResourceIdentifier("urn:gyroscope:worker:1"), x509.IPAddress(ipaddress.ip_address(HOST))]
    key = signing.new_key()
    until = authority.utc_now() + datetime.timedelta(days=1)
    certificate = signing.sign("worker-1", key, until, issuer, None, names)  # type: ignore[arg-type]
    signing.write_pairs(folder, {"forged": (key, certificate)})
    path = folder / "forged.crt"
    path.write_bytes(path.read_bytes() + issuer_pem)
    return path


@contextlib.contextmanager
def server_that(answers: Callable[[socket.socket], object]) -> Iterator[int]:
    """Yield the port of a server that does this with each connection, and then waits until the other side is gone."""
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer, contextlib.suppress(OSError):
                    answers(peer)
                    peer.settimeout(5.0)
                    ended(peer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(SECONDS)

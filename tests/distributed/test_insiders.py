"""Somebody who has read the source and holds worker 2's certificate: real connections, a round after each of them."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hostile_peers import Peer, Rig, answer_to, forged_by, in_one_segment, plain, running, server_that
from test_hostile_peers import descriptors

from gyroscope._core.errors import LinkError
from gyroscope.distributed import certificates, tls
from gyroscope.distributed.connection import TryAgainError
from gyroscope.distributed.protocol import (
    FINAL,
    HEAD_SIZE,
    HELLO,
    LONGEST_OFFER,
    OFFER,
    READY,
    REFUSE,
    UNKNOWN,
    Head,
    text_message,
)
from gyroscope.distributed.server import links as links_module
from gyroscope.distributed.server.link_events import Answered, Joined, Lost, Rejected
from gyroscope.distributed.worker import Worker


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(Rig(tmp_path)) as found:
        yield found


def test_a_claim_in_the_packet_that_ends_the_handshake(tmp_path: Path) -> None:
    """The certificate counts before the first byte is read, so worker 2 cannot be worker 1 by being quick."""
    rig = Rig(tmp_path)
    rig.open()
    try:
        said = in_one_segment(rig.links.port, rig.keys / "worker-2.crt", text_message(HELLO, "", 1))
        head = Head.parse(said[:HEAD_SIZE])
        assert (head.kind, head.step) == (REFUSE, FINAL) and b"is worker 2's, not worker 1's" in said
        said = in_one_segment(rig.links.port, rig.keys / "worker-2.crt", text_message(HELLO, "", UNKNOWN))
        assert Head.parse(said[:HEAD_SIZE]).kind == OFFER
    finally:
        rig.links.close(True, 1.0)


def test_a_revoked_worker_that_is_quick(rig: Rig) -> None:
    certificates.revoke(rig.keys, "worker-2")
    time.sleep(1.1)  # for so long an answer of the list may be old
    said = in_one_segment(rig.links.port, rig.keys / "worker-2.crt", text_message(HELLO, "", 2), Head(READY).pack())
    assert Head.parse(said[:HEAD_SIZE]).kind == REFUSE and len(said) < 200
    rig.refused("is revoked")
    assert not rig.of(Joined, 2)


def test_who_is_refused_cannot_go_on_all_the_same(rig: Rig) -> None:
    """It neither joins, nor gets the momentum of the worker whose number Python takes -1 for."""
    asked: list[int] = []
    original = rig.links._momentum_of
    rig.links._momentum_of = lambda number: (asked.append(number), original(number))[1]
    hello, ready = text_message(HELLO, "", 1), Head(READY).pack()
    in_one_segment(rig.links.port, rig.keys / "worker-2.crt", hello, ready)
    with rig.peer("worker-2") as peer:
        peer.send(hello + ready)
        peer.is_cut_off()
    rig.play()
    assert asked == [] and len(rig.of(Joined)) == 2


def test_refused_connections_that_are_held(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told to go counts among the strangers until it has gone: a certificate does not buy descriptors."""
    monkeypatch.setattr(links_module, "_MOST_STRANGERS", 20)
    before = descriptors()
    held = []
    try:
        for _ in range(60):
            held.append(rig.peer("worker-0"))
            assert held[-1].hello()[0].kind == REFUSE
        time.sleep(0.3)
        assert descriptors() - before - len(held) <= 25
    finally:
        for peer in held:
            peer.__exit__()


def test_an_introduction_that_is_no_message_is_a_line_of_the_log(rig: Rig) -> None:
    with rig.peer("worker-2") as peer:
        peer.send(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n" + b" " * 20)
        assert peer.is_cut_off()
    assert rig.refused("does not begin like a message").who.startswith("worker-2 at 127.0.0.1")


def test_answers_without_reading_what_was_asked(tmp_path: Path) -> None:
    """Nothing piles up for a worker that answers parameters which it has not received: such an answer is a stray."""
    with running(Rig(tmp_path, dimension=3_000_000)) as rig, rig.peer("worker-2") as peer:
        peer.connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.join()
        rig.until(lambda: bool(rig.of(Joined, 2)))
        rig.links.ask([2])
        with contextlib.suppress(OSError, LinkError):
            for _ in range(3):
                peer.answer(rig.step, torch.zeros(rig.dimension))
        rig.until(lambda: bool(rig.of(Lost, 2)))
        assert "before it has its parameters" in rig.of(Rejected, 2)[0].why and not rig.of(Answered, 2)


# -- strangers who have read the source, too ---------------------------------------------------------------------------


def test_a_crowd_from_one_address_does_not_shut_out_another(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An honest worker that needs a while for its handshake gets in while somebody connects over and over."""
    monkeypatch.setattr(links_module, "_MOST_STRANGERS", 20)
    context = tls.worker_context(rig.keys / "worker-2.crt")
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(plain(rig.links.port))
        for _ in range(60):
            where = ("127.0.0.1", rig.links.port)
            stack.enter_context(socket.create_connection(where, source_address=("127.0.0.2", 0)))
        rig.until(lambda: rig.links.refusals.counts["crowd"] >= 40)
        with context.wrap_socket(slow, server_hostname="127.0.0.1") as peer:
            peer.sendall(text_message(HELLO, "late", UNKNOWN))
            assert Head.parse(peer.recv(HEAD_SIZE)).kind == OFFER


def test_who_waits_to_be_accepted_does_not_keep_the_others_waiting(rig: Rig) -> None:
    """Between two strangers the loop serves the links."""
    held, seen, loop = [], [0], rig.links._loop

    def look() -> None:
        seen.append(len(rig.links._strangers))
        if len(seen) < 2000:
            loop.call_soon(look)

    loop.call_soon_threadsafe(time.sleep, 1.0)
    held = [plain(rig.links.port) for _ in range(60)]
    loop.call_soon_threadsafe(look)
    rig.until(lambda: max(seen) >= 60)
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 3
    for peer in held:
        peer.close()


def test_a_worker_is_no_authority(rig: Rig, tmp_path: Path) -> None:
    """A certificate that worker 2 has signed for worker 1 does not count, whatever chain comes with it."""
    chain = forged_by(rig.keys, "worker-2", tmp_path)
    assert answer_to(rig.links.port, rig.keys, chain) == b""
    rig.refused("no TLS connection")


@pytest.mark.parametrize("who", ["worker-2", "forged"])
def test_a_worker_is_no_server(rig: Rig, tmp_path: Path, who: str) -> None:
    """Towards other workers, in the middle: its certificate is a worker's, and so is what it signs."""
    certificate = rig.keys / "worker-2.crt" if who == "worker-2" else forged_by(rig.keys, "worker-2", tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with (
        server_that(lambda peer: context.wrap_socket(peer, server_side=True)) as port,
        pytest.raises(TryAgainError, match="does not prove"),
    ):
        Peer(port, rig.keys / "worker-1.crt")


def test_a_server_that_writes_to_a_worker_s_terminal() -> None:
    """A refusal is shown as one printable line."""
    message = text_message(REFUSE, "\x1b[2J\x1b]0;owned\x07no\nworker 0: joined", FINAL)
    with server_that(lambda peer: peer.sendall(message)) as port, pytest.raises(LinkError) as problem:
        Worker("127.0.0.1", port, 0).work()
    assert str(problem.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "[link]\ncount = inf\ndimension = 1\ndtype = 'float32'\ndeadline = 1\n[config]",
        "[link]\ncount = 1\ndimension = 1\ndtype = 'float32'\ndeadline = nan\n[config]",
        "[link]\ncount = -1\ndimension = 1\ndtype = 'float32'\ndeadline = 1\n[config]",
        "a = " + "[" * 8000,
        "a" + ".a" * 4000 + " = 1",
        "link = 1\nconfig = 2",
    ],
    ids=["infinite", "not a number", "negative", "deep", "dotted", "numbers"],
)
def test_offers_of_a_hostile_server(text: str) -> None:
    begun = time.monotonic()
    offer = text_message(OFFER, text)
    with server_that(lambda peer: peer.sendall(offer)) as port, pytest.raises(LinkError, match="cannot be read"):
        Worker("127.0.0.1", port, 0).work()
    assert time.monotonic() - begun < 10
    assert text_message(OFFER, "x" * 70_000) == Head(OFFER, size=LONGEST_OFFER).pack() + b"x" * LONGEST_OFFER


def test_the_run_hears_when_nobody_is_accepted_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)
    monkeypatch.setattr(links_module, "_prepare", lambda *_: 1 / 0)
    with plain(rig.links.port), pytest.raises(ZeroDivisionError):
        rig.until(lambda: False)
    rig.links.close(False, 1.0)


def test_a_grace_period_of_weeks(tmp_path: Path) -> None:
    """The kernel's longest timeout is 24 days."""
    with running(Rig(tmp_path, patience=1e8)):
        pass


def test_a_list_of_revocations_that_is_a_pipe(rig: Rig) -> None:
    """To read it would stop the loop for ever. The last good list stays in force."""
    path = rig.keys / "revoked.txt"
    path.unlink()
    os.mkfifo(path)
    time.sleep(2.5)
    rig.play()
    assert rig.links.revoked and "is no file" in rig.links.revoked.problem

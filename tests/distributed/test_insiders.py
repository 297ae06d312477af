"""Somebody who has read the source and holds worker 2's certificate: real connections, a round after each of them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hostile_peers import Rig, in_one_segment, running
from test_hostile_peers import descriptors

from gyroscope._core.errors import LinkError
from gyroscope.distributed import certificates
from gyroscope.distributed.protocol import FINAL, HEAD_SIZE, HELLO, OFFER, READY, REFUSE, UNKNOWN, Head, text_message
from gyroscope.distributed.server import links as links_module
from gyroscope.distributed.server.link_events import Answered, Joined, Lost, Rejected


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

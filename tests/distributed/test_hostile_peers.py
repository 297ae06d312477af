"""Peers that the server must survive: real connections on loopback, most of them with TLS.

A round with honest workers is played after each of them, and what they cost the server is bounded.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hostile_peers import (
    Peer,
    Rig,
    answer_to,
    certificate_of_another_authority,
    ended,
    expired_certificate,
    flood_of_joins,
    plain,
    running,
    send_random_bytes,
    server_that,
)

from gyroscope._core.errors import LinkError
from gyroscope.distributed import certificates
from gyroscope.distributed import worker as worker_module
from gyroscope.distributed.protocol import (
    ANSWER,
    FINAL,
    HELLO,
    LATER,
    REFUSE,
    ROUND,
    TAKEN,
    Head,
    text_message,
)
from gyroscope.distributed.server import links as links_module
from gyroscope.distributed.server import refusals
from gyroscope.distributed.server.connection import WorkerConnection
from gyroscope.distributed.server.link_events import Answered, Joined, Lost, Refused, Rejected
from gyroscope.distributed.worker import ServerGoneError, Worker

OPENSSL_WORDS = re.compile(r"_ssl\.c|SSL:|[A-Z]{3,}_[A-Z]")
"""Constants and places in OpenSSL's source, as in [SSL: WRONG_VERSION_NUMBER] (_ssl.c:1006)."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(Rig(tmp_path)) as found:
        yield found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- strangers ---------------------------------------------------------------------------------------------------------


def test_a_worker_whose_certificate_has_expired_gives_up_at_once_and_says_why(rig: Rig) -> None:
    """Exit code 2: a service that starts it again after code 3 would do so for ever."""
    with pytest.warns(UserWarning, match="expired"):
        worker = Worker("127.0.0.1", rig.links.port, certificate=expired_certificate(rig.keys))
    with pytest.raises(LinkError, match=r"certificate, or its authority's, expired on .* ask for a new one") as raised:
        worker.work()
    assert not isinstance(raised.value, ServerGoneError)


def test_a_worker_without_tls_says_at_the_first_try_what_may_be_wrong(rig: Rig) -> None:
    said: list[str] = []
    worker = Worker("127.0.0.1", rig.links.port, 0, patience=0.3, report=said.append)
    with pytest.raises((LinkError, ServerGoneError)):
        worker.work()
    assert all("trying for 0.3 s. Or, if it has --keys" in text for text in said)
    unreachable: list[str] = []
    with pytest.raises(ServerGoneError):
        Worker("127.0.0.1", 1, 0, patience=0.3, report=unreachable.append).work()
    assert len(unreachable) == 1 and unreachable[0].startswith("no server that lets this worker join yet")


@pytest.mark.parametrize(
    "content",
    [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", text_message(REFUSE, "go away", FINAL), b"SSH-2.0-OpenSSH_9.6\r\n"],
    ids=["a proxy", "a server without keys", "ssh"],
)
def test_no_plain_text_ends_a_worker_that_has_a_certificate(rig: Rig, content: bytes) -> None:
    """Anybody on the way could send it: the worker goes on trying, and says once what to do."""
    said: list[str] = []
    with server_that(lambda peer: peer.sendall(content)) as port:
        worker = Worker("127.0.0.1", port, certificate=rig.keys / "worker-2.crt", patience=1.0, report=said.append)
        with pytest.raises(ServerGoneError, match=r"does not speak TLS.* start the server with --keys") as raised:
            worker.work()
        [line] = [text for text in said if "does not speak TLS" in text]
        assert "start the server with --keys" in line and "trying for 1 s" in line
    assert "leave out" not in line + str(raised.value)


def test_random_bytes(rig: Rig) -> None:
    before = descriptors()
    send_random_bytes(rig.links.port)
    assert rig.refused("no ").who.startswith("127.0.0.1:")
    assert descriptors() <= before + 2


def test_somebody_who_says_nothing_and_many_of_them(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held connections cost the server a bounded number of descriptors, and honest workers get in all the same."""
    monkeypatch.setattr(links_module, "_MOST_STRANGERS", 20)
    monkeypatch.setattr(links_module, "_INTRODUCTION_SECONDS", 2.0)
    before = descriptors()
    held = [plain(rig.links.port) for _ in range(200)]
    time.sleep(0.5)
    assert descriptors() - before - len(held) <= 25
    with rig.peer("worker-2") as late:
        late.join()
        rig.until(lambda: bool(rig.of(Joined, 2)))
    assert all(ended(peer) for peer in held)
    rig.refused("connections are being made")
    rig.refused("did not finish the handshake within 2 s")
    for peer in held:
        peer.close()


def test_a_handshake_without_a_word_after_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "_INTRODUCTION_SECONDS", 1.0)
    with rig.peer("worker-2") as peer:
        assert peer.is_cut_off()
    assert "worker-2 at 127.0.0.1" in rig.refused("said nothing").who


def test_a_slow_introduction(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte at a time does not buy more time."""
    monkeypatch.setattr(links_module, "_INTRODUCTION_SECONDS", 1.0)
    with rig.peer("worker-2") as peer, contextlib.suppress(OSError):
        for byte in text_message(HELLO, "x" * 100):
            peer.send(bytes([byte]))
            time.sleep(0.1)
        pytest.fail("it was not cut off")
    rig.refused("said nothing")


@pytest.mark.parametrize(
    ("who", "says"),
    [
        ("nobody", "shows no certificate; a worker needs --cert"),
        ("another authority", "another authority has signed; give it one of this server's authority"),
        ("an expired one", "the peer's certificate has expired; give it a new one"),
        ("the server's", "a certificate that is not a worker's"),
    ],
)
def test_certificates_that_do_not_count(rig: Rig, who: str, says: str, tmp_path: Path) -> None:
    """They learn nothing: not even the offer."""
    certificate = {
        "nobody": lambda: None,
        "another authority": lambda: certificate_of_another_authority(tmp_path / "other"),
        "an expired one": lambda: expired_certificate(rig.keys),
        "the server's": lambda: rig.keys / "server.crt",
    }[who]()
    assert answer_to(rig.links.port, rig.keys, certificate) == b""
    refused = rig.refused("no TLS connection")
    assert refused.who.startswith("127.0.0.1:") and says in refused.why
    assert not OPENSSL_WORDS.search(refused.why)
    assert rig.links.refusals.counts["certificate"] == 1
    assert not rig.of(Joined, 2)


def test_plain_text_to_a_server_with_tls(rig: Rig) -> None:
    with Peer(rig.links.port, None) as peer, pytest.raises((LinkError, OSError)):
        peer.hello(2)
    assert "does not speak TLS" in rig.refused("no TLS connection").why


def talk_to(port: int, content: bytes) -> None:
    with plain(port) as peer:
        peer.sendall(content)
        assert ended(peer)


def shake_hands(port: int, authority: Path, name: str = "127.0.0.1", newest: ssl.TLSVersion | None = None) -> None:
    """Begin a handshake as a worker that trusts this authority and calls the server by this name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    if newest:
        context.maximum_version = newest
    with contextlib.suppress(OSError), plain(port) as bare, context.wrap_socket(bare, server_hostname=name):
        pass


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (lambda port, rig: talk_to(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "does not speak TLS"),
        (lambda port, rig: talk_to(port, b"CONNECT example:443 HTTP/1.0\r\n\r\n"), "does not speak TLS"),
        (lambda port, rig: talk_to(port, b"SSH-2.0-OpenSSH_9.6\r\n"), "does not speak TLS"),
        (lambda port, rig: plain(port).close(), "the peer hung up during the handshake"),
        (
            lambda port, rig: shake_hands(port, rig.keys / "ca.crt", newest=ssl.TLSVersion.TLSv1_2),
            "the peer offers no TLS 1.3",
        ),
        (
            lambda port, rig: shake_hands(port, certificate_of_another_authority(rig.keys / "x").with_name("ca.crt")),
            "copy this server's ca.crt to it",
        ),
        (
            lambda port, rig: shake_hands(port, rig.keys / "ca.crt", name="elsewhere.example"),
            "gyroscope keys init --host",
        ),
    ],
    ids=["http", "proxy", "ssh", "hangs up", "TLS 1.2", "another ca.crt", "another name"],
)
def test_why_a_handshake_failed_is_a_sentence_with_a_remedy(
    rig: Rig, happens: Callable[[int, Rig], None], says: str
) -> None:
    happens(rig.links.port, rig)
    refused = rig.refused("no TLS connection: ")
    assert says in refused.why and not OPENSSL_WORDS.search(refused.why)


def test_openssl_s_words_stay_where_there_are_no_better_ones(rig: Rig) -> None:
    talk_to(rig.links.port, b"\x16\x03\x01\x02\x00" + b"\x99" * 600)  # looks like TLS, and is none
    why = rig.refused("no TLS connection: the handshake failed [").why
    assert why.endswith("]") and OPENSSL_WORDS.search(why)


def test_no_handshake_in_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "_INTRODUCTION_SECONDS", 0.5)
    with plain(rig.links.port) as peer:
        assert ended(peer)
    assert rig.refused("no TLS").why == "no TLS connection: the peer did not finish the handshake within 0.5 s"


# -- workers that are what they say, and lie ---------------------------------------------------------------------------


def test_another_number_than_the_certificate_s(rig: Rig) -> None:
    with rig.peer("worker-2") as peer:
        head, said = peer.hello(number=1)
        assert (head.kind, head.step) == (REFUSE, FINAL) and b"is worker 2's, not worker 1's" in said
        assert peer.is_cut_off()
    assert "worker-2" in rig.refused("not worker 1's").who


def test_a_certificate_that_is_used_twice(rig: Rig) -> None:
    with rig.peer("worker-0") as peer:
        head, said = peer.hello()
        assert (head.kind, head.step) == (REFUSE, TAKEN) and b"worker 0 is taken by worker-0" in said
    assert rig.refused("is taken by").worker == 0


def test_a_worker_whose_certificate_is_in_use_says_so_at_its_first_try(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_TAKEN_SECONDS", 0.5)
    said: list[str] = []
    worker = Worker("127.0.0.1", rig.links.port, certificate=rig.keys / "worker-0.crt", report=said.append)
    with pytest.raises(LinkError, match=r"worker 0 is taken by worker-0 .*: stop that process, or revoke"):
        worker.work()
    assert len(said) == 1 and "worker 0 is taken by worker-0" in said[0]


def test_a_certificate_that_is_revoked_while_it_is_used(rig: Rig) -> None:
    with rig.peer("worker-2") as peer:
        peer.join()
        certificates.revoke(rig.keys, "worker-2")
        assert peer.is_cut_off()
    rig.until(lambda: bool(rig.of(Lost, 2)))
    assert "revoked" in rig.of(Lost, 2)[0].why
    with rig.peer("worker-2") as peer:
        head, said = peer.hello()
        assert (head.kind, head.step) == (REFUSE, FINAL) and b"is revoked" in said
    certificates.add_worker(rig.keys, "worker-2-new", 2)
    with rig.peer("worker-2-new") as peer:
        peer.join()


def test_who_has_gone_leaves_no_memory_behind(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection has 0.3 MB and more. Python collects garbage too rarely to wait for that."""
    monkeypatch.setattr(links_module, "_INTRODUCTION_SECONDS", 1.0)
    other, refused = certificate_of_another_authority(tmp_path / "other"), rig.links.refusals.counts

    def connections() -> int:
        return sum(type(each) in (SSLProtocol, WorkerConnection) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = connections()
        send_random_bytes(rig.links.port)
        answer_to(rig.links.port, rig.keys, other)
        with rig.peer("worker-1") as second:
            assert second.hello()[0].step == TAKEN
        with plain(rig.links.port), rig.peer("worker-2"):
            rig.until(lambda: refused["silence"] == 2)
        for content in (b"", Head(ANSWER, 0, 0, 2**60).pack()):
            with rig.peer("worker-2") as worker:
                worker.join()
                worker.send(content)
                assert not content or worker.is_cut_off()
            rig.until(lambda: 2 not in rig.links.linked)
        rig.until(lambda: connections() == before)
    finally:
        gc.enable()


def test_a_flood_of_joins(rig: Rig) -> None:
    """A worker that joins and leaves all the time is refused for a while, and fills neither memory nor the log."""
    head, said = flood_of_joins(rig.links.port, rig.keys / "worker-2.crt")
    assert head.step == LATER and b"joined 10 times within a minute" in said
    rig.until(lambda: rig.links.refusals.counts["unfinished"] == 10)
    rig.play()
    assert len([each for each in rig.of(Refused) if "could not join" in each.why]) == 5
    assert len(rig.links._answers) == 3


def test_who_is_refused_for_joining_often_gets_in_later_though_it_kept_trying(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "_JOIN_SECONDS", 2.0)
    certificate = rig.keys / "worker-2.crt"
    assert flood_of_joins(rig.links.port, certificate)[0].step == LATER
    end = time.monotonic() + 20
    while flood_of_joins(rig.links.port, certificate, attempts=1)[0].kind == REFUSE:
        assert time.monotonic() < end, "it tries again every tenth of a second, and is never let in"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (Head(HELLO, 2, size=2**40).pack(), "announces 1,099,511,627,776 bytes"),
        (Head(ANSWER, 0, size=4000).pack(), "out of place"),
        (b"\0" * 40, "does not begin like a message"),
    ],
)
def test_wrong_messages_before_a_worker_has_joined(rig: Rig, content: bytes, why: str) -> None:
    with rig.peer("worker-2") as peer:
        peer.send(content)
        assert peer.is_cut_off()
    assert not rig.of(Joined, 2)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (Head(ANSWER, 0, size=2**60).pack(), "announces 1,152,921,504,606,846,976 bytes"),
        (Head(ANSWER, 0, size=0).pack(), "announces 0 bytes"),
        (Head(HELLO, 0, size=10).pack(), "kind 1 is out of place"),
        (Head(ROUND, 0, size=4000).pack(), "kind 6 is out of place"),
        (b"GET / HTTP/1.1\r\nHost: server\r\n\r\n" + b" " * 20, "does not begin like a message"),
    ],
)
def test_wrong_messages_after_a_worker_has_joined(rig: Rig, content: bytes, why: str) -> None:
    with rig.peer("worker-2") as peer:
        peer.join()
        rig.until(lambda: bool(rig.of(Joined, 2)))
        peer.send(content)
        assert peer.is_cut_off()
    rig.until(lambda: bool(rig.of(Lost, 2)))
    [lost] = rig.of(Lost, 2)
    assert why in lost.why and lost.rejected


def test_answers_that_nobody_asked_for(rig: Rig) -> None:
    """Rows for future rounds, for old ones, a second time: the first is logged, the third ends the link.

    The run hears of the second, too: else it would wait for an answer that has been thrown away.
    """
    values = torch.zeros(rig.dimension)
    with rig.peer("worker-2") as peer:
        peer.join()
        rig.until(lambda: bool(rig.of(Joined, 2)))
        peer.answer(5, values)
        rig.until(lambda: bool(rig.of(Rejected, 2)))
        peer.answer(6, values)
        rig.play()
        rig.until(lambda: len(rig.of(Rejected, 2)) == 2)
        assert [event.logged for event in rig.of(Rejected, 2)] == [False, True] and not rig.of(Lost, 2)
        peer.answer(7, values)
        assert peer.is_cut_off()
    rig.until(lambda: bool(rig.of(Lost, 2)))
    assert "3 answers in a row" in rig.of(Lost, 2)[0].why and not rig.of(Answered, 2)


def test_a_stream_that_was_recorded(rig: Rig) -> None:
    """What a worker sent in an earlier session does not count in this one, even where the step is the same."""
    with rig.peer("worker-2") as peer:
        peer.join()
        recorded = peer.session
    rig.until(lambda: bool(rig.of(Lost, 2)))
    with rig.peer("worker-2") as peer:
        peer.join()
        rig.until(lambda: len(rig.of(Joined, 2)) == 2)
        rig.links.ask([2])
        head, _ = peer.receive()
        peer.answer(head.step, torch.ones(rig.dimension), session=recorded)
        rig.until(lambda: bool(rig.of(Rejected, 2)))
        assert "another session" in rig.of(Rejected, 2)[0].why
        peer.answer(head.step, torch.ones(rig.dimension))
        rig.until(lambda: bool(rig.of(Answered, 2)))


def test_a_worker_that_never_answers(tmp_path: Path) -> None:
    with running(Rig(tmp_path, patience=2.0)) as rig, rig.peer("worker-2") as peer:
        peer.join()
        rig.until(lambda: bool(rig.of(Joined, 2)))
        rig.links.ask([2])
        rig.until(lambda: bool(rig.of(Lost, 2)))
        assert rig.of(Lost, 2)[0].why == "no answer for 2 s"


def test_a_worker_that_never_reads(tmp_path: Path) -> None:
    """Its parameters stay where they are while others get the next ones; then it must go. Nothing piles up."""
    with running(Rig(tmp_path, dimension=3_000_000)) as rig, rig.peer("worker-2") as peer:
        peer.join()
        rig.until(lambda: bool(rig.of(Joined, 2)))
        rig.links.ask([2])
        for _ in range(6):
            rig.play()
        stuck = rig.links.linked[2]
        assert stuck.sending  # the others use the other slot
        assert stuck.transport.get_write_buffer_size() < 600_000 and len(stuck._outbox) == 1
        with rig.peer("worker-2", seconds=5) as again:
            assert again.hello()[0].step == TAKEN


# -- what is reported --------------------------------------------------------------------------------------------------


def test_a_flood_of_refusals_is_a_few_lines() -> None:
    now = [0.0]
    reported: list[Refused] = []
    counted = refusals.Refusals(reported.append, clock=lambda: now[0])
    for number in range(1000):
        counted.add("handshake", f"10.0.0.1:{number}", "no TLS connection")
    assert len(reported) == 5 and counted.counts["handshake"] == 1000
    now[0] = 61.0
    counted.summarise()
    assert "995 more refused" in reported[-1].why and reported[-1].who == "10.0.0.1:999"
    counted.add("handshake", "10.0.0.2:1", "no TLS connection")
    assert len(reported) == 7


@pytest.mark.parametrize(
    ("change", "word"),
    [((4, b"\xff\xff"), "version 65535 of the protocol"), ((0, b"GET "), "does not begin like a message")],
)
def test_another_version_is_told_so_and_logged(tmp_path: Path, change: tuple[int, bytes], word: str) -> None:
    place, instead = change
    with running(Rig(tmp_path)) as rig, rig.peer("worker-2") as peer:
        hello = bytearray(text_message(HELLO, "from another year", 2))
        hello[place : place + len(instead)] = instead
        peer.send(bytes(hello))
        head, content = peer.receive()
        assert (head.kind, head.step) == (REFUSE, FINAL) and word in content.decode()
        assert rig.refused(word).who.startswith("worker-2 at 127.0.0.1")
        assert rig.links.refusals.counts["protocol"] == 1

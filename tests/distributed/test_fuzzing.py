"""Arbitrary bytes in arbitrary pieces, for everything that reads what strangers send. No network: these are parsers."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gyroscope as gy
from gyroscope._core.errors import LinkError
from gyroscope.distributed.protocol import (
    ANSWER,
    END,
    HEAD_SIZE,
    HELLO,
    LONGEST_TEXT,
    READY,
    ROUND,
    Head,
    MalformedMessageError,
    Offer,
    bytes_of,
)
from gyroscope.distributed.server import connection as module
from gyroscope.distributed.server.connection import CLOSED, GREETING, LEAVING, LINKED, PREPARING, WorkerConnection

DIMENSION, SESSION, STEP, GUARD = 7, 5, 3, 171
ROW = 4 * DIMENSION


class FakeTransport:
    """Takes what is written; with `full` it never gets rid of it."""

    def __init__(self, full: bool) -> None:
        self.full, self.aborted, self.written = full, False, 0
        self.protocol: WorkerConnection | None = None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def get_extra_info(self, name: str) -> Any:
        return None

    def write(self, content: memoryview) -> None:
        self.written += len(content)
        if self.full and self.protocol:
            self.protocol.pause_writing()

    def close(self) -> None:
        self.aborted = True

    def abort(self) -> None:
        self.aborted = True


class FakeOwner:
    """Accepts some introductions, and hands out a place for rows with a guard on either side."""

    answer_bytes = ROW

    def __init__(self) -> None:
        self.memory = torch.full((ROW + 2 * HEAD_SIZE,), GUARD, dtype=torch.uint8)
        self.calls: list[str] = []

    def introduced(self, connection: WorkerConnection, number: int) -> None:
        self.calls.append("introduced")
        if number % 2:
            connection.refuse(2, "no")
        else:
            connection.number, connection.state = 0, PREPARING

    def not_understood(self, connection: WorkerConnection, why: str) -> None:
        self.calls.append("not understood")
        connection.refuse(2, why)

    def prepared(self, connection: WorkerConnection) -> None:
        self.calls.append("prepared")
        connection.state, connection.session = LINKED, SESSION
        connection.asked = STEP
        connection.ask(STEP, Head(ROUND, STEP, size=4 * DIMENSION).pack() + bytes(4 * DIMENSION))

    def place_of_answer(self, connection: WorkerConnection) -> memoryview:
        return bytes_of(self.memory[HEAD_SIZE : HEAD_SIZE + ROW])

    def answered(self, connection: WorkerConnection, step: int, loss: float) -> None:
        assert step == STEP
        self.calls.append("answered")

    def rejected(self, connection: WorkerConnection, why: str, logged: bool) -> None:
        self.calls.append("rejected")

    def closed(self, connection: WorkerConnection, why: str, rejected: bool) -> None:
        self.calls.append("closed")

    def guards_hold(self) -> bool:
        return bool((self.memory[:HEAD_SIZE] == GUARD).all() and (self.memory[HEAD_SIZE + ROW :] == GUARD).all())


def connected(full: bool = False) -> tuple[WorkerConnection, FakeOwner, FakeTransport]:
    owner, transport = FakeOwner(), FakeTransport(full)
    connection = WorkerConnection(owner, "a test")
    transport.protocol = connection
    connection.connection_made(transport)
    return connection, owner, transport


def feed(connection: WorkerConnection, content: bytes, sizes: list[int]) -> None:
    """Hand over bytes as asyncio does: never more than the connection's buffer holds, until it is aborted."""
    turn = 0
    while content:
        place = connection.get_buffer(-1)
        assert 0 < len(place) <= max(len(module._scratch), LONGEST_TEXT, ROW)
        count = min(len(content), len(place), sizes[turn % len(sizes)])
        place[:count] = content[:count]
        connection.buffer_updated(count)
        content, turn = content[count:], turn + 1


heads = st.builds(
    Head,
    kind=st.integers(HELLO, END) | st.integers(0, 2**16 - 1),
    step=st.sampled_from([STEP, -1, 0, 1, 2]) | st.integers(-(2**63), 2**63 - 1),
    session=st.sampled_from([0, SESSION]) | st.integers(-(2**63), 2**63 - 1),
    size=st.sampled_from([0, 1, ROW, LONGEST_TEXT]) | st.integers(0, 2**64 - 1),
    loss=st.floats(),
).map(Head.pack)
answers = st.builds(Head, st.just(ANSWER), st.just(STEP), st.just(SESSION), st.just(ROW)).map(
    lambda head: head.pack() + b"\1" * ROW
)
strays = st.builds(Head, st.just(ANSWER), st.integers(0, 9), st.just(SESSION), st.just(ROW)).map(
    lambda head: head.pack() + b"\2" * ROW
)
streams = st.lists(heads | answers | strays | st.binary(max_size=100), max_size=12).map(b"".join)
pieces = st.lists(st.sampled_from([1, 2, 39, 40, 41, 10_000]), min_size=1, max_size=5)
openings = {
    GREETING: b"",
    PREPARING: Head(HELLO, 0).pack(),
    LINKED: Head(HELLO, 0).pack() + Head(READY).pack(),
    LEAVING: Head(HELLO, 1).pack(),
}


@settings(max_examples=300, deadline=None)
@given(state=st.sampled_from(list(openings)), content=streams, sizes=pieces, full=st.booleans())
def test_a_connection_survives_any_bytes_in_any_pieces(
    state: str, content: bytes, sizes: list[int], full: bool
) -> None:
    """No exception, no empty buffer, nothing written beside the row, and the end of the connection where it is due."""
    connection, owner, transport = connected(full)
    feed(connection, openings[state], [HEAD_SIZE])
    assert connection.state == state
    feed(connection, content, sizes)
    assert owner.guards_hold()
    assert owner.calls.count("answered") <= 1 and owner.calls.count("introduced") <= 1
    assert owner.calls.count("rejected") < 2 * module._MOST_STRAYS
    assert not full or "answered" not in owner.calls or state == GREETING
    assert len(connection._outbox) <= 4
    assert transport.aborted == (connection.state == LEAVING) or full
    if state == LEAVING:
        assert owner.calls == ["introduced"]
    connection.connection_lost(None)
    assert connection.state == CLOSED and owner.calls[-1] == "closed"
    feed(connection, content, sizes)
    assert owner.calls[-1] == "closed"


def test_the_fuzzer_s_answers_are_taken() -> None:
    """Else the test above would try nothing beyond the first head."""
    connection, owner, _ = connected()
    feed(connection, openings[LINKED] + Head(ANSWER, STEP, SESSION, ROW).pack() + b"\1" * ROW, [3, 50])
    assert owner.calls == ["introduced", "prepared", "answered"] and (owner.memory == 1).sum() == ROW


@settings(max_examples=300)
@given(st.binary(max_size=80) | heads | heads.map(bytearray))
def test_a_head_is_read_or_malformed(content: bytes) -> None:
    with contextlib.suppress(MalformedMessageError):
        assert len(Head.parse(content).pack()) == HEAD_SIZE == len(content)


values = st.recursive(
    st.integers() | st.floats() | st.booleans() | st.text(max_size=20) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)
offer = Offer(gy.Config(workers=3).resolve(), 3, 10, "float32", 1.0)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_an_offer_or_a_link_error(text: str) -> None:
    with contextlib.suppress(LinkError):
        Offer.parse(text)


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 30), value=values)
def test_an_offer_with_any_value_in_it_is_read_or_a_link_error(place: int, value: Any) -> None:
    from gyroscope._core import optional

    content = optional.parse_toml(offer.text())
    keys = [(table, name) for table in content for name in content[table]]
    table, name = keys[place % len(keys)]
    content[table][name] = value
    with contextlib.suppress(LinkError):
        found = Offer.parse(optional.format_toml(content))
        assert found.count > 0 and found.config.data_dir is None and found.config.device == "cpu"

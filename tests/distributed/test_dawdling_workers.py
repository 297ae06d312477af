"""Workers that are slow on purpose: what they may cost the rounds of the others. Real connections on loopback."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from hostile_peers import Peer

import gyroscope as gy
from gyroscope._core.errors import LinkError
from gyroscope.distributed.protocol import ROUND
from gyroscope.distributed.server.parameter_server import Server, ServerOptions
from gyroscope.distributed.server.worker_links import LinkedWorkers
from gyroscope.runs.events import EventLog
from gyroscope.runs.training import Run, load_task

DEADLINE = 0.4
CONFIG = gy.Config(workers=5, declared_byzantine=2, rule="median", momentum="none", threads=1)


@contextlib.contextmanager
def linked(folder: Path, grace: float = 10.0) -> Iterator[tuple[LinkedWorkers, list[dict[str, object]]]]:
    """Yield the links of a server for five workers, and the list of its events. No worker has joined yet."""
    happened: list[dict[str, object]] = []
    with Server(ServerOptions(port=0, deadline=DEADLINE, grace=grace)) as server:
        resolved = CONFIG.resolve()
        make = functools.partial(server._link_workers, EventLog(folder, happened.append))
        workers = Run(resolved, load_task(resolved), make).round_config.workers
        assert isinstance(workers, LinkedWorkers)
        yield workers, happened


def joined(port: int, number: int) -> Peer:
    """Join as soon as the server is open."""
    while True:
        peer = Peer(port, None)
        try:
            peer.join(number)
            return peer
        except AssertionError:  # not yet, or not so soon again
            peer.__exit__()
            time.sleep(0.05)


def start(workers: LinkedWorkers, number: int, play: Callable[[int, int], None]) -> None:
    """Be this worker in a thread, which ends with the server."""

    def run() -> None:
        with contextlib.suppress(OSError, LinkError):
            play(workers.links.port, number)

    threading.Thread(target=run, daemon=True).start()


def answering(seconds: float) -> Callable[[int, int], None]:
    """Return the life of a worker that answers each round after so many seconds."""

    def play(port: int, number: int) -> None:
        with joined(port, number) as peer:
            while True:
                head, content = peer.receive()
                if head.kind == ROUND:
                    time.sleep(seconds)
                    peer.answer(head.step, torch.zeros(len(content) // 4))

    return play


def late(happened: list[dict[str, object]]) -> int:
    return sum(event["event"] == "late" for event in happened)


def play_rounds(workers: LinkedWorkers, count: int) -> None:
    rows = workers.parameters.new_empty(workers.count, workers.parameters.numel())
    for step in range(count):
        workers.collect(step, rows)


def test_a_worker_that_always_answers_a_moment_too_late(tmp_path: Path) -> None:
    """It costs a deadline in rounds 0, 2 and 6, not in each."""
    with linked(tmp_path) as (workers, happened):
        for number in range(4):
            start(workers, number, answering(DEADLINE / 4))
        start(workers, 4, answering(1.1 * DEADLINE))
        play_rounds(workers, 8)
        assert 1 <= late(happened) <= 3
        assert not workers.each[0].misses


def test_a_worker_that_joins_again_instead_of_answering(tmp_path: Path) -> None:
    """To join again does not buy another deadline."""

    def play(port: int, number: int) -> None:
        for _ in range(9):
            with joined(port, number) as peer:
                while peer.receive()[0].kind != ROUND:
                    pass
                time.sleep(1.1 * DEADLINE)

    with linked(tmp_path) as (workers, happened):
        for number in range(4):
            start(workers, number, answering(DEADLINE / 4))
        start(workers, 4, play)
        play_rounds(workers, 24)
        assert late(happened) == 1
        assert sum(event["event"] == "joined" and event["worker"] == 4 for event in happened) > 2


def test_a_worker_that_comes_and_goes_does_not_put_off_the_start(tmp_path: Path) -> None:
    """Worker 4 never comes. The run begins without it after the grace period, whatever worker 3 does."""

    def play(port: int, number: int) -> None:
        for _ in range(9):
            with joined(port, number):
                time.sleep(0.5)
            time.sleep(0.5)

    with linked(tmp_path, grace=2.0) as (workers, _):
        for number in range(3):
            start(workers, number, answering(0.0))
        start(workers, 3, play)
        begun = time.monotonic()
        play_rounds(workers, 1)
        assert time.monotonic() - begun < 6.0

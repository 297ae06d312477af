"""Many workers that come at the same moment, and the descriptors that they need."""

from __future__ import annotations

import asyncio
import itertools
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_peers import plain

import gyroscope as gy
from benchmarks import worker_crowd
from gyroscope._core.errors import ConfigError
from gyroscope.distributed import certificates, tls
from gyroscope.distributed.protocol import NO_STEP, Offer
from gyroscope.distributed.server import descriptors
from gyroscope.distributed.server import links as links_module
from gyroscope.distributed.server.link_events import Joined
from gyroscope.distributed.server.links import Links
from gyroscope.distributed.server.parameter_server import Server, ServerOptions, listen

MANY, SECONDS = 60, 60.0


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    certificates.create_authority(tmp_path / "keys")
    certificates.add_workers(tmp_path / "keys", [f"worker-{number}" for number in range(MANY)])
    return tmp_path / "keys"


@pytest.fixture
def links(keys: Path) -> Iterator[Links]:
    found = Links(listen("127.0.0.1", 0, exposed=True), keys)
    try:
        yield found
    finally:
        found.close(True, 5.0)


def until_joined(links: Links, count: int) -> None:
    begun, joined = time.monotonic(), 0
    while joined < count:
        assert time.monotonic() - begun < SECONDS, f"{joined} of {count} have joined"
        joined += sum(isinstance(event, Joined) for event in links.events(0.1))


def test_workers_that_come_at_once_do_not_crowd_each_other_out(
    links: Links, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for all that are missing, so each of them comes in with its first connection."""
    monkeypatch.setattr(links_module, "_MOST_STRANGERS", 1)
    config = gy.Config(workers=MANY).resolve()
    links.open(Offer(config, MANY, 10, "float32", 1.0), lambda number: (NO_STEP, None), 60.0)
    contexts = [tls.worker_context(keys / f"worker-{number}.crt") for number in range(MANY)]
    crowd = worker_crowd._Crowd(MANY, 10)
    working = threading.Thread(target=asyncio.run, args=(worker_crowd._work_together(crowd, links.port, contexts),))
    working.start()
    until_joined(links, MANY)
    assert crowd.attempts == MANY and links.refusals.counts["crowd"] == 0
    assert links._most_strangers() == 1
    links.close(True, 5.0)
    working.join(SECONDS)
    assert not working.is_alive()


def test_many_who_wait_to_be_accepted_do_not_stop_the_handshakes(links: Links) -> None:
    """Between two of them the loop handles what else is due."""
    loop, strangers, counts, done = links._loop, links._strangers, [0], threading.Event()

    def look() -> None:
        counts.append(len(strangers))
        if counts[-1] < MANY:
            loop.call_soon(look)
        else:
            done.set()

    loop.call_soon_threadsafe(time.sleep, 1.0)  # so that all of them wait
    waiting = [plain(links.port) for _ in range(MANY)]
    loop.call_soon_threadsafe(look)
    assert done.wait(SECONDS)
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 2
    for peer in waiting:
        peer.close()


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """Let this process have few descriptors more than it has, as a system's default may."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 300
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    try:
        yield few
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_server_gets_the_descriptors_that_its_workers_need(few_descriptors: int, tmp_path: Path) -> None:
    config = gy.Config(workers=few_descriptors, declared_byzantine=1, steps=1)
    with Server(ServerOptions(port=0), stop=lambda: True) as server:
        assert server.train(config, tmp_path / "run").status == "interrupted"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= few_descriptors + descriptors.BESIDES


def test_a_limit_that_cannot_be_raised_is_named_with_what_to_do(few_descriptors: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this system has no hard limit")
    with pytest.raises(ConfigError, match=rf"need {hard + 200:,} file descriptors, and .* may have {hard:,}: raise"):
        descriptors.allow(hard)
    descriptors.allow(few_descriptors - descriptors.BESIDES)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_descriptors  # they suffice, so nothing changes

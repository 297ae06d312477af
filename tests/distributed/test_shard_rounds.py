"""A sharded server's rounds, link by link: who was there is decided once for all shards, and strangers stay outside."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from clusters import table, wait_for
from hostile_peers import Peer, answer_to, certificate_of_another_authority
from puppet_workers import Puppet
from torch import nn

import gyroscope as gy
from gyroscope import rules
from gyroscope._core.errors import ConfigError
from gyroscope.distributed import certificates
from gyroscope.distributed.protocol import LATER, REFUSE
from gyroscope.distributed.server.parameter_server import Server, ServerOptions
from gyroscope.simulation.tasks import Task

NAN = float("nan")
DIMENSION, SHARDS, COUNT = 10, 3, 3
DEADLINE = 8.0


def small_task() -> Task:
    """Return a task with ten parameters."""
    inputs, targets = torch.zeros(2, 4), torch.tensor([0, 1])
    return Task(lambda: nn.Linear(4, 2), (inputs, targets), (inputs, targets), loss=nn.functional.cross_entropy)


def rows_of(step: int) -> torch.Tensor:
    return torch.randn(COUNT, DIMENSION, generator=torch.Generator().manual_seed(step))


class Serving:
    """A sharded server in a thread, and puppets that have joined it."""

    def __init__(self, server: Server, out: Path, keys: Path) -> None:
        self.server, self.out, self.keys = server, out, keys
        self.puppets = [self.puppet(number) for number in range(COUNT)]

    def puppet(self, number: int) -> Puppet:
        return Puppet(self.server.port, self.keys / f"worker-{number}.crt")

    def details(self, event: str) -> str:
        return "; ".join(
            f"{row['worker']}: {row['detail']}" for row in table(self.out / "events.csv") if row["event"] == event
        )


@contextlib.contextmanager
def serving(tmp_path: Path, rule: str, steps: int, momentum: str = "none") -> Iterator[Serving]:
    keys = tmp_path / "keys"
    certificates.create_authority(keys)
    for number in range(COUNT):
        certificates.add_worker(keys, f"worker-{number}")
    options = ServerOptions(port=0, deadline=DEADLINE, grace=300.0, keys=keys, shards=SHARDS)
    config = gy.Config(workers=COUNT, declared_byzantine=1, rule=rule, momentum=momentum, steps=steps, lr=1.0, batch=1,
                       threads=1, evaluate_every=1000)  # fmt: skip
    with Server(options) as server:
        thread = threading.Thread(target=server.train, args=(config, tmp_path / "run"), kwargs={"task": small_task()})
        thread.start()
        cluster = None
        try:
            wait_for(lambda: (tmp_path / "run" / "events.csv").exists())
            cluster = Serving(server, tmp_path / "run", keys)
            yield cluster
            thread.join(60.0)
            assert not thread.is_alive()
        finally:
            server.stop = lambda: True
            if server._workers:
                server._workers.stop = lambda: True
            for puppet in cluster.puppets if cluster else ():
                puppet.end()
            thread.join(60.0)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["median", "monna"])
def test_a_row_is_there_for_all_shards_or_for_none(rule: str, tmp_path: Path) -> None:
    """A worker that answers some of the shards is missing in that round, everywhere, and the round goes on."""
    with serving(tmp_path, rule, steps=5) as cluster:
        before: torch.Tensor | None = None
        expected = torch.zeros(0)
        for step in range(5):
            rows = rows_of(step)
            for number in (2, 1, 0):
                puppet = cluster.puppets[number]
                if (number, step) == (2, 2):  # late, but whole: now it is asked again
                    puppet.send(1, rows_of(1)[2], 1)
                    puppet.tell(1)
                asked, parameters = puppet.await_round()
                assert asked == step
                if before is not None:
                    assert torch.equal(parameters, before - expected), step
                if (number, step) == (2, 1):
                    puppet.send(step, rows[number], 0, 2)
                elif (number, step) == (2, 3):
                    rows[number, 4] = NAN  # in one shard
                    puppet.send(step, rows[number])
                else:
                    puppet.send(step, rows[number])
                    time.sleep(2.0 * ((number, step) == (2, 2)))  # this round does not wait for it
            if step == 1:
                wait_for(lambda: f"2: no row within {DEADLINE:g} s" in cluster.details("late"))
                rows[2] = NAN
            expected = rules.parse(rule)(rows, 1).vector
            before = parameters
    assert "2: the row holds NaN" in cluster.details("not finite")
    assert [row["sent_norm"] != "" for row in table(tmp_path / "run" / "metrics.csv")] == [True] * 5


@pytest.mark.slow
def test_what_strangers_find_at_a_shard(tmp_path: Path) -> None:
    """Certificates count as at the server itself, and nobody joins a shard who has not joined the server."""
    with serving(tmp_path, "median", steps=3) as cluster:
        first = cluster.puppets[0]
        port = first.offer.shards[1][0]
        assert answer_to(port, cluster.keys, None) == b""
        assert answer_to(port, cluster.keys, certificate_of_another_authority(tmp_path / "others")) == b""
        wait_for(lambda: "no TLS connection" in cluster.details("refused"))
        for puppet in cluster.puppets:
            puppet.send(puppet.await_round()[0], torch.ones(DIMENSION))
        # A certificate admits its worker to a shard once, and not after it has left the server.
        with Peer(port, cluster.keys / "worker-0.crt") as second:
            head, said = second.hello()
            assert head.kind == REFUSE and b"worker 0 is taken" in said
        first.front.connection.__exit__()
        assert all(shard.is_cut_off() for shard in first.shards)
        with Peer(port, cluster.keys / "worker-0.crt") as second:
            head, said = second.hello()
            assert (head.kind, head.step) == (REFUSE, LATER) and b"no link to the coordinator" in said
        # One lost shard ends all links of a worker, which may then join again.
        other = cluster.puppets[1]
        other.shards[2].connection.__exit__()
        assert other.front.is_cut_off() and other.shards[0].is_cut_off()
        wait_for(lambda: "(shard 2)" in cluster.details("lost"))
        cluster.puppets[:2] = [cluster.puppet(0), cluster.puppet(1)]
        # Joining the server and never the shards costs the others nothing.
        with Peer(cluster.server.port, cluster.keys / "worker-0.crt") as idle:
            assert idle.hello()[0].kind == REFUSE
        for _ in range(2):
            for puppet in cluster.puppets:
                puppet.send(puppet.await_round()[0], torch.ones(DIMENSION))


@pytest.mark.slow
def test_a_restarted_worker_continues_from_the_last_step_that_all_shards_have(tmp_path: Path) -> None:
    with serving(tmp_path, "median", steps=5, momentum="workers") as cluster:
        rows = [rows_of(step) for step in range(5)]
        restarted = cluster.puppets[0]
        assert {step for step, _ in restarted.momenta} == {-1}

        def play(step: int, *numbers: int) -> None:
            for number in numbers:
                assert cluster.puppets[number].await_round()[0] == step
                cluster.puppets[number].send(step, rows[step][number])

        def restart() -> tuple[set[int], torch.Tensor]:
            cluster.puppets[0].end()
            cluster.puppets[0] = again = cluster.puppet(0)
            parts = [torch.frombuffer(bytearray(part), dtype=torch.float32) for _, part in again.momenta if part]
            return {step for step, _ in again.momenta}, torch.cat(parts) if parts else torch.zeros(0)

        play(0, 0, 1, 2)
        # Of step 1 only one shard has the part, and then another part is NaN, which nobody must continue from.
        restarted.await_round()
        restarted.send(1, rows[1][0], 2)
        time.sleep(0.2)
        steps, momentum = restart()
        assert steps == {0} and torch.equal(momentum, rows[0][0])
        play(1, 0, 1, 2)
        rows[2][0, 1] = NAN
        play(2, 0, 1, 2)
        wait_for(lambda: "0: the row holds NaN" in cluster.details("not finite"))
        steps, momentum = restart()
        assert steps == {1} and torch.equal(momentum, rows[1][0])
        play(3, 0, 1, 2)
        play(4, 0, 1, 2)
        assert "continues with its momentum of step 1" in cluster.details("joined")


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "geometric-median"}, "'geometric-median' reads whole rows.*choose a rule that reads columns"),
        ({"rule": "nnm+krum"}, "reads whole rows"),
        ({"byzantine": 1, "attack": "little"}, "byzantine = 1: simulated Byzantine workers see whole rows"),
        ({"sample": 6}, "sample = 6: a server with shards asks all workers"),
        ({"worker_weights": "2,1,1,1,1,1,1"}, "worker_weights = .* all count the same"),
        ({"momentum": "server-kept"}, "accumulates whole rows.*choose 'workers' or 'server'"),
    ],
)
def test_what_cannot_be_sharded_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    config = gy.Config(**{"workers": 7, "declared_byzantine": 1, "rule": "median", **changes})  # type: ignore[arg-type]
    with Server(ServerOptions(port=0, shards=2)) as server, pytest.raises(ConfigError, match=message):
        server.train(config, tmp_path / "run", task=small_task())
    assert not (tmp_path / "run").exists()


def test_numbers_of_shards_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        ServerOptions(shards=0)
    with pytest.raises(ConfigError, match="leave out --row-format"):
        ServerOptions(shards=2, row_format="float16")
    with pytest.raises(ConfigError, match=r"from 0 \(any that are free\) to 65533"):
        ServerOptions(shards=3, shard_port=65534)
    config = gy.Config(workers=3, declared_byzantine=1, rule="median")
    message = "11 server shards cannot split 10 columns"
    with Server(ServerOptions(port=0, shards=11)) as server, pytest.raises(ConfigError, match=message):
        server.train(config, tmp_path / "run", task=small_task())


def test_a_variant_has_no_shards(tmp_path: Path) -> None:
    config = gy.Config.from_mapping({"workers": 6, "declared_byzantine": 1, "rule": "median", "servers": 4})
    with Server(ServerOptions(port=0, shards=2)) as server, pytest.raises(ConfigError, match="ReplicatedRun"):
        server.train(config, tmp_path / "run", task=small_task())

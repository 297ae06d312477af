"""A server with shards gives the numbers of one without, with workers and shards that die; real processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from clusters import Cluster, table, wait_for
from test_server import assert_same_numbers, options

import gyroscope as gy


def assert_same_bits(cluster: Cluster, simulated: gy.Result) -> None:
    """The model to the last bit, and the workers' shares; metrics up to the rounding of sums."""
    model = torch.load(cluster.out / "model.pt", weights_only=True)
    for name, values in simulated.model.state_dict().items():
        assert torch.equal(model[name], values), name
    shares = [[float(value) for value in row.values()] for row in table(cluster.out / "workers.csv")]
    assert shares == [[float(value) for value in row.values()] for row in simulated.tables["workers.csv"]]
    assert_same_numbers(cluster.out, simulated, sampled_known=simulated.config.momentum != "workers")


def shards_of(cluster: Cluster) -> list[int]:
    """Return the shards' process ids."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command, status = (entry / "cmdline").read_bytes(), (entry / "stat").read_text()
            except OSError:
                continue
            if b"shard_process" in command and str(cluster.keys).encode() in command and ") Z" not in status:
                found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shards", "config"),
    [
        (2, gy.Config(workers=3, declared_byzantine=1, rule="median", momentum="server", steps=8, threads=1)),
        (3, gy.Config(workers=5, declared_byzantine=1, rule="krum", steps=8, threads=1, measure_every=3)),
    ],
    ids=["median-2", "krum-3"],
)
def test_the_numbers_are_those_of_one_process(shards: int, config: gy.Config, tmp_path: Path) -> None:
    assert config.workers is not None
    with Cluster(tmp_path, *options(config), workers=config.workers) as cluster:
        cluster.serve("--grace", 300, "--server-shards", shards, deadline=120)
        cluster.join()
        finished = cluster.end()
        assert finished.code == 0, finished
        assert [process.end().code for process in cluster.workers.values()] == [0] * cluster.count
        assert_same_bits(cluster, gy.train(config))
        assert not shards_of(cluster)


@pytest.mark.slow
def test_workers_that_die_and_a_run_that_is_resumed_with_other_shards(tmp_path: Path) -> None:
    """Exactly, although with Nesterov's momentum rows do not show it, and one part of a row had been sent."""
    config = gy.Config(workers=3, rule="average", momentum="workers", nesterov=True, steps=10, threads=1)
    with Cluster(tmp_path, *options(config), workers=3, gates=(6,)) as cluster:
        cluster.faults = {2: {3: "between-shards"}}
        cluster.serve("--grace", 300, "--server-shards", 3, deadline=120)
        cluster.join()
        cluster.until_event("lost", 2)
        cluster.faults = {}
        cluster.join(2)
        cluster.at_gate(6)
        assert "continues with its momentum of step 2" in cluster.events("joined", 2)[1]["detail"]
        cluster.server.signal(signal.SIGINT)
        stopped = cluster.end()
        assert stopped.code == 130, stopped
        cluster.workers[1].kill()
        cluster.open(6)
        cluster.serve("--grace", 300, "--server-shards", 2, resume=True, deadline=120)
        cluster.join(1)
        finished = cluster.end()
        assert finished.code == 0, finished
        assert_same_bits(cluster, gy.train(config))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_a_shard_that_is_killed_and_a_server_that_is(tmp_path: Path) -> None:
    """The run stops and says why, and continues exactly; shards end with their server; then one process takes over."""
    config = gy.Config(workers=3, declared_byzantine=1, rule="median", momentum="workers", steps=10, threads=1)
    with Cluster(tmp_path, *options(config), "--checkpoint-every", 2, workers=3, gates=(3, 6)) as cluster:
        cluster.serve("--grace", 300, "--server-shards", 2, deadline=120)
        cluster.join()
        cluster.at_gate(3)
        first, _ = shards_of(cluster)
        os.kill(first, signal.SIGKILL)
        stopped = cluster.end()
        assert stopped.code == 3 and "killed by signal 9" in stopped.out, stopped
        assert f"gyroscope serve --resume {cluster.out}" in stopped.out and "its last checkpoint" in stopped.out
        assert json.loads((cluster.out / "status.json").read_text())["status"] == "interrupted"
        assert cluster.events("stopped")[-1]["detail"].startswith("the process of shard")
        assert not shards_of(cluster)
        cluster.open(3)
        cluster.serve("--grace", 300, "--server-shards", 2, resume=True, deadline=120)
        cluster.at_gate(6)
        cluster.server.kill()
        wait_for(lambda: not shards_of(cluster))
        cluster.open(6)
        cluster.serve("--grace", 300, resume=True, deadline=120)
        finished = cluster.end()
        assert finished.code == 0, finished
        assert_same_bits(cluster, gy.train(config))

"""Workers that die, hang, are slow, or send garbage; a server that is killed. Real processes, real links."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import pytest
import torch
from clusters import Cluster, table, wait_for
from disks import CannotMountError, fill, small_disk

import gyroscope as gy

STEPS = 40
CONFIG = gy.Config(workers=5, declared_byzantine=1, rule="median", steps=STEPS, lr=0.05, batch=32, threads=1)
OPTIONS = ("--workers", 5, "--declared-byzantine", 1, "--rule", "median", "--steps", STEPS, "--lr", 0.05,
           "--threads", 1, "--batch", 32, "--checkpoint-every", 1)  # fmt: skip
FAULTY = 4
HEALTHY = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def fault_free() -> gy.Result:
    """The same configuration in one process: test_server.py shows that its numbers are those of a server."""
    return gy.train(CONFIG)


def assert_learned(cluster: Cluster, fault_free: gy.Result) -> None:
    status = json.loads((cluster.out / "status.json").read_text())
    assert status["status"] == "complete" and status["step"] == STEPS
    assert status["final_accuracy"] > fault_free.final_accuracy - 0.04
    assert len(table(cluster.out / "metrics.csv")) == STEPS


def details(cluster: Cluster, event: str, step: int | None = None) -> str:
    """Return what events.csv says of the faulty worker."""
    rows = [row for row in cluster.events(event, FAULTY) if step is None or row["step"] == str(step)]
    return "; ".join(row["detail"] for row in rows)


@pytest.mark.slow
def test_messages_that_are_wrong(tmp_path: Path, fault_free: gy.Result) -> None:
    """One fault after the other, each in its own round: the server logs it and the run continues."""
    gates = (18, 24, 30, 34, 37)
    with Cluster(tmp_path, *OPTIONS, gates=gates) as cluster:
        cluster.faults = {
            FAULTY: {
                2: "nan",
                3: "no-step",
                5: "foreign",
                10: "replay",
                14: "twice",
                19: "future",
                20: "slow",
                26: "half",
                31: "long",
                35: "huge",
            }
        }
        cluster.serve("--grace", 60)
        cluster.join()
        cluster.at_gate(18)
        cluster.open(18)
        cluster.at_gate(24, *HEALTHY)  # they have continued without the slow one
        assert details(cluster, "late", 20)
        cluster.at_gate(24)
        cluster.open(24)
        cluster.at_gate(30, *HEALTHY)
        cluster.until_event("joined", FAULTY, times=2)  # after a message of a wrong size
        for gate in (30, 34, 37):
            cluster.at_gate(gate)  # all five again
            cluster.open(gate)
        assert cluster.end().code == 0
        assert [process.end().code for process in cluster.workers.values()] == [0] * 5
        assert_learned(cluster, fault_free)
        assert details(cluster, "not finite", 2)
        assert "answers step -1" in details(cluster, "rejected")
        assert "another session" in details(cluster, "rejected", 5)
        assert "bytes of values instead of" in details(cluster, "rejected", 26)
        assert "answers step 20, but step 19" in details(cluster, "rejected", 19)
        assert "answers step 8" in details(cluster, "rejected", 10)
        assert "answers step 14" in details(cluster, "rejected")
        assert "does not begin like a message" in details(cluster, "rejected")
        assert "1,152,921,504,606,846,976 bytes" in details(cluster, "rejected", 35)
        blamed = {row["worker"] for row in cluster.events() if row["event"] in ("rejected", "not finite", "lost")}
        assert blamed == {str(FAULTY)}


@pytest.mark.slow
def test_processes_that_die_hang_and_pretend(tmp_path: Path, fault_free: gy.Result) -> None:
    gates = (5, 10, 15, 20, 26)
    with Cluster(tmp_path, *OPTIONS, gates=gates) as cluster:
        cluster.serve("--grace", 60)
        cluster.join()

        cluster.at_gate(5)
        cluster.workers[FAULTY].kill()
        cluster.until_event("lost", FAULTY)
        cluster.open(5)

        cluster.at_gate(10, *HEALTHY)  # five rounds without it
        cluster.join(FAULTY)
        cluster.until_event("joined", FAULTY, times=2)
        assert "momentum of step 4" in details(cluster, "joined")
        cluster.open(10)

        cluster.at_gate(15)
        second = cluster.worker(FAULTY).end()  # claims a number that is taken
        assert second.code == 2 and "worker 4 is taken by worker-4" in second.err
        assert "is taken by" in details(cluster, "refused")
        cluster.workers[FAULTY].signal(signal.SIGSTOP)
        cluster.open(15)

        cluster.at_gate(20, *HEALTHY)  # they have continued without the one that hangs
        assert details(cluster, "late", 15)
        cluster.workers[FAULTY].signal(signal.SIGCONT)
        cluster.at_gate(20, FAULTY)
        cluster.open(20)

        cluster.at_gate(26)  # all five again
        cluster.open(26)
        assert cluster.end().code == 0
        assert [process.end().code for process in cluster.workers.values()] == [0] * 5
        assert_learned(cluster, fault_free)
        assert len(cluster.events("lost")) == 1 and len(cluster.events("joined")) == 6


@pytest.mark.slow
def test_a_killed_server_and_too_few_workers(tmp_path: Path, fault_free: gy.Result) -> None:
    """The run is killed, resumed, stopped, and resumed again: its numbers are those of an undisturbed run."""
    slow = 30.0  # no worker must miss a round because the machine is slow
    with Cluster(tmp_path, *OPTIONS, gates=(10, 25)) as cluster:
        cluster.serve("--grace", 60, deadline=slow)
        cluster.join()
        cluster.at_gate(10)
        cluster.server.kill()
        cluster.open(10)

        cluster.serve("--grace", 15, resume=True, deadline=slow)
        cluster.at_gate(25)
        for number in (0, FAULTY):
            cluster.workers[number].kill()
        cluster.open(25)
        stopped = cluster.end()
        assert stopped.code == 3
        assert "missing: 0 4" in stopped.out and f"gyroscope serve --resume {cluster.out}" in stopped.out
        status = json.loads((cluster.out / "status.json").read_text())
        assert (status["status"], status["step"]) == ("interrupted", 25)
        assert (cluster.out / "checkpoint.pt").exists()

        cluster.serve("--grace", 60, resume=True, deadline=slow)
        cluster.join(0, FAULTY)
        assert cluster.end().code == 0
        assert [process.end().code for process in cluster.workers.values()] == [0] * 5
        assert_learned(cluster, fault_free)
        accuracies = [float(row["accuracy"]) for row in table(cluster.out / "evaluations.csv")]
        assert accuracies == fault_free.evaluations["accuracy"].tolist()
        norms = [float(row["aggregate_norm"]) for row in table(cluster.out / "metrics.csv")]
        assert norms == pytest.approx(fault_free.metrics["aggregate_norm"].tolist(), rel=1e-5)


@pytest.mark.slow
def test_a_disk_that_is_full_when_a_checkpoint_is_due(tmp_path: Path, fault_free: gy.Result) -> None:
    """The run stops and says why; the workers wait; with room again it continues to the same numbers."""
    slow = 30.0
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(small_disk(tmp_path / "disk", "4m"))
        except CannotMountError as reason:
            pytest.skip(str(reason))
        cluster = stack.enter_context(Cluster(tmp_path, *OPTIONS, gates=(10,), out=disk / "run"))
        cluster.serve("--grace", 60, deadline=slow)
        cluster.join()
        cluster.at_gate(10)
        checkpoint = cluster.out / "checkpoint.pt"
        # The server asks the workers for the next rows before it writes a checkpoint.
        wait_for(lambda: bool(torch.load(checkpoint, weights_only=True)["step"] == 10), cluster.server)
        before = checkpoint.read_bytes()
        fill(disk / "ballast")
        cluster.open(10)
        stopped = cluster.end()
        assert stopped.code == 2 and "Traceback" not in stopped.err
        assert "the disk is full" in stopped.err and f"gyroscope serve --resume {cluster.out}" in stopped.err
        assert checkpoint.read_bytes() == before
        assert all(process.running for process in cluster.workers.values())

        (disk / "ballast").unlink()
        cluster.serve("--grace", 60, resume=True, deadline=slow)
        assert cluster.end().code == 0
        assert [process.end().code for process in cluster.workers.values()] == [0] * 5
        assert_learned(cluster, fault_free)
        accuracies = [float(row["accuracy"]) for row in table(cluster.out / "evaluations.csv")]
        assert accuracies == fault_free.evaluations["accuracy"].tolist()

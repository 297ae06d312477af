"""Cause every fault of docs/reliability.md and rewrite its table. It takes a few minutes and needs root.

    python -m benchmarks.pages.update_reliability

Each fault happens in a run of its own, with the processes that the test suite uses. Root is needed to mount the small
file system that fills up.
"""

from __future__ import annotations

import collections
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.pages import DOCS, markers

sys.path.append(str(DOCS.parent / "tests" / "distributed"))

import hostile_peers  # type: ignore[import-not-found]
from clusters import DEADLINE, Cluster, wait_for  # type: ignore[import-not-found]
from disks import fill, small_disk  # type: ignore[import-not-found]

import gyroscope as gy

STEPS, WORKERS, FAULTY = 40, 5, 4
HEALTHY = tuple(range(FAULTY))
BEGIN, LATER = 5, 20
CONFIG = gy.Config(workers=WORKERS, declared_byzantine=1, rule="median", steps=STEPS, lr=0.05, batch=32, threads=1)
OPTIONS = ("--workers", WORKERS, "--declared-byzantine", 1, "--rule", "median", "--steps", STEPS, "--lr", 0.05,
           "--threads", 1, "--batch", 32, "--checkpoint-every", 1)  # fmt: skip

MESSAGES = {
    "nan": "sends NaN",
    "foreign": "answers in the name of another session",
    "half": "sends its row in half precision",
    "long": "sends twice as many bytes",
    "huge": "announces 2^60 bytes",
    "replay": "answers with an old round's number",
    "future": "answers the next round, and then this one",
    "twice": "answers every round twice",
    "slow": "takes longer than the deadline",
    "short": "sends a part of its row, and no more",
}
EVENTS = ("refused", "rejected", "not finite", "late", "lost")


def nothing(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    cluster.open(BEGIN)
    cluster.at_gate(LATER, *HEALTHY)
    cluster.open(LATER)


def killed(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    cluster.workers[FAULTY].kill()
    cluster.open(BEGIN)
    cluster.at_gate(LATER, *HEALTHY)
    cluster.open(LATER)


def killed_and_restarted(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    cluster.workers[FAULTY].kill()
    cluster.open(BEGIN)
    cluster.at_gate(LATER, *HEALTHY)
    cluster.join(FAULTY)
    cluster.until_event("joined", FAULTY, times=2)
    cluster.open(LATER)


def stopped_and_continued(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    cluster.workers[FAULTY].signal(signal.SIGSTOP)
    cluster.open(BEGIN)
    cluster.at_gate(LATER, *HEALTHY)
    cluster.workers[FAULTY].signal(signal.SIGCONT)
    cluster.at_gate(LATER)
    cluster.open(LATER)


def two_killed(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    for number in (0, FAULTY):
        cluster.workers[number].kill()
    cluster.open(BEGIN)
    assert cluster.end().code == 3
    cluster.serve("--grace", 60, resume=True, deadline=30)
    cluster.join(0, FAULTY)
    cluster.open(LATER)


def server_killed(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    cluster.server.kill()
    cluster.open(BEGIN)
    cluster.serve("--grace", 60, resume=True, deadline=30)
    cluster.open(LATER)


def disk_full(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    ballast = cluster.out.parent / "ballast"
    fill(ballast)
    cluster.open(BEGIN)
    assert cluster.end().code == 2
    ballast.unlink()
    cluster.serve("--grace", 60, resume=True, deadline=30)
    cluster.open(LATER)


# -- strangers, and somebody who has a worker's certificate. All workers are held meanwhile. ---------------------------


def random_bytes(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    hostile_peers.send_random_bytes(cluster.port)
    open_both(cluster)


def held_connections(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    held = [hostile_peers.plain(cluster.port) for _ in range(200)]
    assert all(hostile_peers.ended(peer) for peer in held)
    for peer in held:
        peer.close()
    open_both(cluster)


def other_authority(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    certificate = hostile_peers.certificate_of_another_authority(cluster.folder / "other")
    assert hostile_peers.answer_to(cluster.port, cluster.keys, certificate) == b""
    open_both(cluster)


def expired(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    certificate = hostile_peers.expired_certificate(cluster.keys)
    assert hostile_peers.answer_to(cluster.port, cluster.keys, certificate) == b""
    open_both(cluster)


def used_twice(cluster: Cluster) -> None:
    cluster.at_gate(BEGIN)
    assert cluster.worker(FAULTY).end().code == 2
    open_both(cluster)


def flood_of_joins(cluster: Cluster) -> None:
    hostile_peers.flood_of_joins(cluster.port, stolen_certificate(cluster))
    open_both(cluster)


def never_reads(cluster: Cluster) -> None:
    with hostile_peers.Peer(cluster.port, stolen_certificate(cluster)) as peer:
        peer.join()
        cluster.until_event("joined", FAULTY, times=2)
        open_both(cluster)
        wait_for(lambda: not cluster.server.running)


def stolen_certificate(cluster: Cluster) -> Path:
    """Kill a worker, and return its certificate, which nobody uses any more."""
    cluster.at_gate(BEGIN)
    cluster.workers[FAULTY].kill()
    cluster.until_event("lost", FAULTY)
    return Path(cluster.keys / f"worker-{FAULTY}.crt")


def open_both(cluster: Cluster) -> None:
    cluster.open(BEGIN)
    cluster.open(LATER)


PROCESSES: dict[str, Callable[[Cluster], None]] = {
    "a worker is killed (SIGKILL)": killed,
    "a worker is killed and restarted later": killed_and_restarted,
    "a worker hangs (SIGSTOP) and goes on later (SIGCONT)": stopped_and_continued,
    "two workers are killed, one too many: the run stops with code 3; it is resumed, and both restarted": two_killed,
    "the server is killed (SIGKILL) and resumed": server_killed,
    "the server's disk is full at a checkpoint: the run stops with code 2; room is made, and it is resumed": disk_full,
}

HOSTILE_PEERS: dict[str, Callable[[Cluster], None]] = {
    "a stranger sends random bytes, over 5 connections": random_bytes,
    "a stranger holds 200 connections and says nothing": held_connections,
    "a stranger has a certificate of another authority": other_authority,
    "somebody has a certificate that has expired": expired,
    "a second process has the certificate of a worker that is there, and tries for 12 s": used_twice,
    "a worker is killed; whoever has its certificate begins to join and leaves, over and over": flood_of_joins,
    "a worker is killed; whoever has its certificate joins, and never reads": never_reads,
}

PATIENT = (two_killed, server_killed, disk_full, random_bytes, held_connections, other_authority, expired, used_twice)
"""Where all five workers answer: none of them may be late because a gate has held them."""


def run(fault: str, script: Callable[[Cluster], None], fault_free: float) -> str:
    """Cause one fault in a run, and return its line of the table."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        disk = stack.enter_context(small_disk(Path(folder) / "disk", "4m")) if script is disk_full else Path(folder)
        with Cluster(Path(folder), *OPTIONS, gates=(BEGIN, LATER), out=disk / "run") as cluster:
            if fault in MESSAGES:
                cluster.faults = {FAULTY: dict.fromkeys(range(BEGIN, STEPS), fault)}
            deadline = 30 if script in PATIENT else DEADLINE
            cluster.serve("--grace", 10 if script is two_killed else 60, deadline=deadline)
            cluster.join()
            script(cluster)
            code = cluster.end().code
            counts = collections.Counter(row["event"] for row in cluster.events())
        status = json.loads((cluster.out / "status.json").read_text())
    noted = ", ".join(f"{counts[event]} {event}" for event in EVENTS if counts[event])
    rejoined = counts["joined"] - WORKERS
    noted += f"{', ' if noted else ''}{rejoined} rejoined" if rejoined > 0 else ""
    what = f"a worker {MESSAGES[fault]}" if fault in MESSAGES else fault
    finished = "yes" if code == 0 and status["status"] == "complete" else f"no ({status['status']})"
    accuracy = status.get("final_accuracy", float("nan"))
    return f"| {what} | {noted or '-'} | {finished} | {accuracy:.1%} | {100 * (accuracy - fault_free):+.1f} |"


def main() -> None:
    fault_free = gy.train(CONFIG).final_accuracy
    lines = [
        "| fault | noted in events.csv | finished? | final accuracy | against fault-free (points) |",
        "|---|---|---|---:|---:|",
    ]
    cases = {"none": nothing, **dict.fromkeys(MESSAGES, nothing), **PROCESSES, **HOSTILE_PEERS}
    for fault, script in cases.items():
        lines.append(run(fault, script, fault_free))
        print(lines[-1], flush=True)
    markers.replace(DOCS / "reliability.md", {"faults": "\n".join(lines)})


if __name__ == "__main__":
    main()

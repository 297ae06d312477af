"""Run a server with seven worker processes through half an hour of trouble, and see whether it grows or learns less.

    python -m benchmarks.soak --minutes 30 --out runs/soak

At moments and with victims that a seed chooses, workers are killed and restarted, stopped (SIGSTOP) and continued, or
lie: NaN, values of 1e6, wrong sizes, replays. Strangers send random bytes and half a handshake, show a certificate of
another authority, or use a worker's certificate a second time. At most two of the seven workers are bad at a time, as
many as the rule tolerates. Every ten seconds the server's memory, descriptors, threads and shared memory are noted.

It writes soak.csv, troubles.csv and verdict.json to --out, and unless --no-page says otherwise the figure
docs/reliability/soak.png and the paragraph in docs/reliability.md. The exit code is 1 where something does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import random
import shutil
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import soak_report
from benchmarks.pages import DOCS
from benchmarks.soak_cluster import LIES, SoakCluster
from benchmarks.soak_report import Sample, Verdict

import hostile_peers  # type: ignore[import-not-found]  # isort: skip

import gyroscope as gy
from gyroscope._core.files import write_atomically

WORKERS, TOLERATED, RULE = 7, 2, "median"
PACE, DEADLINE, GRACE = 0.05, 1.0, 120.0
SAMPLE_SECONDS, CHECKPOINT_EVERY = 10.0, 500
_GAP, _LONG = (0.5, 4.0), (1.0, 12.0)
"""Seconds between two troubles, and for how long a worker is bad."""
_QUIET_SECONDS = 75.0
"""Before the end nothing new goes wrong (of a short run, in its last quarter): a worker that has joined ten times
within a minute is refused for as long as that."""


class Bad(NamedTuple):
    """A worker in trouble."""

    until: float
    restore: Callable[[], None]


class Trouble:
    """Cause trouble, one thing at a time, and undo it later."""

    def __init__(self, cluster: SoakCluster, seed: int) -> None:
        self.cluster, self.random = cluster, random.Random(seed)
        self.bad: dict[int, Bad] = {}
        self.held: list[socket.socket] = []
        self.caused: Counter[str] = Counter()
        self.log: list[tuple[float, str, int | None]] = []
        self.other = hostile_peers.certificate_of_another_authority(cluster.folder / "other")

    def cause(self) -> None:
        """Cause one thing: to a worker if no more than two are bad then, else by a stranger."""
        states = {each["number"]: each["state"] for each in self.cluster.status()["workers"]}
        well = [number for number, state in states.items() if state in ("ok", "suspect") and number not in self.bad]
        if len(well) > WORKERS - TOLERATED and self.random.random() < 0.7:
            self._worker(self.random.choice(well))
        else:
            stranger = self.random.choice((self._bytes, self._half_handshake, self._other_authority, self._twice))
            stranger()

    def restore(self, everything: bool = False) -> None:
        """Undo what has lasted long enough, or everything."""
        now = time.monotonic()
        for number in [number for number, bad in self.bad.items() if everything or bad.until <= now]:
            self.bad.pop(number).restore()

    def _note(self, what: str, worker: int | None = None) -> None:
        self.caused[what] += 1
        self.log.append((time.monotonic() - self.cluster.begun, what, worker))

    def _worker(self, number: int) -> None:
        process = self.cluster.workers[number]
        kind = self.random.choice(("killed", "stopped", "lies"))
        if kind == "killed":
            process.kill()
            restore = lambda: self.cluster.join(number)  # noqa: E731
        elif kind == "stopped":
            process.signal(signal.SIGSTOP)
            restore = lambda: process.signal(signal.SIGCONT)  # noqa: E731
        else:
            lie = self.cluster.folder / f"lie-{number}"
            kind = f"lies: {self.random.choice(LIES)}"
            write_atomically(lie, kind.partition(": ")[2].encode())  # the worker may be looking at this moment
            restore = lie.unlink
        self._note(kind, number)
        self.bad[number] = Bad(time.monotonic() + self.random.uniform(*_LONG), restore)

    def longest_calm(self) -> float:
        """Return the most seconds between two things that happened to a worker."""
        times = [seconds for seconds, what, _ in self.log if not what.startswith("stranger")]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=float("inf"))

    # -- strangers ----------------------------------------------------------------------------------------------------

    def _bytes(self) -> None:
        hostile_peers.send_random_bytes(self.cluster.port)
        self._note("stranger: random bytes")

    def _half_handshake(self) -> None:
        """Begin a handshake, and hold the connection; the server must close it, at the latest after ten seconds."""
        peer = hostile_peers.plain(self.cluster.port)
        peer.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        self.held = [*self.held, peer][-20:]
        self._note("stranger: half a handshake")

    def _other_authority(self) -> None:
        assert hostile_peers.answer_to(self.cluster.port, self.cluster.keys, self.other) == b""
        self._note("stranger: another authority's certificate")

    def _twice(self) -> None:
        """Come with the certificate of a worker that is there. A worker that is just coming back may find it taken."""
        number = self.random.randrange(WORKERS)
        certificate = self.cluster.keys / f"worker-{number}.crt"
        with contextlib.suppress(OSError), hostile_peers.Peer(self.cluster.port, certificate) as peer:
            peer.hello()
        self._note("stranger: a worker's certificate", number)


def run(minutes: float, out: Path, seed: int, page: bool) -> Verdict:
    """Run it, and return what came out."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    steps = int(60 * minutes / PACE)
    config = gy.Config(workers=WORKERS, declared_byzantine=TOLERATED, rule=RULE, momentum="workers", steps=steps,
                       lr=0.05, batch=32, threads=1, seed=seed, evaluate_every=max(1, steps // 20))  # fmt: skip
    options = ("--workers", WORKERS, "--declared-byzantine", TOLERATED, "--rule", RULE, "--momentum", "workers",
               "--steps", steps, "--lr", config.lr, "--batch", config.batch, "--threads", 1, "--seed", seed,
               "--evaluate-every", config.evaluate_every, "--checkpoint-every", CHECKPOINT_EVERY)  # fmt: skip
    samples: list[Sample] = []
    with SoakCluster(out / "cluster", *options, workers=WORKERS, out=out / "run") as cluster:
        cluster.pace, cluster.begun = PACE, time.monotonic()
        cluster.serve("--grace", GRACE, "--status-port", 0, deadline=DEADLINE)
        cluster.join()
        for number in range(WORKERS):
            cluster.until_event("joined", number)
        trouble = Trouble(cluster, seed)
        absent = _watch(cluster, trouble, samples, 60 * minutes)
        code = cluster.end().code
        seconds = time.monotonic() - cluster.begun
    status = json.loads((out / "run" / "status.json").read_text())
    with (out / "run" / "events.csv").open(newline="") as file:
        noted = Counter(row["event"] for row in csv.DictReader(file))
    soak_report.write_table(out / "soak.csv", Sample._fields, samples)
    soak_report.write_table(out / "troubles.csv", ("seconds", "trouble", "worker"), trouble.log)
    print(f"the run has ended with code {code}; now the same {steps:,} steps without trouble", file=sys.stderr)
    clean = gy.train(config).final_accuracy
    verdict = Verdict.of(samples, minutes, seconds, code == 0 and status["status"] == "complete", steps, trouble.caused,
                         noted, status.get("final_accuracy", float("nan")), clean, absent,
                         trouble.longest_calm(), _quiet_from(60 * minutes))  # fmt: skip
    (out / "verdict.json").write_text(json.dumps(verdict._asdict(), indent=2) + "\n")
    soak_report.draw(samples, trouble.log, out / "soak.png")
    if page:
        (DOCS / "reliability").mkdir(exist_ok=True)
        for name in ("soak.png", "soak.svg", "soak.csv"):
            shutil.copy(out / name, DOCS / "reliability" / name)
        soak_report.update_page(verdict)
    return verdict


def _quiet_from(seconds: float) -> float:
    """Return after how many seconds of a run nothing new goes wrong."""
    return seconds - min(_QUIET_SECONDS, seconds / 4)


def _watch(cluster: SoakCluster, trouble: Trouble, samples: list[Sample], seconds: float) -> list[int]:
    """Cause trouble and take samples until the server ends; return the workers that were not linked shortly before."""
    absent: list[int] = []
    sample_at = trouble_at = time.monotonic()
    quiet = cluster.begun + _quiet_from(seconds)
    while cluster.server.running:
        now = time.monotonic()
        trouble.restore(everything=now >= quiet)
        if now >= sample_at:
            sample_at += SAMPLE_SECONDS
            with contextlib.suppress(OSError):  # the server is just ending
                sample = Sample.of(cluster.server.process.pid, now - cluster.begun)
                status = cluster.status()  # after it: a server that has played all rounds reads its tables back
                if status["step"] < status["steps"]:
                    samples.append(sample._replace(step=status["step"]))
                    absent = [each["number"] for each in status["workers"] if not each["linked"]]
        if trouble_at <= now < quiet:
            trouble_at = now + trouble.random.uniform(*_GAP)
            trouble.cause()
        time.sleep(0.1)
    trouble.restore(everything=True)
    return absent


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a server with workers through trouble, and look for growth.")
    parser.add_argument("--minutes", type=float, default=30.0, metavar="M", help="at least 1 (default: 30)")
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), metavar="DIR", help="is overwritten")
    parser.add_argument("--seed", type=int, default=1, metavar="K")
    parser.add_argument("--no-page", action="store_true", help="leave docs/ as it is: for a short try")
    options = parser.parse_args()
    if not options.minutes >= 1:
        parser.error(f"--minutes must be at least 1, got {options.minutes}")
    verdict = run(options.minutes, options.out.resolve(), options.seed, not options.no_page)
    print(soak_report.paragraph(verdict))
    return 0 if verdict.holds else 1


if __name__ == "__main__":
    sys.exit(main())

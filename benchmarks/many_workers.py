"""Measure one server process with many workers, up to a thousand.

    python -m benchmarks.many_workers --workers 4 16 64 100 1000 --values 1000 79510

The server is a real one in a process of its own, with TLS, certificates, Median and momentum at the workers, and
everything that a run does in a round counts. The workers are another process (`benchmarks.worker_crowd`): real TLS
peers, each with its certificate, that answer at once with rows that they have ready. All of them connect at the same
moment. That process needs about as much processor time as the server, so on two cores a round cannot be faster than the
slower of both; the server's own processor time is a column of its own.

It prints a table and writes docs/performance/many_workers.csv, which `python -m benchmarks.pages.update_scaling` puts
into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import stub_workers
from benchmarks.pages import DOCS
from benchmarks.server_round import RULE, task_of
from benchmarks.stub_workers import PATIENCE
from benchmarks.timing import spread
from benchmarks.worker_crowd import CrowdReport, crowd
from gyroscope._core.errors import LinkError
from gyroscope._linalg import _kernels
from gyroscope.distributed import certificates
from gyroscope.distributed.server.parameter_server import Server, ServerOptions
from gyroscope.runs import events
from gyroscope.runs.callbacks import Callback, Row
from gyroscope.runs.config import Config

WORKERS, VALUES = (4, 16, 64, 100, 1000), (1000, 79_510)
ROUNDS, IDLE_SECONDS = 20, 30.0
OUT = DOCS / "performance" / "many_workers.csv"
_WARM_UP = 3
_LAST = 1
"""Rounds at the end that do not count: after the last one nobody is asked for rows."""


class Usage(NamedTuple):
    """What a process takes of its machine."""

    clock: float
    processor: float
    memory: int
    peak: int
    descriptors: int
    threads: int


def usage() -> Usage:
    """Return what this process takes now, and the most memory that it has taken, in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory, peak = (1024 * int(status[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    return Usage(
        time.monotonic(), time.process_time(), memory, peak, len(os.listdir("/proc/self/fd")), int(status["Threads"])
    )


class Measured(NamedTuple):
    """One server's line of the table."""

    workers: int
    values: int
    join_seconds: float
    """From the first worker that connects to the last one that has joined."""
    attempts: int
    """Connections that the workers began; those beyond one per worker were turned away or took too long."""
    round_ms: float
    round_low_ms: float
    round_high_ms: float
    """The median, and the middle half."""
    server_cpu_ms: float
    """The server's processor time per round, user and system, all threads."""
    crowd_cpu_seconds: float
    peak_mb: float
    rows_mb: float
    """The matrix and two buffers per worker: what the rule and momentum at the workers need."""
    beyond_mb: float
    """The peak, less those rows and less what the process had before it began to listen."""
    descriptors: int
    threads: int
    idle_seconds: float
    idle_cpu_ms: float
    """The server's processor time per second while all workers are linked and nobody is asked."""
    idle_mb: float
    heartbeats: int
    """That came to the workers."""

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        return cls._fields


class _Pace(Callback):
    """Note when rounds end, and let the server and all workers idle for a while after the first ones."""

    def __init__(self, n: int, idle: float) -> None:
        self.n, self.idle = n, idle
        self.joined_at = 0.0
        self.joined = 0
        self.ends: list[tuple[float, float]] = []
        """The clock and the processor time at the end of each round."""
        self.idle_usage: tuple[Usage, Usage] | None = None

    def happened(self, event: dict[str, Any], pipe: Connection, port: int) -> None:
        if event["event"] == events.STARTED:
            pipe.send(port)
        elif event["event"] == events.JOINED:
            self.joined += 1
            if self.joined == self.n:
                self.joined_at = time.monotonic()

    def step(self, row: Row) -> None:
        if len(self.ends) == _WARM_UP and self.idle:
            time.sleep(2.0)  # for the rows that the server has asked for already
            before = usage()
            time.sleep(self.idle)
            self.idle_usage = (before, usage())
        self.ends.append((time.monotonic(), time.process_time()))


def serve(number: int, pipe: Connection, keys: Path, n: int, d: int, rounds: int, idle: float) -> None:
    """Be the server of a run, and report what it took."""
    _kernels.warm_up()
    pace, before = _Pace(n, idle), usage()
    never = 10**9
    config = Config(workers=n, declared_byzantine=n // 4, rule=RULE, momentum="workers", lr=1e-6, batch=1, threads=1,
                    steps=_WARM_UP + 1 + rounds + _LAST, evaluate_every=never, checkpoint_every=never)  # fmt: skip
    options = ServerOptions(port=0, deadline=60.0, grace=PATIENCE.total_seconds(), keys=keys)
    with tempfile.TemporaryDirectory() as out:
        server: Server
        with Server(options, [pace], on_event=lambda event: pace.happened(event, pipe, server.port)) as server:
            result = server.train(config, Path(out) / "run", task=task_of(d))
            if result.status != "complete":
                raise LinkError(f"the run is {result.status}: {result.reason}")
            pipe.send((before, usage(), pace.joined_at, pace.ends, pace.idle_usage))


def measure(n: int, d: int, rounds: int, idle: float) -> Measured:
    """Run a server with n workers and rows of d values."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        certificates.create_authority(keys)
        certificates.add_workers(keys, [f"worker-{one}" for one in range(n)])
        with stub_workers.started(serve, 1, keys, n, d, rounds, idle) as (server,):
            port = _received(server, [server])
            with stub_workers.started(crowd, 1, port, keys, n, d) as (workers,):
                before, after, joined_at, ends, rest = _received(server, [server, workers])
                report: CrowdReport = _received(workers, [workers])
    return _measured(n, d, before, after, joined_at, ends[_WARM_UP:-_LAST], rest, report)


def _received(pipe: Connection, watched: Sequence[Connection]) -> Any:
    """Return what comes through a pipe; LinkError where one of the processes has ended before."""
    ready = connection.wait(watched, PATIENCE.total_seconds() * 4)
    try:
        if pipe in ready:
            return pipe.recv()
    except EOFError:
        pass
    raise LinkError("the server that was to be measured, or its workers, ended before the run was over")


def _measured(
    n: int, d: int, before: Usage, after: Usage, joined_at: float, ends: Sequence[tuple[float, float]],
    idle: tuple[Usage, Usage] | None, report: CrowdReport,
) -> Measured:  # fmt: skip
    """Make a line of what was noted at the end of each round."""
    rounds, megabyte = len(ends) - 1, 1e6
    times = spread([1e3 * (end - begin) for (begin, _), (end, _) in itertools.pairwise(ends)])
    rows, resting = 3 * 4 * n * d, idle[1].clock - idle[0].clock if idle else 0.0
    return Measured(
        n, d, joined_at - report.began, report.attempts, times.middle, times.low, times.high,
        1e3 * (ends[-1][1] - ends[0][1]) / rounds, report.processor,
        after.peak / megabyte, rows / megabyte, (after.peak - before.memory - rows) / megabyte,
        after.descriptors, after.threads,
        resting, 1e3 * (idle[1].processor - idle[0].processor) / resting if idle else 0.0,
        idle[1].memory / megabyte if idle else 0.0, report.heartbeats,
    )  # fmt: skip


def write(lines: Iterable[Measured], path: Path) -> None:
    """Write the lines as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Measured.columns())
        for line in lines:
            table.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in line])


def shown(line: Measured) -> str:
    """Return a line for people."""
    text = (
        f"{line.workers:5,} workers, d = {line.values:,}: joined in {line.join_seconds:.2f} s ({line.attempts:,} "
        f"connections); round {line.round_ms:,.1f} ms ({line.round_low_ms:,.1f} to {line.round_high_ms:,.1f}), the "
        f"server's processor {line.server_cpu_ms:,.1f} ms; "
        f"peak {line.peak_mb:,.0f} MB, rows {line.rows_mb:,.0f} MB, beyond "
        f"{line.beyond_mb:,.0f} MB; {line.descriptors:,} descriptors, {line.threads} threads"
    )
    if line.idle_seconds:
        text += (
            f"; idle for {line.idle_seconds:.0f} s: {line.idle_cpu_ms:.1f} ms of processor per second, "
            f"{line.idle_mb:,.0f} MB, {line.heartbeats:,} heartbeats"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one server process with many workers.")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, metavar="N")
    parser.add_argument("--values", type=int, nargs="+", default=VALUES, metavar="D", help="even numbers")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="R", help="rounds that count, back to back")
    parser.add_argument("--idle", type=float, default=IDLE_SECONDS, metavar="S",
                        help="seconds without rounds, with the most workers and the fewest values")  # fmt: skip
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="the table as CSV (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for d in options.values:
        for n in options.workers:
            held = options.idle if (n, d) == (max(options.workers), min(options.values)) else 0.0
            lines.append(measure(n, d, options.rounds, held))
            print(shown(lines[-1]), flush=True)
    write(lines, options.out)


if __name__ == "__main__":
    main()

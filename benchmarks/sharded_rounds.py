"""Play rounds of a server with 1, 2 and 4 shards, in turn: `python -m benchmarks.sharded_rounds`.

The workers are stubs whose rows are ready before they are asked. Each server is a process of its own, so that its peak
memory is its own, and the servers take turns, so that load on the machine slows all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import stub_workers
from benchmarks.server_round import task_of
from benchmarks.stub_workers import PATIENCE
from benchmarks.transports import processor_time
from gyroscope.distributed import certificates
from gyroscope.distributed.server.parameter_server import Server, ServerOptions
from gyroscope.distributed.server.shards.sharded_links import ShardedLinks
from gyroscope.runs.callbacks import Callback, Row
from gyroscope.runs.config import Config

SHARDS = (1, 2, 4)
WARM_UP = 3


class _Watch(Callback):
    """Reads the clocks after the rounds that warm up, and after the last one."""

    server: Server

    def __init__(self, rounds: int) -> None:
        self.rounds, self.played = rounds, 0
        self.seconds = 0.0
        self.costs: list[tuple[float, float]] = []
        """Processor seconds per round and peak megabytes: of the server's process, then of each shard."""

    def step(self, row: Row) -> None:
        self.played += 1
        if self.played == WARM_UP:
            self.before = time.perf_counter(), [processor_time([process]) for process in self.processes()]
        elif self.played == WARM_UP + self.rounds:
            begun, used = self.before
            self.seconds = (time.perf_counter() - begun) / self.rounds
            for process, before in zip(self.processes(), used, strict=True):
                self.costs.append(((processor_time([process]) - before) / self.rounds, _peak(process)))

    def processes(self) -> list[int]:
        links: Any = self.server._workers and self.server._workers.links
        return [
            os.getpid(),
            *(shard.process.pid for shard in (links.shards if isinstance(links, ShardedLinks) else ())),
        ]


def _peak(process: int) -> float:
    """Return a process's peak memory in megabytes."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def serve(shards: int, n: int, d: int, rule: str, rounds: int, encrypted: bool) -> dict[str, Any]:
    """Play the rounds in this process and its shards, and return what they cost."""
    torch.set_num_threads(1)
    watch, never = _Watch(rounds), 10**9
    config = Config(workers=n, declared_byzantine=1, rule=rule, momentum="workers", lr=1e-6, batch=1, threads=1,
                    steps=WARM_UP + rounds, evaluate_every=never, checkpoint_every=never)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys" if encrypted else None
        if keys:
            certificates.create_authority(keys)
            for number in range(n):
                certificates.add_worker(keys, f"worker-{number}")
        seconds = PATIENCE.total_seconds()
        options = ServerOptions(port=0, deadline=seconds, grace=seconds, keys=keys, shards=shards)
        with Server(options, [watch]) as server:
            watch.server = server
            with stub_workers.started(stub_workers.work, n, server.port, keys):
                server.train(config, Path(folder) / "run", task=task_of(d))
                server.end()
    return {"seconds": watch.seconds, "costs": watch.costs}


def measure(arguments: argparse.Namespace) -> dict[int, list[dict[str, Any]]]:
    """Let the servers take turns, each in a process of its own."""
    found: dict[int, list[dict[str, Any]]] = {shards: [] for shards in arguments.shards}
    for _ in range(arguments.passes):
        for shards in arguments.shards:
            command = [sys.executable, "-m", "benchmarks.sharded_rounds", *sys.argv[1:], "--one", str(shards)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[shards].append(json.loads(done.stdout.splitlines()[-1]))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def table(found: dict[int, list[dict[str, Any]]]) -> list[str]:
    """Return the lines of a table: medians over the passes."""
    lines = [
        "| shards | ms per round | the server's processor ms | each shard's | the server's peak MB | each shard's |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for shards, passes in found.items():
        middle = [
            [statistics.median(each) for each in zip(*costs, strict=True)]
            for costs in zip(*(run["costs"] for run in passes), strict=True)
        ]
        (used, peak), others = middle[0], middle[1:]
        of_shards = [", ".join(f"{scale * each[i]:.0f}" for each in others) or "-" for i, scale in ((0, 1e3), (1, 1))]
        seconds = statistics.median(run["seconds"] for run in passes)
        lines.append(
            f"| {shards} | {1e3 * seconds:.1f} | {1e3 * used:.1f} | {of_shards[0]} | {peak:.0f} | {of_shards[1]} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a server with shards to one without.")
    parser.add_argument("--shards", type=int, nargs="*", default=SHARDS)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--values", type=int, default=1_000_000, help="d, an even number")
    parser.add_argument("--rule", default="median")
    parser.add_argument("--rounds", type=int, default=20, help="in each pass")
    parser.add_argument("--passes", type=int, default=5, help="over all numbers of shards")
    parser.add_argument("--plain", action="store_true", help="without TLS")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        costs = serve(arguments.one, arguments.workers, arguments.values, arguments.rule, arguments.rounds,
                      not arguments.plain)  # fmt: skip
        print(json.dumps(costs))
        return
    print(
        f"{arguments.workers} workers, d = {arguments.values:,}, {arguments.rule}, "
        f"{'plain TCP' if arguments.plain else 'TLS'}, medians of {arguments.passes} passes"
    )
    print("\n".join(table(measure(arguments))))


if __name__ == "__main__":
    main()

"""Compare the parameter server's round with its lower bound: the bare transfer of the same bytes, and the rule."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from benchmarks import stub_workers
from benchmarks.results import Line, ratio_line
from benchmarks.stub_workers import PATIENCE
from benchmarks.timing import OnStart, Passes, Timed
from gyroscope import rules
from gyroscope._core.clock import Stopwatch
from gyroscope._core.errors import LinkError
from gyroscope.distributed.protocol import TCPStore
from gyroscope.distributed.server.parameter_server import Server, ServerOptions
from gyroscope.runs.callbacks import Callback, Row
from gyroscope.runs.config import Config
from gyroscope.simulation.tasks import Task

WORKERS = 4
RULE, TOLERATED = "median", 1
LIMIT = 1.5
TOGETHER = 10
"""Rounds, transfers and applications of the rule in a pass, back to back as in a run: the server takes rows in while
others are on their way, and a transfer that waits for the operating system's scheduler (with more processes than cores
every third does) is averaged with those that do not."""
_WARM_UP = 5
_LEAST, _MOST = 10, 2000
_OPTIONS = ServerOptions(port=0, deadline=60.0, grace=PATIENCE.total_seconds())

ROUND, BARE, THE_RULE = "the server's round", "the bare transfer", f"the rule ({RULE})"


def measure(
    d: int, budget: float, on_start: OnStart | None = None, measure_every: int = 1, together: int = TOGETHER
) -> tuple[list[Line], Stopwatch]:
    """Measure a real server with real worker processes, whose gradients are ready before the server asks for them.

    So the time of a round is the server's own, and that of the bytes. Everything that a run does in a round counts:
    metrics, the tables of the run directory, the search for NaN. The server has one thread, as in `gyroscope launch`:
    with more, nine processes on a few cores wait for each other's threads.
    """
    if on_start is not None:
        on_start(f"{WORKERS} workers, d = {d:,}, measures every {measure_every}")
    clock, threads = Stopwatch(), torch.get_num_threads()
    with _bare_transfer(d) as bare, tempfile.TemporaryDirectory() as folder:
        beside = _Beside(bare, d, budget, clock, together)
        _serve(d, Path(folder) / "run", beside, clock, measure_every)
    torch.set_num_threads(threads)
    passes = Passes(beside.seconds)
    needed = Passes({**passes.seconds, "both": [sum(pair) for pair in zip(*_parts(passes), strict=True)]})
    times = (passes.middle(ROUND), passes.middle(BARE))
    name = ROUND if measure_every == 1 else f"{ROUND}, measured every {measure_every}th"
    if together == 1:
        name += ", one at a time"
    lines = [
        ratio_line("distributed", f"{name} / {BARE}", passes.ratio(ROUND, BARE), n=WORKERS, d=d, times=times),
        ratio_line("distributed", f"{name} / {BARE} + {THE_RULE}", needed.ratio(ROUND, "both"), n=WORKERS, d=d,
             times=(times[0], needed.middle("both")), limit=LIMIT if measure_every == 1 else None),
    ]  # fmt: skip
    return lines, clock


def _parts(passes: Passes) -> tuple[list[float], list[float]]:
    return passes.seconds[BARE], passes.seconds[THE_RULE]


def task_of(d: int) -> Task:
    """Return a task with d parameters (an even number) on next to no data."""
    inputs, targets = torch.zeros(2, d // 2 - 1), torch.tensor([0, 1])
    return Task(
        lambda: nn.Linear(d // 2 - 1, 2), (inputs, targets), (inputs, targets), loss=nn.functional.cross_entropy
    )


def _serve(d: int, out: Path, beside: _Beside, clock: Stopwatch, measure_every: int) -> None:
    """Serve an ordinary run until enough was measured."""
    task, never = task_of(d), 10**9
    config = Config(workers=WORKERS, declared_byzantine=TOLERATED, rule=RULE, momentum="workers", lr=1e-6, batch=1,
                    steps=never, evaluate_every=never, checkpoint_every=never, threads=1,
                    measure_every=measure_every)  # fmt: skip
    with (
        Server(_OPTIONS, [beside], beside.enough) as server,
        stub_workers.started(stub_workers.work, WORKERS, server.port),
    ):
        beside.settled = lambda: _rows_have_come(server)
        result = server.train(config, out, task=task, clock=clock)
        server.end()
    if not beside.enough():
        raise LinkError(f"the server that was to be measured stopped after {result.step} rounds: {result.reason}")


def _rows_have_come(server: Server) -> None:
    """Wait for the next rows, which the server requests while it still measures a round: they belong to that round."""
    assert server._workers
    for each in server._workers.handles:
        if each.pipe and each.asked == server._workers._asked:
            each.pipe.poll(PATIENCE.total_seconds())


@contextlib.contextmanager
def _bare_transfer(d: int) -> Iterator[_Bare]:
    store = TCPStore(stub_workers.HOST, 0, None, True, PATIENCE, wait_for_workers=False)
    with stub_workers.started(stub_workers.echo, WORKERS, store.port, d):
        yield _Bare(store, d)


class _Bare:
    """Send d values to each worker and receive d values back, over gloo."""

    def __init__(self, store: TCPStore, d: int) -> None:
        self.groups = [stub_workers.pair(store, number, 0) for number in range(WORKERS)]
        self.parameters, self.rows = torch.zeros(d), torch.empty(WORKERS, d)

    def __call__(self) -> None:
        works = [group.send([self.parameters], 1, 0) for group in self.groups]
        works += [group.recv([row], 1, 0) for group, row in zip(self.groups, self.rows, strict=True)]
        for work in works:
            work.wait(PATIENCE)


class _Beside(Callback):
    """A callback that times the bare transfer and the rule in turn with the rounds, some `together`."""

    def __init__(self, bare: _Bare, d: int, budget: float, clock: Stopwatch, together: int) -> None:
        self.bare, self.clock, self.together = bare, clock, together
        self.rule = rules.parse(RULE)
        self.rows = torch.stack([stub_workers.row_of(number, d) for number in range(WORKERS)])
        self.seconds: dict[str, list[float]] = {ROUND: [], BARE: [], THE_RULE: []}
        self.rounds, self.passes, self.budget = 0, 0, budget
        self.settled: Timed = lambda: None
        self.begun = self.end_of_pass = time.perf_counter()

    def step(self, row: Row) -> None:
        self.rounds += 1
        if self.rounds % self.together:
            return
        self.settled()
        times = {ROUND: (time.perf_counter() - self.end_of_pass) / self.together, BARE: self._seconds(self.bare)}
        times[THE_RULE] = self._seconds(lambda: self.rule(self.rows, TOLERATED))
        self.passes += 1
        if self.passes > _WARM_UP:
            for name, value in times.items():
                self.seconds[name].append(value)
        elif self.passes == _WARM_UP:
            self.begun = time.perf_counter()
            self.clock.reset()
        self.clock.start()
        self.end_of_pass = time.perf_counter()

    def _seconds(self, thing: Timed) -> float:
        begin = time.perf_counter()
        for _ in range(self.together):
            thing()
        return (time.perf_counter() - begin) / self.together

    def enough(self) -> bool:
        done = len(self.seconds[ROUND])
        return done * self.together >= _MOST or (done >= _LEAST and time.perf_counter() - self.begun > self.budget)

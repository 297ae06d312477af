"""Compare the parameter server's round with its lower bound: the bare transfer of the same bytes, and the rule.

Once over TLS and once over plain TCP, side by side, so that the cost of TLS is measured, too.
"""

from __future__ import annotations

import contextlib
import os
import queue
import ssl
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import stub_workers, transports
from benchmarks.results import Line, ratio_line
from benchmarks.stub_workers import PATIENCE
from benchmarks.timing import OnStart, Passes, Timed, in_turn
from benchmarks.transport_servers import Memory
from benchmarks.transport_workers import Kind
from gyroscope import rules
from gyroscope._core.clock import Stopwatch
from gyroscope._core.errors import LinkError
from gyroscope.distributed import certificates, tls
from gyroscope.distributed.server.link_events import Answered, LinkEvent
from gyroscope.distributed.server.parameter_server import Server, ServerOptions
from gyroscope.runs.callbacks import Callback, Row
from gyroscope.runs.config import Config
from gyroscope.simulation.tasks import Task

WORKERS = 4
RULE, TOLERATED = "median", 1
LIMIT, TLS_LIMIT = 1.5, 1.3
"""How many times as long as its lower bound a round may take, and as a round without TLS."""
TOGETHER = 10
"""Rounds, transfers and applications of the rule in a pass, back to back as in a run: the server takes rows in while
others are on their way, and a transfer that waits for the operating system's scheduler (with more processes than cores
every third does) is averaged with those that do not."""
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_WARM_UP = 4
_CHUNK = 262_144
_LEAST, _MOST = 10, 2000

ROUND, BARE, THE_RULE = "the server's round", "the bare transfer", f"the rule ({RULE})"
CIPHER = "the cipher"
TLS, PLAIN = " with TLS", " without TLS"


def measure(
    d: int, budget: float, on_start: OnStart | None = None, together: int = TOGETHER
) -> tuple[list[Line], Stopwatch]:
    """Measure real servers with real worker processes, whose gradients are ready before the server asks for them.

    So the time of a round is the server's own, and that of the bytes. Everything that a run does in a round counts:
    metrics, the tables of the run directory, the search for NaN. The server has one thread, as in `gyroscope launch`:
    with more, the processes on a few cores wait for each other's threads.

    Returns:
        The comparisons, and where the time of the server with TLS went.
    """
    if on_start is not None:
        on_start(f"{WORKERS} workers, d = {d:,}, {together} together")
    rule, rows = rules.parse(RULE), torch.stack([stub_workers.row_of(number, d) for number in range(WORKERS)])
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        servers = {how: stack.enter_context(_serving(d, how == TLS, together)) for how in (TLS, PLAIN)}
        things: dict[str, Timed] = {ROUND + how: server.play for how, server in servers.items()}
        for how in servers:
            things[BARE + how] = _repeated(stack.enter_context(bare_transfer(d, how == TLS)), together)
        things[CIPHER] = _repeated(stack.enter_context(cipher_alone(d)), together)
        things[THE_RULE] = _repeated(lambda: rule(rows, TOLERATED), together)
        for _ in range(_WARM_UP):
            for thing in things.values():
                thing()
        servers[TLS].clock.reset()
        passes = in_turn(things, budget, _LEAST, max(_LEAST, _MOST // together))
    return _lines(passes, d, together), servers[TLS].clock


def _lines(passes: Passes, d: int, together: int) -> list[Line]:
    suffix = ", one at a time" if together == 1 else ""
    lines = []
    for how in (TLS, PLAIN):
        parts = (passes.seconds[BARE + how], passes.seconds[THE_RULE])
        needed = Passes({**passes.seconds, "needed": [sum(pair) for pair in zip(*parts, strict=True)]})
        name = f"{ROUND}{how}{suffix} / {BARE}{how} + {THE_RULE}"
        lines.append(_line(needed, name, (ROUND + how, "needed"), d, together, LIMIT))
    name = f"{ROUND}{TLS}{suffix} /{PLAIN}"
    lines.append(_line(passes, name, (ROUND + TLS, ROUND + PLAIN), d, together, TLS_LIMIT))
    # What it would be if every core of this machine did its share of the cipher's work all the time, and nothing else
    # came with TLS.
    pairs = zip(passes.seconds[ROUND + PLAIN], passes.seconds[CIPHER], strict=True)
    least = [plain + 2 * WORKERS * cipher / CORES for plain, cipher in pairs]
    bound = Passes({**passes.seconds, "least": least})
    name = f"{ROUND}{PLAIN}{suffix} + {CIPHER} on {CORES} cores /{PLAIN}"
    return [*lines, _line(bound, name, ("least", ROUND + PLAIN), d, together, None)]


def _line(passes: Passes, name: str, pair: tuple[str, str], d: int, together: int, limit: float | None) -> Line:
    times = (passes.middle(pair[0]) / together, passes.middle(pair[1]) / together)
    return ratio_line("distributed", name, passes.ratio(*pair), n=WORKERS, d=d, times=times, limit=limit)


def _repeated(thing: Timed, times: int) -> Timed:
    def repeat() -> None:
        for _ in range(times):
            thing()

    return repeat


@contextlib.contextmanager
def bare_transfer(d: int, encrypted: bool) -> Iterator[Timed]:
    """Yield a function that sends d values to each worker and receives d values from each.

    It does so over the transport of the server's links, and does nothing else.
    """
    with transports.connected(Kind("sockets, asyncio", encrypted), Memory(WORKERS, d)) as (bare, _):
        bare.checked_round()
        yield bare.numbered_round


@contextlib.contextmanager
def cipher_alone(d: int) -> Iterator[Timed]:
    """Yield a function that encrypts d values and decrypts them again, with the server's TLS and without a network."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder)
        certificates.create_authority(keys)
        certificates.add_worker(keys, "worker-0")
        contexts = tls.server_context(keys), tls.worker_context(keys / "worker-0.crt")
    to_server, to_worker = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = contexts[0].wrap_bio(to_server, to_worker, server_side=True)
    worker: Any = contexts[1].wrap_bio(to_worker, to_server, server_hostname="localhost")
    for _ in range(2):
        for side in (worker, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    values, received = (memoryview(bytearray(4 * d)) for _ in range(2))

    def transfer() -> None:
        filled = 0
        for begin in range(0, len(values), _CHUNK):
            server.write(values[begin : begin + _CHUNK])
            while to_worker.pending or worker.pending():
                filled += worker.read(len(received) - filled, received[filled:])

    transfer()
    yield transfer


# -- the server --------------------------------------------------------------------------------------------------------


def task_of(d: int) -> Task:
    """Return a task with d parameters (an even number) on next to no data."""
    inputs, targets = torch.zeros(2, d // 2 - 1), torch.tensor([0, 1])
    return Task(
        lambda: nn.Linear(d // 2 - 1, 2), (inputs, targets), (inputs, targets), loss=nn.functional.cross_entropy
    )


@contextlib.contextmanager
def _serving(d: int, encrypted: bool, together: int) -> Iterator[_PacedRun]:
    """Yield an ordinary run with a server, which waits."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys" if encrypted else None
        if keys:
            certificates.create_authority(keys)
            for number in range(WORKERS):
                certificates.add_worker(keys, f"worker-{number}")
        paced = _PacedRun(together)
        options = ServerOptions(port=0, deadline=60.0, grace=PATIENCE.total_seconds(), keys=keys)
        with (
            Server(options, [paced], lambda: paced.over) as server,
            stub_workers.started(stub_workers.work, WORKERS, server.port, keys),
        ):
            thread = threading.Thread(target=paced.train, args=(server, d, Path(folder) / "run"))
            thread.start()
            try:
                paced.wait()
                yield paced
            finally:
                paced.orders.put(False)
                thread.join()
                server.end()


class _PacedRun(Callback):
    """A run, in a thread of its own, that plays some rounds together and then waits until it is told to play more."""

    server: Server

    def __init__(self, together: int) -> None:
        self.together, self.rounds, self.over = together, 0, False
        self.clock = Stopwatch()
        self.orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Whether to play more."""
        self.reports: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Whether the run goes on, each time that it waits or ends."""

    def play(self) -> None:
        """Let the server play its rounds, and wait for them."""
        self.orders.put(True)
        self.wait()

    def wait(self) -> None:
        if not self.reports.get():
            raise LinkError(f"the server that was to be measured stopped after {self.rounds} rounds")

    # -- what follows runs in the run's thread ------------------------------------------------------------------------

    def train(self, server: Server, d: int, out: Path) -> None:
        """Serve until there are no more orders."""
        self.server, never = server, 10**9
        config = Config(workers=WORKERS, declared_byzantine=TOLERATED, rule=RULE, momentum="workers", lr=1e-6, batch=1,
                        steps=never, evaluate_every=never, checkpoint_every=never, threads=1)  # fmt: skip
        try:
            server.train(config, out, task=task_of(d), clock=self.clock)
        finally:
            self.reports.put(False)

    def step(self, row: Row) -> None:
        self.rounds += 1
        if self.rounds % self.together:
            return
        self._wait_for_rows()
        self.reports.put(True)
        self.over = not self.orders.get()
        self.clock.start()

    def _wait_for_rows(self) -> None:
        """Wait for the next rows, which the server requests while it still measures a round: they belong to it.

        The run takes them off the links' queue later, so they go back there.
        """
        links = self.server.links
        found: list[LinkEvent] = []
        while sum(isinstance(event, Answered) for event in found) < WORKERS:
            events = links.events(PATIENCE.total_seconds())
            if not events or not all(isinstance(event, Answered) for event in events):
                raise LinkError(f"instead of the workers' rows this has come: {events}")
            found += events
        for event in found:
            links._events.put(event)

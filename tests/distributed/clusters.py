"""A server and its workers as real processes, and workers that misbehave at given steps.

Nothing here depends on how fast the machine is: to do something at a certain step, a test lets the workers wait at a
*gate*, which is a file that the test creates once it is done.
"""

from __future__ import annotations

import csv
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "training"))

import launching
import torch
from launching import PATIENCE, Finished, Started, start

from gyroscope.distributed import certificates
from gyroscope.distributed.protocol import ANSWER, HEAD_SIZE, Head
from gyroscope.distributed.worker import Worker

# Every process here needs these. If the forkserver runs already, the processes only start more slowly.
launching._context.set_forkserver_preload(
    [
        "gyroscope.cli",
        "gyroscope.distributed.server.parameter_server",
        "gyroscope.distributed.worker",
        "gyroscope._linalg._kernels.compiled.sum_loops",
        "tomli_w",
    ]
)

Faults = Mapping[int, str]
"""The fault of a worker at each step."""

PREPARATION = -1
"""The step of a fault before the first round: the worker waits at this gate with its data not loaded."""

DEADLINE = 2.0


class FaultyWorker(Worker):
    """A worker that waits at gates, and misbehaves once at each of the given steps."""

    folder: Path
    gates: tuple[int, ...] = ()
    faults: dict[int, str]
    poisoned: int | None = None
    """The number of a training sample that is NaN in this worker's data."""

    def make_computer(self, offer: Any) -> Any:
        if self.faults.pop(PREPARATION, ""):
            (self.folder / f"reached-{PREPARATION}-{self.number}").touch()
            wait_for(lambda: (self.folder / f"open-{PREPARATION}").exists())
        computer = super().make_computer(offer)
        if self.poisoned is not None:
            computer.worker.data.inputs[self.poisoned] = float("nan")
        return computer

    def reply(self, connection: Any, answer: Any, step: int) -> None:
        if step in self.gates:
            (self.folder / f"reached-{step}-{self.number}").touch()
            wait_for(lambda: (self.folder / f"open-{step}").exists())
        fault = self.faults.pop(step, "none")
        getattr(self, "_" + fault.replace("-", "_"))(connection, answer, step)

    def _none(self, connection: Any, answer: Any, step: int) -> None:
        super().reply(connection, answer, step)

    def _nan(self, connection: Any, answer: Any, step: int) -> None:
        answer.values.fill_(float("nan"))
        super().reply(connection, answer, step)

    def _slow(self, connection: Any, answer: Any, step: int) -> None:
        time.sleep(1.5 * DEADLINE)
        super().reply(connection, answer, step)

    def _between_shards(self, connection: Any, answer: Any, step: int) -> None:
        """Die when the first shard has its part of the row, and the others have not."""
        super().reply(connection, answer, step)
        os._exit(1)

    def _replay(self, connection: Any, answer: Any, step: int) -> None:
        self._again(connection, answer, step - 2)

    def _twice(self, connection: Any, answer: Any, step: int) -> None:
        super().reply(connection, answer, step)
        super().reply(connection, answer, step)

    def _no_step(self, connection: Any, answer: Any, step: int) -> None:
        super().reply(connection, answer, step)
        self._again(connection, answer, -1)

    def _future(self, connection: Any, answer: Any, step: int) -> None:
        self._again(connection, answer, step + 1)
        self._again(connection, answer, step)

    def _foreign(self, connection: Any, answer: Any, step: int) -> None:
        answer.seal(ANSWER, step, 12345, 0.0)
        super().reply(connection, answer, step)

    def _again(self, connection: Any, answer: Any, step: int) -> None:
        """Send the answer as one to another step."""
        session = Head.parse(answer.bytes[:HEAD_SIZE]).session
        answer.seal(ANSWER, step, session, 0.0)
        super().reply(connection, answer, step)

    def _short(self, connection: Any, answer: Any, step: int) -> None:
        connection.send(answer.bytes[:1000], 20)

    def _half(self, connection: Any, answer: Any, step: int) -> None:
        session = Head.parse(answer.bytes[:HEAD_SIZE]).session
        content = bytes(answer.values.half().view(torch.uint8).numpy())
        connection.send(Head(ANSWER, step, session, len(content)).pack() + content, 20)

    def _long(self, connection: Any, answer: Any, step: int) -> None:
        connection.send(bytes(answer.bytes) + bytes(answer.bytes[HEAD_SIZE:]), 20)

    def _huge(self, connection: Any, answer: Any, step: int) -> None:
        connection.send(Head(ANSWER, step, 0, 2**60).pack(), 20)


def run_worker(
    address: str, number: int, folder: str, gates: tuple[int, ...], faults: dict[int, str], poisoned: int | None
) -> int:
    from gyroscope._core.errors import LinkError

    host, _, port = address.rpartition("/")[2].rpartition(":")
    worker = FaultyWorker(
        host,
        int(port),
        certificate=Path(folder) / "keys" / f"worker-{number}.crt",
        patience=60,
        report=lambda text: print(text, flush=True),
    )
    worker.folder, worker.gates, worker.faults, worker.poisoned = Path(folder), gates, dict(faults), poisoned
    try:
        worker.work()
    except LinkError as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


class Cluster:
    """One run with a server and worker processes, all of which end with the `with` block."""

    def __init__(
        self, folder: Path, *options: object, workers: int = 5, gates: Iterable[int] = (), out: Path | None = None
    ) -> None:
        self.folder, self.out = folder, out or folder / "run"
        self.options, self.count, self.gates = options, workers, tuple(gates)
        self.workers: dict[int, Started] = {}
        self.others: list[Started] = []
        self.address = "127.0.0.1:0"
        self.faults: dict[int, Faults] = {}
        self.poisoned: int | None = None
        self.keys = folder / "keys"
        certificates.create_authority(self.keys)
        for number in range(workers):
            certificates.add_worker(self.keys, f"worker-{number}")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [self.server, *self.workers.values(), *self.others]:
            if process.running:
                process.kill()

    def serve(self, *options: object, resume: bool = False, deadline: float = DEADLINE) -> None:
        """Start the server, or restart it on the same port."""
        what = ["--resume", self.out] if resume else ["--out", self.out, *self.options]
        where = ("--port", self.port, "--keys", self.keys)
        self.server = start("serve", *what, *options, "--deadline", deadline, *where)
        said = self.server.files / "err"
        pattern = re.compile(r"gyroscope work (\S+) ")
        assert self.server.until(lambda: said.exists() and bool(pattern.search(said.read_text()))), self.server.end()
        found = pattern.search(said.read_text())
        assert found
        self.address = found[1]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def join(self, *numbers: int) -> None:
        for number in numbers or range(self.count):
            self.workers[number] = self.worker(number)

    def worker(self, number: int) -> Started:
        arguments = (
            self.address,
            number,
            str(self.folder),
            self.gates,
            dict(self.faults.get(number, {})),
            self.poisoned,
        )
        process = Started(run_worker, *arguments)
        self.others.append(process)
        return process

    def at_gate(self, step: int, *numbers: int) -> None:
        """Wait until these workers (by default all) are at the gate."""
        for number in numbers or range(self.count):
            wait_for(lambda number=number: (self.folder / f"reached-{step}-{number}").exists(), self.server)

    def open(self, step: int) -> None:
        (self.folder / f"open-{step}").touch()

    def end(self) -> Finished:
        return self.server.end()

    # -- what happened ------------------------------------------------------------------------------------------------

    def events(self, event: str = "", worker: int | None = None) -> list[dict[str, str]]:
        return [
            row
            for row in table(self.out / "events.csv")
            if event in ("", row["event"]) and (worker is None or row["worker"] == str(worker))
        ]

    def until_event(self, event: str, worker: int, times: int = 1) -> None:
        wait_for(lambda: len(self.events(event, worker)) >= times, self.server)


def table(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def wait_for(happened: Callable[[], bool], needed: Started | None = None) -> None:
    """Poll until it has happened; raise where it takes too long, or where a process that it needs has ended."""
    begun = time.monotonic()
    while not happened():
        if needed is not None and not needed.running and not happened():
            raise AssertionError(f"the server has ended: {needed.end()}")
        if time.monotonic() - begun > PATIENCE:
            raise AssertionError("that takes too long")
        time.sleep(0.01)

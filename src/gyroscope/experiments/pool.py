"""A pool of worker processes that run experiments: reused from run to run, replaced when they crash.

Why not an executor of the standard library: one crash there loses the whole pool, and nothing tells what a worker is
doing. Here each worker has a pipe of its own; a dead one costs one attempt at one run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gyroscope.runs import run_dir
from gyroscope.runs.callbacks import Callback, Row
from gyroscope.runs.config import Config

ATTEMPTS = 2
FAILED = "failed"
_REPORT_SECONDS = 0.2
_STOP_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to be made in a directory of its own, or to be continued there."""

    name: str
    config: Config
    path: Path
    resume: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended: `complete`, `diverged`, `interrupted`, or FAILED with a log."""

    job: Job
    status: str
    max_accuracy: float | None = None
    seconds: float = 0.0
    log: str = ""


@dataclasses.dataclass(frozen=True)
class Now:
    """What a worker does at the moment."""

    slot: int
    job: Job
    step: int
    accuracy: float | None


class Slot:
    """One worker process, its pipe, and the job it is at."""

    def __init__(self, number: int, device: str | None) -> None:
        self.number, self.device = number, device
        self.job: Job | None = None
        self.started = 0.0
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None

    def give(self, job: Job) -> None:
        """Start on a job, in a fresh process where there is none."""
        if self.process is None or not self.process.is_alive() or self.pipe is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, end = context.Pipe()
            self.process = context.Process(target=_work, args=(end, self.device), daemon=True)
            self.process.start()
            end.close()  # so that the worker's death shows as the end of the pipe
        self.job, self.started = job, time.monotonic()
        self.pipe.send(job)

    def obituary(self) -> str:
        """Why the process is gone."""
        if self.process is None:
            return "the worker process never started"
        self.process.join(10)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"the worker process was killed by {signal.Signals(-code).name}"
        return f"the worker process ended with exit code {code}"

    def close(self) -> None:
        """Ask the process to stop: a run in progress is checkpointed first."""
        if self.process is not None and self.process.is_alive():
            self.process.terminate()


def run(
    jobs: Sequence[Job],
    devices: Sequence[str | None],
    told: Callable[[Now | Outcome], None] = lambda event: None,
) -> list[Outcome]:
    """Run the jobs, one process per device in the list (`["cpu", "cpu"]`: two processes). `told` hears of everything.

    A job that fails is tried once more, then reported; the others go on. KeyboardInterrupt stops the workers with a
    checkpoint each and is raised again.
    """
    waiting = deque((job, 1) for job in jobs)
    slots = [Slot(number, device) for number, device in enumerate(devices[: len(jobs)])]
    attempts: dict[int, int] = {}
    outcomes: list[Outcome] = []

    def fill(slot: Slot) -> None:
        if waiting:
            job, attempts[slot.number] = waiting.popleft()
            slot.give(job)

    def ended(slot: Slot, outcome: Outcome) -> None:
        job, slot.job = slot.job, None
        assert job is not None
        if outcome.status == FAILED and attempts[slot.number] < ATTEMPTS:
            # What it had checkpointed is not lost: the second attempt goes on from there.
            again = dataclasses.replace(job, resume=(job.path / run_dir.CONFIG).is_file())
            waiting.append((again, attempts[slot.number] + 1))
        else:
            outcomes.append(outcome)
            told(outcome)
        fill(slot)

    try:
        for slot in slots:
            fill(slot)
        while busy := [slot for slot in slots if slot.job is not None]:
            ready = wait([slot.pipe for slot in busy if slot.pipe is not None])
            for slot in busy:
                job, pipe = slot.job, slot.pipe
                if job is None or pipe is None or pipe not in ready:
                    continue
                try:
                    kind, content = pipe.recv()
                except (EOFError, OSError):
                    log, slot.pipe = slot.obituary(), None
                    ended(slot, Outcome(job, FAILED, log=log))
                    continue
                if kind == "now":
                    told(Now(slot.number, job, *content))
                else:
                    ended(slot, Outcome(job, seconds=time.monotonic() - slot.started, **content))
    finally:
        _stop(slots)
    return outcomes


def _stop(slots: Sequence[Slot]) -> None:
    for slot in slots:
        slot.close()
    deadline = time.monotonic() + _STOP_SECONDS
    for slot in slots:
        if slot.process is not None:
            slot.process.join(max(0.0, deadline - time.monotonic()))
            if slot.process.is_alive():
                slot.process.kill()


# -- in the worker process -------------------------------------------------------------------------------------------


class _Reporter(Callback):
    """Progress through the pipe, a few times a second. A broken pipe ends the worker: nobody is left to work for."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.accuracy: float | None = None
        self.said = 0.0

    def begin(self, title: str, step: int, steps: int) -> None:
        self.pipe.send(("now", (step, None)))

    def step(self, row: Row) -> None:
        now = time.monotonic()
        if now - self.said >= _REPORT_SECONDS:
            self.said = now
            self.pipe.send(("now", (int(row["step"] or 0) + 1, self.accuracy)))

    def evaluated(self, row: Row) -> None:
        self.accuracy = float(row["accuracy"] or 0)


class _StopRequest:
    """Ctrl-C reaches the whole process group and is the parent's business; SIGTERM is the parent's word to stop."""

    def __init__(self) -> None:
        self.heard = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._hear)

    def __call__(self) -> bool:
        return self.heard

    def _hear(self, *_: object) -> None:
        self.heard = True


def _work(pipe: Connection, device: str | None) -> None:
    """A worker's life: run what comes through the pipe until it closes. Data sets are kept from run to run."""
    stop = _StopRequest()
    tasks: dict[tuple[str, str | None], Any] = {}
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while not stop():
            if not pipe.poll(0.5):
                continue
            job: Job = pipe.recv()
            try:
                content = _run_one(job, device, tasks, _Reporter(pipe), stop)
            except (BrokenPipeError, ConnectionResetError):
                return
            except BaseException:
                content = {"status": FAILED, "log": traceback.format_exc()}
            pipe.send(("ended", content))


def _run_one(
    job: Job, device: str | None, tasks: dict[Any, Any], progress: _Reporter, stop: _StopRequest
) -> dict[str, Any]:
    from gyroscope.runs import training

    config = job.config if device is None else dataclasses.replace(job.config, device=device)
    key = (config.task, config.data_dir)
    if key not in tasks:
        tasks[key] = training.load_task(config, progress=False)
    if job.resume:
        machine = {"device": config.device, "threads": config.threads}
        result = training.resume(job.path, task=tasks[key], callbacks=[progress], stop=stop, machine=machine)
    else:
        result = training.train(config, task=tasks[key], out=job.path, overwrite=True, callbacks=[progress], stop=stop)
    return {"status": result.status, "max_accuracy": result.max_accuracy}

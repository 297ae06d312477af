"""A pool of worker processes that run experiments: reused from run to run, replaced when they crash.

The executors of the standard library do not fit: one crash there breaks the whole pool, and nothing reports what a
worker is doing. Here each worker has a pipe of its own; a crash costs one attempt at one run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope.runs import run_dir
from gyroscope.runs.callbacks import Callback, Row
from gyroscope.runs.config import Config
from gyroscope.simulation.task_metric import metric_text

if TYPE_CHECKING:
    from gyroscope.runs.result import Result

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
class JobOutcome:
    """How a job ended: `complete`, `diverged`, `interrupted`, or FAILED with a log."""

    job: Job
    status: str
    measured: str = ""
    """The best value of the task's metric, with its name."""
    seconds: float = 0.0
    log: str = ""


@dataclasses.dataclass(frozen=True)
class JobProgress:
    """The step that a worker has reached."""

    worker: int
    job: Job
    step: int
    measured: str
    """The last value of the task's metric, with its name."""


OnEvent = Callable[[JobProgress | JobOutcome], None]
"""Called with every event of the pool."""


class _PoolWorker:
    """One worker process, its pipe, and the job it is at."""

    def __init__(self, number: int, device: str | None) -> None:
        self.number, self.device = number, device
        self.job: Job | None = None
        self.attempt = 1
        self.started = 0.0
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None

    def start(self, job: Job, attempt: int) -> None:
        """Send a job to the process; a dead one is replaced first."""
        if self.process is None or not self.process.is_alive() or self.pipe is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, end = context.Pipe()
            self.process = context.Process(target=_work, args=(end, self.device), daemon=True)
            self.process.start()
            end.close()  # so that the worker's death shows as the end of the pipe
        self.job, self.attempt, self.started = job, attempt, time.monotonic()
        self.pipe.send(job)

    def receive(self) -> JobProgress | JobOutcome:
        """Return the next event of the job from the pipe, which must be ready."""
        assert self.job is not None and self.pipe is not None and self.process is not None
        try:
            content = self.pipe.recv()
        except (EOFError, OSError):
            self.pipe = None
            self.process.join(10)
            code = self.process.exitcode
            cause = (
                f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
            )
            return JobOutcome(self.job, FAILED, log=f"the worker process {cause}")
        if isinstance(content, tuple):
            return JobProgress(self.number, self.job, *content)
        return JobOutcome(self.job, seconds=time.monotonic() - self.started, **content)


def run(jobs: Sequence[Job], devices: Sequence[str | None], on_event: OnEvent = lambda event: None) -> list[JobOutcome]:
    """Run the jobs, one process per entry of `devices` (`["cpu", "cpu"]`: two processes).

    A job that fails is tried once more, then reported; the others go on. KeyboardInterrupt makes the workers write
    checkpoints and stop, and is raised again.
    """
    waiting = deque((job, 1) for job in jobs)
    workers = [_PoolWorker(number, device) for number, device in enumerate(devices[: len(jobs)])]
    outcomes: list[JobOutcome] = []
    try:
        while True:
            for worker in workers:
                if worker.job is None and waiting:
                    worker.start(*waiting.popleft())
            busy = {worker.pipe: worker for worker in workers if worker.job is not None and worker.pipe is not None}
            if not busy:
                return outcomes
            ready = wait(list(busy))
            for worker in [worker for pipe, worker in busy.items() if pipe in ready]:
                event = worker.receive()
                if isinstance(event, JobOutcome):
                    worker.job = None
                    if event.status == FAILED and worker.attempt < ATTEMPTS:
                        # The second attempt goes on from the last checkpoint.
                        resumable = (event.job.path / run_dir.CONFIG).is_file()
                        waiting.append((dataclasses.replace(event.job, resume=resumable), worker.attempt + 1))
                        continue
                    outcomes.append(event)
                on_event(event)
    finally:
        _stop([worker.process for worker in workers if worker.process is not None])


def _stop(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.terminate()  # a run in progress is checkpointed first
    deadline = time.monotonic() + _STOP_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()


# -- in the worker process -------------------------------------------------------------------------------------------


class _PipeReporter(Callback):
    """Report progress through the pipe, a few times a second. A broken pipe ends the worker: the parent is gone."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.measured = ""
        self.sent = 0.0

    def begin(self, title: str, step: int, steps: int) -> None:
        self.pipe.send((step, ""))

    def step(self, row: Row) -> None:
        now = time.monotonic()
        if now - self.sent >= _REPORT_SECONDS:
            self.sent = now
            self.pipe.send((int(row["step"] or 0) + 1, self.measured))

    def evaluated(self, row: Row) -> None:
        self.measured = metric_text(row)


def _work(pipe: Connection, device: str | None) -> None:
    """Run the jobs that arrive through the pipe until it closes. Data sets stay in memory from run to run."""
    stopping = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    tasks: dict[tuple[str, str | None], Any] = {}
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while not stopping.is_set():
            if not pipe.poll(0.5):
                continue
            job: Job = pipe.recv()
            content: dict[str, Any]
            try:
                result = run_job(job, device, tasks, callbacks=[_PipeReporter(pipe)], stop=stopping.is_set)
                content = {"status": result.status, "measured": result.best_text()}
            except (BrokenPipeError, ConnectionResetError):
                return
            except BaseException:
                content = {"status": FAILED, "log": traceback.format_exc()}
            pipe.send(content)


def run_job(
    job: Job, device: str | None = None, tasks: dict[tuple[str, str | None], Any] | None = None, **options: Any
) -> Result:
    """Run or resume one job in this process.

    Args:
        device: Used instead of the configuration's.
        tasks: Loaded tasks, kept from job to job.
        options: `callbacks` and `stop` of `gyroscope.runs.training.train`.
    """
    from gyroscope.runs import training

    config = job.config if device is None else dataclasses.replace(job.config, device=device)
    tasks = {} if tasks is None else tasks
    key = (config.task, config.data_dir)
    if key not in tasks:
        tasks[key] = training.load_task(config, progress=False)
    if job.resume:
        machine = {"device": config.device, "threads": config.threads}
        return training.resume(job.path, task=tasks[key], machine=machine, **options)
    return training.train(config, task=tasks[key], out=job.path, overwrite=True, **options)

"""The loop of an asynchronous run: events in the order of their time, each a model fetched or a gradient arrived.

A run is determined by its configuration, to the bit. There is no resuming: a run that was interrupted begins anew.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from gyroscope._core.errors import StorageError
from gyroscope._linalg import matrix
from gyroscope.research.asynchronous import dampening, events, kardam
from gyroscope.research.asynchronous.adversary import Adversary, Turn
from gyroscope.research.asynchronous.config import AsyncConfig
from gyroscope.research.asynchronous.filters import Arrival
from gyroscope.research.asynchronous.placement import Placement
from gyroscope.research.asynchronous.players import AsyncWorkers, Server
from gyroscope.research.asynchronous.shadow import CounterfactualFilter, other_order
from gyroscope.research.asynchronous.tables import AsyncRunDirectory, Row, arrival_row, metric_row, share_row
from gyroscope.runs import run_dir, setup
from gyroscope.runs.config import NO_ATTACK
from gyroscope.runs.progress import Progress, Silent
from gyroscope.runs.result import Result
from gyroscope.runs.schedule import Schedule
from gyroscope.runs.training import load_task
from gyroscope.simulation import tasks
from gyroscope.simulation.data.splits import Split
from gyroscope.simulation.evaluation import evaluate
from gyroscope.simulation.workers import SimulatedWorkers

if TYPE_CHECKING:
    import pandas

TABLES = (run_dir.METRICS, run_dir.EVALUATIONS, run_dir.WEIGHTS, run_dir.ARRIVALS)


@dataclasses.dataclass
class AsyncResult(Result):
    """How an asynchronous run went."""

    @property
    def arrivals(self) -> pandas.DataFrame:
        """One row per gradient that reached the server; docs/beyond/asynchronous.md explains the columns."""
        return self._frame(run_dir.ARRIVALS)


def train(
    config: AsyncConfig,
    *,
    task: tasks.Task | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> AsyncResult:
    """Simulate one asynchronous run.

    task: your own task; without it, the one that the configuration names.
    out: the run directory to write; without it, results are only returned.
    progress: who is told of each round (see `gyroscope.runs.progress`).
    stop: asked after every round of time; once it says True the run ends with the status `interrupted`, for good.
    """
    config = config.resolve(task)
    if config.data_dir is not None:
        config = dataclasses.replace(config, data_dir=os.path.abspath(config.data_dir))
    if out is not None:
        AsyncRunDirectory.check_free(Path(out), overwrite=overwrite)
    shown = progress or Silent()
    run = AsyncRun(config, task or load_task(config, not isinstance(shown, Silent)))
    if out is None:
        return run.go(None, shown, stop)
    with AsyncRunDirectory.create(out, run.config, overwrite=overwrite) as directory:
        assert isinstance(directory, AsyncRunDirectory)
        return run.go(directory, shown, stop)


@dataclasses.dataclass(frozen=True, eq=False)
class _Fetched:
    """What a worker is busy with: the model that it was given, and the gradient that it will send."""

    parameters: Tensor
    version: int
    gradient: Tensor | None = None
    vector: Tensor | None = None
    loss: float | None = None


class AsyncRun:
    """One run in memory."""

    def __init__(self, config: AsyncConfig, task: tasks.Task) -> None:
        threaded, honest = setup.simulated_workers(config, task)
        assert isinstance(threaded, AsyncConfig)
        self.config = config = threaded
        assert config.workers and config.lr and config.steps and config.evaluate_every
        assert config.mu is not None and config.declared_byzantine is not None
        self.steps, self.evaluate_every = config.steps, config.evaluate_every
        self.model, self.parameters = honest.model, honest.parameters
        self.test = Split.of(task.test).to(self.parameters.device)
        self.honest = honest.count
        self.crew = AsyncWorkers(honest)
        self.placement = Placement(config.momentum, self.parameters, config.workers, config.mu, config.nesterov)
        self.adversary = self._adversary(honest, config.momentum)
        self.schedule = Schedule.parse(config.lr)
        chosen = kardam.parse(config.filter)
        self.server = Server(
            self.parameters,
            config.workers,
            config.declared_byzantine,
            chosen,
            self.placement,
            dampening.parse(config.dampening),
            self.schedule,
        )
        self.shadow: CounterfactualFilter | None = None
        if config.compare_orders:
            other = self._adversary(honest, other_order(config.momentum))
            self.shadow = CounterfactualFilter(config, chosen, self.parameters, other)
        self.pace = config.pace()
        self.queue = events.plan(self.pace)
        self.busy: dict[int, _Fetched] = {}
        self.computed: collections.Counter[int] = collections.Counter()
        self.lies = 0
        self.step = 0
        self.tables: dict[str, list[Row]] = {table: [] for table in TABLES}
        self._round: list[Row] = []

    def _adversary(self, honest: SimulatedWorkers, place: str) -> Adversary | None:
        return None if self.config.attack == NO_ATTACK else Adversary(self.config, honest, place)

    def go(self, directory: AsyncRunDirectory | None, progress: Progress, stop: Callable[[], bool]) -> AsyncResult:
        """Let everything happen until the time is over."""
        progress.begin(self._title(), 0, self.steps)
        status = run_dir.COMPLETE
        try:
            self._evaluate(directory, progress)
            while self.step < self.steps:
                self._one_round(directory, progress)
                if not bool(matrix.all_finite(self.parameters)):
                    status = run_dir.DIVERGED
                    break
                if self.step % self.evaluate_every == 0 or self.step == self.steps:
                    self._evaluate(directory, progress)
                if stop() and self.step < self.steps:
                    status = run_dir.INTERRUPTED
                    break
        except Exception as problem:
            if directory and not isinstance(problem, StorageError):
                directory.set_status(run_dir.FAILED, step=self.step, reason=f"{type(problem).__name__}: {problem}")
            raise
        finally:
            progress.end()
        result = AsyncResult(
            self.config, status, self.step, self.model, directory.path if directory else None, self.tables
        )
        if directory and status == run_dir.INTERRUPTED:
            directory.set_status(status, step=self.step)
        elif directory:
            accuracies = {"max_accuracy": result.max_accuracy, "final_accuracy": result.final_accuracy}
            directory.finish(status, self.model.state_dict(), step=self.step, **accuracies)
        return result

    def _one_round(self, directory: AsyncRunDirectory | None, progress: Progress) -> None:
        """Everything that happens before the next whole number on the clock."""
        while True:
            event = self.queue.pop()
            if event.time >= self.step + 1:
                self.queue.push(event)
                break
            if event.kind == events.FETCH:
                self._fetch(event)
            else:
                self._arrive(event, directory)
        row = metric_row(self.step, self.schedule.at(self.step), self.server.version, self._round)
        shares = share_row(self.step, self.config.workers or 0, self._round)
        self._write(directory, run_dir.METRICS, row)
        if shares is not None:
            self._write(directory, run_dir.WEIGHTS, shares)
        self._round = []
        self.step += 1
        progress.step(row)

    def _fetch(self, event: events.Event) -> None:
        """A worker takes the model as it is now. An honest one's gradient is determined by that, so it is computed."""
        worker, count = event.worker, self.computed[event.worker]
        self.computed[worker] += 1
        version, parameters = self.server.version, self.parameters.clone()
        if worker < self.honest:
            loss, gradient = self.crew.gradient(worker, count)
            vector = self.placement.sent(worker, gradient, version)
            self.busy[worker] = _Fetched(parameters, version, gradient, vector, loss)
        else:
            self.busy[worker] = _Fetched(parameters, version)
        self.queue.push(events.Event(event.time + self.pace.duration(worker, count), events.ARRIVE, worker))

    def _arrive(self, event: events.Event, directory: AsyncRunDirectory | None) -> None:
        """A worker's gradient reaches the server, which judges it; then the worker goes on."""
        worker, fetched = event.worker, self.busy.pop(event.worker)
        liar = worker >= self.honest
        vector, shown = self._lies(worker, fetched) if liar else self._truth(worker, fetched)
        if vector is not None:
            arrival = Arrival(worker, vector, fetched.parameters, fetched.version)
            other = self.shadow.judge(arrival, shown) if self.shadow else None
            outcome = self.server.receive(arrival, self.step)
            row = arrival_row(event.time, worker, liar, fetched.version, fetched.loss, outcome, other)
            self._round.append(row)
            self._write(directory, run_dir.ARRIVALS, row)
        lasted = self.pace.duration(worker, self.computed[worker] - 1)
        self.queue.push(events.Event(event.time + self.pace.rest(worker, lasted), events.FETCH, worker))

    def _truth(self, worker: int, fetched: _Fetched) -> tuple[Tensor | None, Tensor | None]:
        """(what an honest worker sends, what it would send in the other order)."""
        assert fetched.gradient is not None and fetched.vector is not None
        if self.adversary:
            self.adversary.overhear(worker, fetched.vector)
        shown = self.shadow.honest(worker, fetched.gradient, fetched.version) if self.shadow else None
        return fetched.vector, shown

    def _lies(self, worker: int, fetched: _Fetched) -> tuple[Tensor | None, Tensor | None]:
        """(what a Byzantine worker sends, what it would send in the other order); None for nothing."""
        assert self.adversary is not None
        self.lies += 1
        turn = Turn(
            liar=worker - self.honest,
            number=self.lies,
            count=self.computed[worker] - 1,
            step=self.step,
            fetched=fetched.parameters,
            version=fetched.version,
            parameters=self.parameters,
        )
        return self.adversary.send(turn), self.shadow.lie(turn) if self.shadow else None

    def _write(self, directory: AsyncRunDirectory | None, table: str, row: Row) -> None:
        self.tables[table].append(row)
        if directory:
            directory.append(table, row)

    def _evaluate(self, directory: AsyncRunDirectory | None, progress: Progress) -> None:
        found = evaluate(self.model, self.test, self.config.seed)
        row: Row = {
            "step": self.step,
            "accuracy": found.accuracy,
            "correct": found.correct,
            "samples": found.samples,
        }
        self._write(directory, run_dir.EVALUATIONS, row)
        if directory:
            directory.flush()
        progress.evaluated(self.step, found.accuracy)

    def _title(self) -> str:
        config = self.config
        attack = "no attack" if config.attack == NO_ATTACK else f"{config.attack} x{config.byzantine}"
        return f"{config.task} asynchronous, filter {config.filter}, {attack}, momentum {config.momentum}"

"""The asynchronous run: events in the order of their time, each a model fetched or a gradient arrived.

A run is determined by its configuration, to the bit. There is no resuming: a run that was interrupted begins anew.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from gyroscope._core.clock import UNTIMED, Clock
from gyroscope.research.asynchronous import dampening, kardam, timing
from gyroscope.research.asynchronous.adversary import Adversary, Turn
from gyroscope.research.asynchronous.async_config import AsyncConfig, ResolvedAsyncConfig
from gyroscope.research.asynchronous.async_placement import AsyncPlacement
from gyroscope.research.asynchronous.async_tables import (
    ARRIVAL_COLUMNS,
    METRIC_COLUMNS,
    TableRow,
    arrival_row,
    metric_row,
    share_row,
)
from gyroscope.research.asynchronous.counterfactual import CounterfactualFilter, other_order
from gyroscope.research.asynchronous.filters import Arrival
from gyroscope.research.asynchronous.participants import AsyncServer, AsyncWorkers
from gyroscope.runs import run_dir, setup
from gyroscope.runs.callbacks import Callback
from gyroscope.runs.config import NO_ATTACK
from gyroscope.runs.loop import TrainingLoop
from gyroscope.runs.result import Result
from gyroscope.runs.run_dir import RunDirectory
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation import tasks
from gyroscope.simulation.data.splits import Split
from gyroscope.simulation.metrics import Number
from gyroscope.simulation.workers import SimulatedWorkers

if TYPE_CHECKING:
    import pandas


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
    callbacks: Sequence[Callback] = (),
    stop: Callable[[], bool] = lambda: False,
) -> AsyncResult:
    """Simulate one asynchronous run.

    Args:
        config: what to run.
        task: a task of your own; without it, the one that the configuration names.
        out: the run directory to write; without it, results are only returned.
        overwrite: whether to replace a run in `out`.
        callbacks: called at every round of time and evaluation.
        stop: asked after every round of time; once it returns True the run ends with the status `interrupted`, for
            good.
    """
    resolved = config.resolve(task)
    if resolved.data_dir is not None:
        resolved = dataclasses.replace(resolved, data_dir=os.path.abspath(resolved.data_dir))
    if out is not None:
        RunDirectory.check_free(Path(out), overwrite=overwrite)
    loaded = task or tasks.parse(resolved.task).load(resolved.data_dir, bool(callbacks))
    run = AsyncRun(resolved, loaded)
    if out is None:
        result = run.go(None, callbacks, stop)
    else:
        with RunDirectory.create(out, run.config, run.columns(run.config), overwrite=overwrite) as directory:
            result = run.go(directory, callbacks, stop)
    assert isinstance(result, AsyncResult)
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class _Fetched:
    """What a worker is busy with: the model that it was given, and the gradient that it will send."""

    parameters: Tensor
    version: int
    gradient: Tensor | None = None
    vector: Tensor | None = None
    loss: float | None = None


class AsyncRun(TrainingLoop):
    """One asynchronous run in memory; what the loop calls a round is a unit of simulated time."""

    config: ResolvedAsyncConfig
    result_type: ClassVar[type[Result]] = AsyncResult

    def __init__(self, config: ResolvedAsyncConfig, task: tasks.Task) -> None:
        self.config, honest = setup.simulated_workers(config, task)
        self.model, self.parameters = honest.model, honest.parameters
        self.test = Split.of(task.test).to(self.parameters.device)
        self.honest = honest.count
        self.workers = AsyncWorkers(honest)
        self.placement = AsyncPlacement(config.momentum, config.workers, config.mu, config.nesterov)
        self.adversary = self._adversary(honest, config.momentum)
        self.schedule = Schedule.parse(config.lr)
        chosen = kardam.parse(config.filter)
        self.server = AsyncServer(
            self.parameters,
            config.workers,
            config.declared_byzantine,
            chosen,
            self.placement,
            dampening.parse(config.dampening),
            self.schedule,
        )
        self.counterfactual: CounterfactualFilter | None = None
        if config.compare_orders:
            other = self._adversary(honest, other_order(config.momentum))
            self.counterfactual = CounterfactualFilter(config, chosen, self.parameters, other)
        self.pace = config.pace()
        self.queue = timing.plan(self.pace)
        self.busy: dict[int, _Fetched] = {}
        self.computed: collections.Counter[int] = collections.Counter()
        self.lies = 0
        self.tables = {table: [] for table in self.columns(self.config)}
        self._round: list[TableRow] = []

    @classmethod
    def columns(cls, config: Any) -> dict[str, Sequence[str]]:
        """Return the tables of such a run's directory, each with its columns."""
        own = {run_dir.METRICS: METRIC_COLUMNS, run_dir.ARRIVALS: ARRIVAL_COLUMNS}
        return {**super().columns(config), **own}

    def _adversary(self, honest: SimulatedWorkers, place: str) -> Adversary | None:
        return None if self.config.attack == NO_ATTACK else Adversary(self.config, honest, place)

    def play_round(self, directory: RunDirectory | None = None, clock: Clock = UNTIMED) -> dict[str, Number]:
        """Let everything happen before the next whole number on the clock."""
        while True:
            event = self.queue.pop()
            if event.time >= self.step + 1:
                self.queue.push(event)
                break
            if event.kind == timing.FETCH:
                self._fetch(event)
            else:
                self._arrive(event, directory)
        row = metric_row(self.step, self.schedule.at(self.step), self.server.version, self._round)
        shares = share_row(self.step, self.config.workers, self._round)
        self.record(directory, run_dir.METRICS, row)
        if shares is not None:
            self.record(directory, run_dir.WEIGHTS, shares)
        self._round = []
        self.step += 1
        return row

    def _fetch(self, event: timing.TimedEvent) -> None:
        """A worker takes the model as it is now. An honest one's gradient is determined by that, so it is computed."""
        worker, count = event.worker, self.computed[event.worker]
        self.computed[worker] += 1
        version, parameters = self.server.version, self.parameters.clone()
        if worker < self.honest:
            loss, gradient = self.workers.gradient(worker, count)
            vector = self.placement.sent(worker, gradient, version)
            self.busy[worker] = _Fetched(parameters, version, gradient, vector, loss)
        else:
            self.busy[worker] = _Fetched(parameters, version)
        self.queue.push(timing.TimedEvent(event.time + self.pace.duration(worker, count), timing.ARRIVE, worker))

    def _arrive(self, event: timing.TimedEvent, directory: RunDirectory | None) -> None:
        """A worker's gradient reaches the server, which judges it; then the worker goes on."""
        worker, fetched = event.worker, self.busy.pop(event.worker)
        liar = worker >= self.honest
        vector, shown = self._lies(worker, fetched) if liar else self._truth(worker, fetched)
        if vector is not None:
            arrival = Arrival(worker, vector, fetched.parameters, fetched.version)
            other = self.counterfactual.judge(arrival, shown) if self.counterfactual else None
            outcome = self.server.receive(arrival, self.step)
            row = arrival_row(event.time, worker, liar, fetched.version, fetched.loss, outcome, other)
            self._round.append(row)
            self.record(directory, run_dir.ARRIVALS, row)
        lasted = self.pace.duration(worker, self.computed[worker] - 1)
        self.queue.push(timing.TimedEvent(event.time + self.pace.rest(worker, lasted), timing.FETCH, worker))

    def _truth(self, worker: int, fetched: _Fetched) -> tuple[Tensor | None, Tensor | None]:
        """(what an honest worker sends, what it would send in the other order)."""
        assert fetched.gradient is not None and fetched.vector is not None
        if self.adversary:
            self.adversary.overhear(worker, fetched.vector)
        shown = self.counterfactual.honest(worker, fetched.gradient, fetched.version) if self.counterfactual else None
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
        return self.adversary.send(turn), self.counterfactual.lie(turn) if self.counterfactual else None

    def title(self) -> str:
        """Return one line that says what is run."""
        config = self.config
        attack = "no attack" if config.attack == NO_ATTACK else f"{config.attack} x{config.byzantine}"
        return f"{config.task} asynchronous, filter {config.filter}, {attack}, momentum {config.momentum}"

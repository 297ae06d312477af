"""The asynchronous run: events in the order of their time. In each, a worker fetches the model or a gradient arrives.

The configuration determines a run, to the bit. An interrupted run cannot be resumed: it begins anew.
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
from gyroscope.research.asynchronous.adversary import Adversary, ByzantineTurn
from gyroscope.research.asynchronous.async_config import AsyncConfig, ResolvedAsyncConfig
from gyroscope.research.asynchronous.async_placement import AsyncPlacement
from gyroscope.research.asynchronous.async_server import AsyncServer
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
from gyroscope.runs import run_dir, setup
from gyroscope.runs.callbacks import Callback
from gyroscope.runs.config import NO_ATTACK
from gyroscope.runs.loop import TrainingLoop
from gyroscope.runs.result import Result
from gyroscope.runs.run_dir import RunDirectory
from gyroscope.runs.schedule import Schedule
from gyroscope.runs.training import load_task
from gyroscope.simulation import tasks
from gyroscope.simulation.evaluation import TaskTest
from gyroscope.simulation.metrics import Number
from gyroscope.simulation.task_metric import ACCURACY, TaskMetric
from gyroscope.simulation.workers import SimulatedWorkers

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass
class AsyncResult(Result):
    """How an asynchronous run went."""

    @property
    def arrivals(self) -> pandas.DataFrame:
        """One row per gradient that reached the server; docs/beyond/asynchronous.md explains the columns."""
        return self.frame(run_dir.ARRIVALS)


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

    Returns:
        The result: status, tables, model.

    Raises:
        GyroscopeError: the configuration cannot run, data is missing, or the disk refuses a write.
    """
    resolved = config.resolve(task)
    if resolved.data_dir is not None:
        resolved = dataclasses.replace(resolved, data_dir=os.path.abspath(resolved.data_dir))
    if out is not None:
        RunDirectory.check_free(Path(out), overwrite=overwrite)
    run = AsyncRun(resolved, task or load_task(resolved, bool(callbacks)))
    if out is None:
        result = run.go(None, callbacks, stop)
    else:
        with RunDirectory.create(out, run.config, run.columns(run.config), overwrite=overwrite) as directory:
            result = run.go(directory, callbacks, stop)
    assert isinstance(result, AsyncResult)
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class _Fetched:
    """A computation under way: the model that the worker fetched, and what an honest worker will send."""

    parameters: Tensor
    version: int
    gradient: Tensor | None = None
    vector: Tensor | None = None
    """What it will send: the gradient, or with momentum at the workers the accumulated one."""
    loss: float | None = None


class AsyncRun(TrainingLoop):
    """One asynchronous run in memory; what the loop calls a round is a unit of simulated time."""

    config: ResolvedAsyncConfig
    result_type: ClassVar[type[Result]] = AsyncResult

    def __init__(self, config: ResolvedAsyncConfig, task: tasks.Task) -> None:
        self.config, honest = setup.simulated_workers(config, task)
        self.model, self.parameters = honest.model, honest.parameters
        self.test = TaskTest.of(task, self.model)
        self.honest = honest.count
        self.workers = [honest.alone(worker) for worker in range(honest.count)]
        """The honest workers, one by one: worker i's k-th batch is that of step k of a synchronous run."""
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
            self.counterfactual = CounterfactualFilter(config, chosen, other)
        self.timing = config.worker_timing()
        self.queue = timing.first_events(self.timing)
        self.busy: dict[int, _Fetched] = {}
        self.computed: collections.Counter[int] = collections.Counter()
        self.byzantine_turns = 0
        self.tables = {table: [] for table in self.columns(self.config, self.test.metric)}
        self._round: list[TableRow] = []

    @classmethod
    def columns(cls, config: Any, metric: TaskMetric = ACCURACY) -> dict[str, Sequence[str]]:
        """Return the tables of such a run's directory, each with its columns."""
        own = {run_dir.METRICS: METRIC_COLUMNS, run_dir.ARRIVALS: ARRIVAL_COLUMNS}
        return {**super().columns(config, metric), **own}

    def _adversary(self, honest: SimulatedWorkers, placement: str) -> Adversary | None:
        return None if self.config.attack == NO_ATTACK else Adversary(self.config, honest, placement)

    def play_round(self, directory: RunDirectory | None = None, clock: Clock = UNTIMED) -> dict[str, Number]:
        """Process all events of the next unit of time."""
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
        """Give a worker the model as it is now. That determines an honest worker's gradient, so it is computed here."""
        worker, count = event.worker, self.computed[event.worker]
        self.computed[worker] += 1
        version, parameters = self.server.version, self.parameters.clone()
        if worker < self.honest:
            losses, rows = self.workers[worker].sample(count)
            vector = self.placement.sent(worker, rows[0], version)
            self.busy[worker] = _Fetched(parameters, version, rows[0], vector, float(losses[0]))
        else:
            self.busy[worker] = _Fetched(parameters, version)
        self.queue.push(timing.TimedEvent(event.time + self.timing.duration(worker, count), timing.ARRIVE, worker))

    def _arrive(self, event: timing.TimedEvent, directory: RunDirectory | None) -> None:
        """Let the server judge a worker's gradient; then the worker goes on."""
        worker, fetched = event.worker, self.busy.pop(event.worker)
        byzantine = worker >= self.honest
        send = self._send_byzantine if byzantine else self._send_honest
        vector, in_other_order = send(worker, fetched)
        if vector is not None:
            arrival = Arrival(worker, vector, fetched.parameters, fetched.version)
            other = self.counterfactual.judge(arrival, in_other_order) if self.counterfactual else None
            outcome = self.server.receive(arrival, self.step)
            row = arrival_row(event.time, worker, byzantine, fetched.version, fetched.loss, outcome, other)
            self._round.append(row)
            self.record(directory, run_dir.ARRIVALS, row)
        lasted = self.timing.duration(worker, self.computed[worker] - 1)
        self.queue.push(timing.TimedEvent(event.time + self.timing.rest(worker, lasted), timing.FETCH, worker))

    def _send_honest(self, worker: int, fetched: _Fetched) -> tuple[Tensor | None, Tensor | None]:
        """Return what an honest worker sends, and what it would send in the other order."""
        assert fetched.gradient is not None and fetched.vector is not None
        if self.adversary:
            self.adversary.observe(worker, fetched.vector)
        other = self.counterfactual.honest(worker, fetched.gradient, fetched.version) if self.counterfactual else None
        return fetched.vector, other

    def _send_byzantine(self, worker: int, fetched: _Fetched) -> tuple[Tensor | None, Tensor | None]:
        """Return what a Byzantine worker sends, and what it would send in the other order; None for nothing."""
        assert self.adversary is not None
        self.byzantine_turns += 1
        turn = ByzantineTurn(
            index=worker - self.honest,
            number=self.byzantine_turns,
            count=self.computed[worker] - 1,
            step=self.step,
            fetched=fetched.parameters,
            version=fetched.version,
            parameters=self.parameters,
        )
        return self.adversary.send(turn), self.counterfactual.byzantine(turn) if self.counterfactual else None

    def title(self) -> str:
        """Return one line that says what is run."""
        config = self.config
        attack = "no attack" if config.attack == NO_ATTACK else f"{config.attack} x{config.byzantine}"
        return f"{config.task} asynchronous, filter {config.filter}, {attack}, momentum {config.momentum}"

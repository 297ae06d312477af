"""The run behind `ReplicatedConfig`: the core's run with a round of several servers, and drift.csv."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from gyroscope._core.clock import Clock
from gyroscope._core.errors import ConfigError
from gyroscope.research.replicated import drift
from gyroscope.research.replicated.replicated_config import ResolvedReplicatedConfig
from gyroscope.research.replicated.replicated_round import play_replicated_round
from gyroscope.research.replicated.servers import Servers
from gyroscope.runs import run_dir
from gyroscope.runs.result import Result
from gyroscope.runs.run_dir import RunDirectory
from gyroscope.runs.training import Run, WorkerFactory
from gyroscope.simulation import tasks
from gyroscope.simulation.metrics import Number
from gyroscope.simulation.round import Round
from gyroscope.simulation.task_metric import ACCURACY, TaskMetric
from gyroscope.simulation.workers import SimulatedWorkers

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass
class ReplicatedResult(Result):
    """The result of a run with several servers."""

    @property
    def drift(self) -> pandas.DataFrame:
        """How far the honest servers' models were apart; docs/beyond/servers.md explains the columns."""
        return self.frame(run_dir.DRIFT)


class ReplicatedRun(Run):
    """Play rounds with several servers."""

    config: ResolvedReplicatedConfig
    result_type: ClassVar[type[Result]] = ReplicatedResult

    def __init__(
        self, config: ResolvedReplicatedConfig, task: tasks.Task, worker_factory: WorkerFactory | None = None
    ) -> None:
        if worker_factory:
            raise ConfigError(
                "several servers exist in the simulation only (gyroscope train): with worker processes, leave servers "
                "out"
            )
        super().__init__(config, task)
        replication = config.replication()
        aggregators = [self.make_aggregator() for _ in range(replication.honest)]
        self.servers = Servers(self.parameters, aggregators, replication)

    @classmethod
    def columns(cls, config: Any, metric: TaskMetric = ACCURACY) -> dict[str, Sequence[str]]:
        """Return the tables of such a run's directory, each with its columns."""
        return {**super().columns(config, metric), run_dir.DRIFT: drift.COLUMNS}

    def compute_round(self, clock: Clock) -> Round:
        workers = self.round_config.workers
        assert isinstance(workers, SimulatedWorkers)
        lr = self.schedule.at(self.step)
        return play_replicated_round(self.round_config, self.round_state, self.servers, workers, self.step, lr, clock)

    def record_round(self, directory: RunDirectory | None, row: dict[str, Number], weight: Tensor | None) -> None:
        super().record_round(directory, row, weight)
        self.record(directory, run_dir.DRIFT, self.servers.drift)

    def state(self) -> dict[str, Any]:
        """Return all that later rounds depend on."""
        return {**super().state(), "servers": self.servers.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        super().load_state(state)
        self.servers.load_state_dict(state["servers"])

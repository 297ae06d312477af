"""The server of the ready app: rounds with a robust strategy, the accuracy after each, a run directory."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid

from gyroscope.integrations.flower.client import load_task
from gyroscope.integrations.flower.settings import Settings
from gyroscope.integrations.flower.strategy import RobustStrategy
from gyroscope.runs import events, run_dir
from gyroscope.runs.events import EventLog
from gyroscope.runs.run_dir import RunDirectory
from gyroscope.runs.setup import first_model
from gyroscope.simulation.evaluation import TaskTest

log = logging.getLogger("flwr")


def serve(grid: Grid, context: Context) -> None:
    """Train with the nodes of the grid by the run configuration, and record it in a run directory."""
    settings = Settings.of(context.run_config)
    with Recorder(settings) as recorder:
        strategy = RobustStrategy(
            rule=settings.rule,
            f=settings.f,
            n=settings.nodes,
            server_momentum=settings.mu if settings.momentum == "server" else 0.0,
            patience=settings.patience,
            seed=settings.seed,
            on_event=recorder.log.add,
            on_weights=recorder.weights,
        )
        arrays = ArrayRecord(recorder.model.state_dict())
        result = strategy.start(grid, arrays, settings.rounds, settings.timeout, evaluate_fn=recorder.evaluate)
        recorder.finish(result.arrays)


class Recorder:
    """The run directory of a Flower run: the files of any run but the measures, plus events.csv and flower.toml.

    Only the server's own evaluation counts: what a node reports proves nothing.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        task = load_task(settings.task, settings.data_dir)
        self.model = first_model(task, settings.seed)
        self.test = TaskTest.of(task, self.model)
        self.rounds = 0
        self.measured: list[float] = []
        rule = re.sub("[:=,/]", "_", settings.rule)
        name = f"flower-{settings.task.split(':')[0]}-{rule}-f_{settings.f}-{settings.momentum}-seed_{settings.seed}"
        path = run_dir.free_path(Path(settings.out) if settings.out else Path("runs") / name)
        self.directory = RunDirectory.create(path, settings.config(), run_dir.columns(settings.nodes, self.test.metric))
        self.log = EventLog(path)

    def __enter__(self) -> Recorder:
        path = self.directory.path
        with run_dir.disk_errors(path, "start"):
            (path / run_dir.FLOWER).write_text(self.settings.to_toml(), encoding="utf-8")
        self.log.add(0, events.STARTED, None, f"waiting for {self.settings.nodes} nodes")
        log.info("run directory: %s", path.resolve())
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if problem is not None:
            reason = f"{type(problem).__name__}: {problem}"
            self.directory.set_status(run_dir.FAILED, step=self.rounds, reason=reason)
            self.log.add(self.rounds, events.STOPPED, None, reason)
        self.directory.close()

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """Measure the task's metric on the test set after a round; round 0 is the start."""
        self.model.load_state_dict(arrays.to_torch_state_dict())
        row = self.test.row(server_round, self.model, self.settings.seed)
        self.rounds = server_round
        self.measured.append(float(row[self.test.metric.name] or 0))
        self.directory.append(run_dir.EVALUATIONS, row)
        self.directory.flush()
        return MetricRecord({self.test.metric.name: self.measured[-1]})

    def weights(self, server_round: int, shares: Sequence[float]) -> None:
        """Record each worker's share in the aggregate of a round; steps of this table count from 0."""
        columns = {f"worker_{worker}": share for worker, share in enumerate(shares)}
        self.directory.append(run_dir.WEIGHTS, {"step": server_round - 1, **columns})

    def finish(self, arrays: ArrayRecord) -> None:
        """Write the final model, and end the run."""
        facts = run_dir.metric_facts(self.test.metric, self.test.metric.best(self.measured), self.measured[-1])
        self.directory.finish(run_dir.COMPLETE, arrays.to_torch_state_dict(), step=self.rounds, **facts)
        self.log.add(self.rounds, events.FINISHED, None, run_dir.COMPLETE)

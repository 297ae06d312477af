"""What the server of the ready app does: rounds with a robust strategy, the accuracy after each, a run directory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid

from gyroscope.integrations.flower.client import load_task
from gyroscope.integrations.flower.settings import Settings
from gyroscope.integrations.flower.strategy import Event, RobustStrategy
from gyroscope.runs import events, run_dir
from gyroscope.runs.events import Events
from gyroscope.runs.run_dir import RunDirectory
from gyroscope.runs.setup import first_model
from gyroscope.simulation.data.splits import Split
from gyroscope.simulation.evaluation import evaluate

log = logging.getLogger("flwr")


def serve(grid: Grid, context: Context) -> None:
    """Train with the nodes of the grid as the run configuration says, and record it."""
    settings = Settings.of(context.run_config)
    with Recorder(settings) as recorder:
        strategy = RobustStrategy(
            rule=settings.rule,
            f=settings.f,
            n=settings.nodes,
            server_momentum=settings.mu if settings.momentum == "server" else 0.0,
            patience=settings.patience,
            seed=settings.seed,
            on_event=recorder.event,
            on_weights=recorder.weights,
        )
        recorder.begin()
        result = strategy.start(
            grid,
            initial_arrays=recorder.arrays(),
            num_rounds=settings.rounds,
            timeout=settings.timeout,
            evaluate_fn=recorder.evaluate,
        )
        recorder.finish(result.arrays)


class Recorder:
    """The run directory of a Flower run: what any run has but the measures, plus events.csv and flower.toml.

    Only the server's own evaluation counts: what nodes say about their accuracy proves nothing.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.task = load_task(settings.task, settings.data_dir)
        self.model = first_model(self.task, settings.seed)
        self.test = Split.of(self.task.test)
        self.accuracies: list[float] = []
        config = settings.config(self.task.defaults.batch)
        self.directory = RunDirectory.create(_free(settings), config, run_dir.columns(config.workers))
        self.log = Events()

    def begin(self) -> None:
        """The files that other runs do not have."""
        path = self.directory.path
        with run_dir.disk_errors(path, "start"):
            (path / run_dir.FLOWER).write_text(self.settings.to_toml(), encoding="utf-8")
        self.log.write_to(path)
        self.log.add(events.STARTED, None, f"waiting for {self.settings.nodes} nodes")
        log.info("run directory: %s", path.resolve())

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if problem is not None:
            reason = f"{type(problem).__name__}: {problem}"
            self.directory.set_status(run_dir.FAILED, step=self.rounds_played, reason=reason)
            self.log.step = self.rounds_played
            self.log.add(events.STOPPED, None, reason)
        self.directory.close()

    @property
    def rounds_played(self) -> int:
        return max(0, len(self.accuracies) - 1)

    def arrays(self) -> ArrayRecord:
        """Where training begins."""
        return ArrayRecord(self.model.state_dict())

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """The accuracy on the test set after a round; round 0 is the start."""
        self.model.load_state_dict(arrays.to_torch_state_dict())
        result = evaluate(self.model, self.test, self.settings.seed)
        self.accuracies.append(result.accuracy)
        row = {"step": server_round, "accuracy": result.accuracy, "correct": result.correct, "samples": result.samples}
        self.directory.append(run_dir.EVALUATIONS, row)
        self.directory.flush()
        return MetricRecord({"accuracy": result.accuracy})

    def weights(self, server_round: int, shares: Sequence[float]) -> None:
        """Each seat's share in the aggregate of a round; rounds count from 0 in this table, as everywhere."""
        columns = {f"worker_{seat}": share for seat, share in enumerate(shares)}
        self.directory.append(run_dir.WEIGHTS, {"step": server_round - 1, **columns})

    def event(self, event: Event) -> None:
        """Somebody joined, was rejected, or a round was skipped. Readable at once, while the run goes on."""
        self.log.step = event.round - 1
        self.log.add(event.event, event.seat, event.reason, "" if event.node is None else f"node {event.node}")

    def finish(self, arrays: ArrayRecord) -> None:
        self.directory.finish(
            run_dir.COMPLETE,
            arrays.to_torch_state_dict(),
            step=self.rounds_played,
            max_accuracy=max(self.accuracies),
            final_accuracy=self.accuracies[-1],
        )
        self.log.step = self.rounds_played
        self.log.add(events.FINISHED, None, run_dir.COMPLETE)


def _free(settings: Settings) -> Path:
    """The directory that was asked for, or one under `runs` that says what is in it; a number where it is taken."""
    rule = settings.rule.replace(":", "_").replace("=", "_").replace(",", "_").replace("/", "_")
    name = f"flower-{settings.task.split(':')[0]}-{rule}-f_{settings.f}-{settings.momentum}-seed_{settings.seed}"
    wanted = Path(settings.out) if settings.out else Path("runs") / name
    candidate, number = wanted, 2
    while candidate.exists():
        candidate, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return candidate

"""The training loop: rounds, evaluations, checkpoints and callbacks, for every kind of run."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._core.errors import RoundAbandonedError, StorageError
from gyroscope._linalg import matrix
from gyroscope.runs import run_dir
from gyroscope.runs.callbacks import Callback
from gyroscope.runs.config import ResolvedCommon
from gyroscope.runs.result import Result
from gyroscope.runs.run_dir import RunDirectory
from gyroscope.simulation.evaluation import TaskTest
from gyroscope.simulation.metrics import Number
from gyroscope.simulation.task_metric import ACCURACY, TaskMetric

CHECKPOINT_SECONDS = 30.0


class TrainingLoop(ABC):
    """One run in memory. A subclass plays a round; everything around the rounds is here."""

    config: ResolvedCommon
    model: nn.Module
    parameters: Tensor
    test: TaskTest
    tables: dict[str, list[dict[str, Number]]]
    """The rows of the tables; with a run directory, which has them all, only those of the evaluations."""
    step: int = 0
    reason: str = ""
    """Why the run was interrupted, where nobody asked for it."""
    result_type: ClassVar[type[Result]] = Result
    _warned_of_loss = False

    @abstractmethod
    def play_round(self, directory: RunDirectory | None = None, clock: Clock = UNTIMED) -> dict[str, Number]:
        """Play, measure and record one round, and count it; return its measures."""

    @abstractmethod
    def title(self) -> str:
        """Return one line that says what is run."""

    def state(self) -> dict[str, Any] | None:
        """Return the content of a checkpoint; None for a kind of run that cannot be resumed."""
        return None

    @classmethod
    def columns(cls, config: Any, metric: TaskMetric = ACCURACY) -> dict[str, Sequence[str]]:
        """Return the tables of such a run's directory, each with its columns."""
        return run_dir.columns(config.workers, metric)

    def go(
        self,
        directory: RunDirectory | None,
        callbacks: Sequence[Callback],
        stop: Callable[[], bool],
        clock: Clock = UNTIMED,
    ) -> Result:
        """Play the rounds that are left.

        Args:
            directory: where to record; None to keep the tables in memory only.
            callbacks: called in this order at every round and evaluation.
            stop: called after every round; once it returns True the run ends with the status `interrupted`.
            clock: measures where the time goes.
        """
        for callback in callbacks:
            callback.begin(self.title(), self.step, self.config.steps)
        saved = begun = time.monotonic()
        begun_processor = time.process_time()
        status = run_dir.COMPLETE
        try:
            clock.start()
            if not self.tables[run_dir.EVALUATIONS]:
                self.evaluate(directory, callbacks, clock)
            while self.step < self.config.steps:
                row = self.play_round(directory, clock)
                for callback in callbacks:
                    callback.step(row)
                if not bool(matrix.all_finite(self.parameters)):
                    status = run_dir.DIVERGED
                    break
                clock.lap("record")
                if self.step % self.config.evaluate_every == 0 or self.step == self.config.steps:
                    self.evaluate(directory, callbacks, clock)
                if stop() and self.step < self.config.steps:
                    status = run_dir.INTERRUPTED
                    break
                if directory and self.step < self.config.steps and self._checkpoint_due(saved):
                    self._save_checkpoint(directory)
                    saved = time.monotonic()
                clock.lap("record")
        except RoundAbandonedError as problem:
            status, self.reason = run_dir.INTERRUPTED, str(problem)
        except Exception as problem:
            if directory and not isinstance(problem, StorageError):
                directory.set_status(run_dir.FAILED, step=self.step, reason=f"{type(problem).__name__}: {problem}")
            raise
        finally:
            for callback in callbacks:
                callback.end()
        if directory:
            directory.end_session(
                seconds=time.monotonic() - begun, processor_seconds=time.process_time() - begun_processor
            )
        result = self.result(status, directory)
        if directory and status == run_dir.INTERRUPTED:
            self._save_checkpoint(directory)
            directory.set_status(status, step=self.step)
        elif directory:
            facts = run_dir.metric_facts(result.metric, result.best, result.final)
            directory.finish(status, self.model.state_dict(), step=self.step, **facts)
        return result

    def evaluate(self, directory: RunDirectory | None, callbacks: Sequence[Callback], clock: Clock = UNTIMED) -> None:
        """Measure metric and loss on the test set, and record them."""
        row = self.test.row(self.step, self.model, self.config.seed)
        clock.lap("evaluation")
        self._look_at_loss(row["test_loss"])
        self.record(directory, run_dir.EVALUATIONS, row)
        if directory:
            directory.flush()
        for callback in callbacks:
            callback.evaluated(row)
        clock.lap("record")

    def _look_at_loss(self, loss: Number) -> None:
        """Warn once of a loss below zero: most likely nll_loss is given outputs that are no log-probabilities."""
        if self._warned_of_loss or loss is None or not loss < 0:
            return
        self._warned_of_loss = True
        warnings.warn(
            f"the loss on the test set is {loss:.4g} after {self.step} steps, and one such as cross-entropy or a "
            "squared error is never below zero. nll_loss needs log-probabilities: end the model with "
            "LogSoftmax(dim=1), or use cross_entropy on plain outputs. (Go on if your loss may be negative.)",
            stacklevel=2,
        )

    def record(self, directory: RunDirectory | None, table: str, row: Mapping[str, Number]) -> None:
        """Add a row to a table: in the run directory, or in memory where there is none.

        A server may play rounds for weeks, and a row per round takes some kilobytes of memory. Evaluations are few.
        """
        if directory is None or table == run_dir.EVALUATIONS:
            self.tables[table].append(dict(row))
        if directory:
            directory.append(table, row)

    def result(self, status: str, directory: RunDirectory | None) -> Result:
        """Return how the run went so far."""
        path, tables = None, self.tables
        if directory:
            directory.flush()
            path, tables = directory.path, {table: directory.rows(table) for table in self.tables}
        return self.result_type(self.config, status, self.step, self.model, path, tables, self.reason, self.test.metric)

    def _checkpoint_due(self, saved: float) -> bool:
        every = getattr(self.config, "checkpoint_every", None)
        return time.monotonic() - saved >= CHECKPOINT_SECONDS if every is None else self.step % every == 0

    def _save_checkpoint(self, directory: RunDirectory) -> None:
        try:
            state = self.state()
        except RoundAbandonedError:  # a part of it ended with another process: the last checkpoint stays
            return
        if state is not None:
            directory.save_checkpoint(state)

"""The scalars of a run for TensorBoard, Weights & Biases and MLflow, each of which is an extra of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyroscope._core.errors import ConfigError
from gyroscope._core.files import write_atomically
from gyroscope._core.optional import extra
from gyroscope.runs import run_dir
from gyroscope.runs.callbacks import Callback, Row

_PROJECT = "gyroscope"
"""The project in W&B and the experiment in MLflow, where their environment variables name no other."""
_BATCH = 500
"""Values that go to MLflow at once; it takes at most 1,000."""


class Tracker(Callback, ABC):
    """Give every number of a run to another program, as a scalar by name and step."""

    def __init__(self, directory: str | Path | None, settings: Mapping[str, object]) -> None:
        """Check what can be checked before the run begins.

        Args:
            directory: The run directory, if there is one.
            settings: The configuration of the run, by name.

        Raises:
            MissingExtraError: The package of this program is not installed.
            ConfigError: The program cannot be used as it is configured.
        """
        self.directory = None if directory is None else Path(directory)
        self.settings = {name: value for name, value in settings.items() if value is not None}
        self.left = 0

    @abstractmethod
    def open(self, title: str, step: int) -> None:
        """Begin to record, or go on at `step`."""

    @abstractmethod
    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Record the scalars of a step. Steps never decrease; one step may come twice, with other names."""

    @abstractmethod
    def close(self, complete: bool) -> None:
        """End the record of a run that took all of its steps, or not."""

    def begin(self, title: str, step: int, steps: int) -> None:
        self.left = steps - step
        self.open(self.directory.name if self.directory else title, step)

    def step(self, row: Row) -> None:
        self.left -= 1
        self.evaluated(row)

    def evaluated(self, row: Row) -> None:
        scalars = {name: float(value) for name, value in row.items() if name != "step" and value is not None}
        self.write(scalars, int(row["step"] or 0))

    def end(self) -> None:
        self.close(complete=self.left <= 0)

    def known_id(self) -> str | None:
        """Return under which id the program knows this run, if an earlier session has recorded it."""
        ids: dict[str, str] = self._ids()
        return ids.get(type(self).__name__)

    def keep_id(self, name: str) -> None:
        """Write the run's id into its directory, so that a resumed run goes on in the same record."""
        if self.directory:
            ids = {**self._ids(), type(self).__name__: name}
            write_atomically(self.directory / run_dir.TRACKERS, json.dumps(ids).encode())

    def _ids(self) -> dict[str, str]:
        path = self.directory and self.directory / run_dir.TRACKERS
        return json.loads(path.read_text(encoding="utf-8")) if path and path.is_file() else {}


class TensorBoard(Tracker):
    """Write TensorBoard's files into the run directory."""

    def __init__(self, directory: str | Path | None, settings: Mapping[str, object]) -> None:
        super().__init__(directory, settings)
        if directory is None:
            raise ConfigError("--tensorboard needs a run directory to write to: name one with --out")
        with extra("tensorboard", "--tensorboard"):
            import torch.utils.tensorboard  # noqa: F401
        self.path = Path(directory) / run_dir.BOARD

    def open(self, title: str, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.path), purge_step=step)

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, step)

    def close(self, complete: bool) -> None:
        self.writer.close()


class WandB(Tracker):
    """Write a run of Weights & Biases, into the run directory's folder wandb if there is one.

    Nothing leaves the machine unless WANDB_MODE says `online`: without that variable the run is offline, which needs no
    account, and `wandb sync` uploads it.
    """

    def __init__(self, directory: str | Path | None, settings: Mapping[str, object]) -> None:
        super().__init__(directory, settings)
        with extra("wandb", "--wandb"):
            import wandb  # noqa: F401

    def open(self, title: str, step: int) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        try:
            self.run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", _PROJECT),
                name=title,
                id=self.known_id(),
                resume="allow",
                dir=self.directory,
                config=self.settings,
                mode=mode,
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as problem:
            raise ConfigError(
                f"--wandb cannot begin a run with WANDB_MODE={mode}: {problem}; set WANDB_MODE=offline, which needs no "
                "account"
            ) from problem
        self.keep_id(self.run.id)

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        self.run.log(dict(scalars), step=step)

    def close(self, complete: bool) -> None:
        self.run.finish(exit_code=0 if complete else 1)


class MLflow(Tracker):
    """Write a run of MLflow where MLFLOW_TRACKING_URI says; by default MLflow makes a database in the current folder.

    A server of MLflow that fails while the run goes on costs the rest of the record, and not the run.
    """

    def __init__(self, directory: str | Path | None, settings: Mapping[str, object]) -> None:
        super().__init__(directory, settings)
        with extra("mlflow", "--mlflow"):
            import mlflow
            import sqlalchemy  # noqa: F401
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        try:
            self.client = mlflow.MlflowClient()
            known = self.client.get_experiment_by_name(name)
            self.experiment = known.experiment_id if known else self.client.create_experiment(name)
        except mlflow.MlflowException as problem:
            raise ConfigError(
                f"--mlflow cannot use the experiment {name!r} at {mlflow.get_tracking_uri()}: {problem}; set "
                "MLFLOW_TRACKING_URI to a database or server that can be reached, such as sqlite:///mlflow.db"
            ) from problem
        self.waiting: list[Any] = []
        self.failed = False

    def open(self, title: str, step: int) -> None:
        from mlflow.entities import Param

        self.run = self.known_id()
        if self.run is None:
            self.run = self.client.create_run(self.experiment, run_name=title).info.run_id
            params = [Param(name, str(value)) for name, value in self.settings.items()]
            self.client.log_batch(self.run, params=params)
            self.keep_id(self.run)
        else:
            self.client.update_run(self.run, status="RUNNING")

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self.waiting += [Metric(name, value, now, step) for name, value in scalars.items()]
        if len(self.waiting) >= _BATCH:
            self._send()

    def close(self, complete: bool) -> None:
        import mlflow

        self._send()
        try:
            self.client.set_terminated(self.run, status="FINISHED" if complete else "KILLED")
        except mlflow.MlflowException as problem:
            self._give_up(problem)

    def _send(self) -> None:
        import mlflow

        try:
            while self.waiting and not self.failed:
                self.client.log_batch(self.run, metrics=self.waiting[:_BATCH])
                del self.waiting[:_BATCH]
        except mlflow.MlflowException as problem:
            self._give_up(problem)

    def _give_up(self, problem: Exception) -> None:
        if not self.failed:
            print(f"--mlflow: the run goes on, and its record ends here: {problem}", file=sys.stderr)
        self.failed = True
        self.waiting.clear()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
"""By the name of the option and of the extra."""


def make(directory: str | Path | None, settings: Mapping[str, object], **wanted: bool) -> list[Tracker]:
    """Return the trackers that are wanted, by their names in `TRACKERS`; for the arguments and errors see `Tracker`."""
    return [kind(directory, settings) for name, kind in TRACKERS.items() if wanted[name]]

"""A run directory: configuration, metrics, evaluations, per-worker weights, environment, status, checkpoint, model.

A crash at any moment leaves a directory that can be resumed. Small files are replaced atomically. Tables only grow, are
on disk before the checkpoint that speaks of them, and are cut back to that checkpoint on resuming.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from gyroscope._core.errors import RunDirectoryError, StorageError
from gyroscope._core.files import PART, write_atomically
from gyroscope.runs.config import CommonConfig, Config
from gyroscope.runs.environment import environment
from gyroscope.simulation.metrics import COLUMNS, Number
from gyroscope.simulation.task_metric import ACCURACY, TaskMetric

CONFIG, ENVIRONMENT, STATUS = "config.toml", "environment.json", "status.json"
METRICS, EVALUATIONS, WEIGHTS = "metrics.csv", "evaluations.csv", "workers.csv"
CHECKPOINT, MODEL, LOCK = "checkpoint.pt", "model.pt", ".lock"
TRACKERS, BOARD, WANDB = "trackers.json", "tensorboard", "wandb"  # only where a tracker writes
DRIFT = "drift.csv"  # only where there are several servers
EVENTS = "events.csv"  # only where workers are separate processes
ARRIVALS = "arrivals.csv"  # only in asynchronous runs
FLOWER = "flower.toml"  # only in the runs of gyroscope.integrations.flower
_OWN = (
    CONFIG, ENVIRONMENT, STATUS, METRICS, EVALUATIONS, WEIGHTS, DRIFT, EVENTS, ARRIVALS, CHECKPOINT, MODEL, LOCK,
    FLOWER, TRACKERS, BOARD, WANDB,
)  # fmt: skip

_UNFINISHED = (PART, ".new")  # the second is 0.1's

RUNNING, COMPLETE, DIVERGED, INTERRUPTED, FAILED = "running", "complete", "diverged", "interrupted", "failed"

_NOT_RESUMABLE = {
    FLOWER: ("a Flower app", "start it anew: flwr run"),
    ARRIVALS: ("an asynchronous run", "begin anew: gyroscope async --overwrite"),
}
"""Files that only runs have that cannot be resumed: whose they are, and what to do instead."""


def columns(workers: int, metric: TaskMetric = ACCURACY) -> dict[str, Sequence[str]]:
    """Return the tables that every synchronous run of a task with this metric has, each with its columns."""
    weights = ("step", *(f"worker_{worker}" for worker in range(workers)))
    return {METRICS: COLUMNS, EVALUATIONS: metric.columns(), WEIGHTS: weights}


def metric_facts(metric: TaskMetric, best: float, final: float) -> dict[str, Number | str]:
    """Return what status.json holds of a run's evaluations. Accuracies have the names that they had in 0.1."""
    if metric == ACCURACY:
        return {"max_accuracy": best, "final_accuracy": final}
    return {"metric": metric.name, "better": metric.better, "percent": metric.percent, "best": best, "final": final}


def free_path(wanted: Path) -> Path:
    """Return the path, with a number appended where it exists already."""
    candidate, number = wanted, 2
    while candidate.exists():
        candidate, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return candidate


class RunDirectory(contextlib.AbstractContextManager["RunDirectory"]):
    """The files of one run, locked for this process. Open it with `create` or `reopen`, in a `with` block."""

    def __init__(self, path: Path, columns: Mapping[str, Sequence[str]]) -> None:
        self.path = path
        self.columns = columns
        """The tables, each with its columns."""
        self._tables: dict[str, IO[str]] = {}
        self._lock: IO[str] | None = None

    @classmethod
    def create(
        cls, path: str | Path, config: CommonConfig, columns: Mapping[str, Sequence[str]], *, overwrite: bool = False
    ) -> RunDirectory:
        """Begin a new run directory: write the configuration, and each table with its columns.

        With `overwrite` a run that is there is replaced; files of other names stay.

        Raises:
            RunDirectoryError: the directory holds a run or other files, or another process uses it.
            StorageError: the disk refuses a write.
        """
        path = Path(path)
        cls.check_free(path, overwrite=overwrite)
        directory = cls(path, columns)
        try:
            with disk_errors(path, "start"):
                directory._begin(config)
        except BaseException:
            directory.close()
            raise
        return directory

    @classmethod
    def check_free(cls, path: Path, *, overwrite: bool = False) -> None:
        """Raise a RunDirectoryError unless a run may begin there."""
        with disk_errors(path, "start"):
            exists, is_directory = path.exists(), path.is_dir()
            entries = [entry.name for entry in path.iterdir()] if is_directory else []
        if exists and not is_directory:
            raise RunDirectoryError(f"{path} is a file: choose another --out")
        if CONFIG in entries and not overwrite:
            raise RunDirectoryError(
                f"{path} holds a run already: continue it with --resume {path}, replace it with --overwrite, or choose "
                "another --out"
            )
        strangers = [name for name in entries if name not in _OWN and not name.endswith(_UNFINISHED)]
        if strangers and CONFIG not in entries:
            raise RunDirectoryError(f"{path} holds no run but other files ({strangers[0]}): choose another --out")

    def _begin(self, config: CommonConfig) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._acquire()
        for name in _OWN:
            if name in (BOARD, WANDB):
                shutil.rmtree(self.path / name, ignore_errors=True)
            elif name != LOCK:
                (self.path / name).unlink(missing_ok=True)
        for table in self.columns:
            self._write_table(table, [])
        _write_json(self.path / ENVIRONMENT, [environment()])
        self.set_status(RUNNING, step=0)
        # Last, because a directory without a configuration holds no run.
        write_atomically(self.path / CONFIG, config.to_toml().encode())

    @classmethod
    def read_config(cls, path: str | Path) -> Config:
        """Return the configuration of a run, or raise a RunDirectoryError where there is none that can be resumed."""
        path = Path(path)
        for name, (whose, remedy) in _NOT_RESUMABLE.items():
            if (path / name).is_file():
                raise RunDirectoryError(f"{path} is the directory of {whose}, which cannot be resumed: {remedy}")
        if not (path / CONFIG).is_file():
            raise RunDirectoryError(f"{path} holds no run to resume: there is no {CONFIG} in it")
        return Config.load(path / CONFIG)

    @classmethod
    def reopen(cls, path: str | Path, columns: Mapping[str, Sequence[str]]) -> RunDirectory:
        """Open an existing run directory, to read or to resume. It must be complete, and no other process's."""
        path = Path(path)
        directory = cls(path, columns)
        for name in (*columns, ENVIRONMENT, STATUS):
            if not (path / name).is_file():
                raise RunDirectoryError(
                    f"{path} cannot be resumed: {name} is missing from it. Begin anew with --overwrite"
                )
        with disk_errors(path, "resume"):
            directory._acquire()
        return directory

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and release the lock."""
        for file in (*self._tables.values(), self._lock):
            with contextlib.suppress(OSError):  # a full disk was reported when it happened
                if file:
                    file.close()
        self._tables.clear()

    def _acquire(self) -> None:
        """Lock the directory for this process, and remove files that a killed process left half written."""
        self._lock_file()
        for path in self.path.iterdir():
            if path.name.startswith(".") and path.name.endswith(_UNFINISHED):
                path.unlink(missing_ok=True)

    def _lock_file(self) -> None:
        try:
            import fcntl
        except ImportError:  # a system without it relies on its user
            return
        self._lock = open(self.path / LOCK, "w")  # noqa: SIM115  closed in __exit__
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            self._lock.close()
            raise RunDirectoryError(f"{self.path} is in use by another process: wait for it or stop it") from problem
        except OSError:
            pass  # a file system without locks (some network ones) relies on its user, too

    # -- tables ------------------------------------------------------------------------------------------------------

    def append(self, table: str, row: Mapping[str, Number]) -> None:
        """Add a row to a table. It is on disk for certain after the next `save_checkpoint`."""
        with disk_errors(self.path, row["step"]):
            if table not in self._tables:
                self._tables[table] = open(self.path / table, "a", encoding="utf-8", newline="")  # noqa: SIM115
            self._tables[table].write(self._line(table, row))

    def flush(self) -> None:
        """Let readers of the directory see what was appended."""
        with disk_errors(self.path, "flush"):
            for table in self._tables.values():
                table.flush()

    def _sync(self) -> None:
        for table in self._tables.values():
            table.flush()
            os.fsync(table.fileno())

    def cut_back(self, step: int) -> dict[str, list[dict[str, Number]]]:
        """Drop rows from the step on, which were written after the checkpoint; return the tables that are left.

        Columns that the version that began the run did not know are added, empty.
        """
        tables = {}
        for name, columns in self.columns.items():
            # An evaluation at step s happens after s rounds, so the one at `step` belongs to the checkpoint.
            last = step if name == EVALUATIONS else step - 1
            kept = [row for row in self.rows(name) if int(row["step"] or 0) <= last]
            tables[name] = [{column: row.get(column) for column in columns} for row in kept]
            with disk_errors(self.path, step):
                self._write_table(name, tables[name])
        return tables

    def check_metric(self, metric: TaskMetric) -> None:
        """Raise a RunDirectoryError unless the run is measured by this metric."""
        with (self.path / EVALUATIONS).open(encoding="utf-8") as file:
            _, recorded, *_ = [*file.readline().rstrip("\n").split(","), "", ""]
        if recorded != metric.name:
            raise RunDirectoryError(
                f"{self.path} is measured by {recorded}, and the task by {metric.name}: give the task metric="
                f"{recorded!r}, or begin anew with --overwrite"
            )

    def rows(self, table: str) -> list[dict[str, Number]]:
        """Read a table, with the exact numbers that were written. An incomplete last line does not count."""
        text = (self.path / table).read_text(encoding="utf-8")
        complete = io.StringIO(text[: text.rfind("\n") + 1])
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(complete)]

    def _write_table(self, table: str, rows: Iterable[Mapping[str, Number]]) -> None:
        lines = [",".join(self.columns[table]) + "\n", *(self._line(table, row) for row in rows)]
        write_atomically(self.path / table, "".join(lines).encode())

    def _line(self, table: str, row: Mapping[str, Number]) -> str:
        """Write numbers so that they read back to the same bits; an empty cell where the quantity does not exist."""
        cells = (row[column] for column in self.columns[table])
        return ",".join("" if value is None else repr(value) for value in cells) + "\n"

    # -- checkpoints, status, model ----------------------------------------------------------------------------------

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint, after making sure that the tables' rows up to it are on disk."""
        with disk_errors(self.path, state["step"]):
            self._sync()
            write_atomically(self.path / CHECKPOINT, _torch_bytes(state))
            self.set_status(RUNNING, step=state["step"])

    def load_checkpoint(self, device: torch.device) -> dict[str, Any] | None:
        """Return the last checkpoint with its tensors on the device, or None where none was written yet."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        except Exception as problem:
            # torch's own message is long and advises to trust the file; ours does neither.
            raise RunDirectoryError(
                f"the checkpoint {path} is damaged ({type(problem).__name__}): delete it, and --resume begins anew"
            ) from problem
        return state

    def finish(self, status: str, model: Mapping[str, Tensor], **facts: Number | str) -> None:
        """End the run: keep the final model and the facts, and drop the checkpoint that only resuming needs."""
        with disk_errors(self.path, "finish"):
            self._sync()
            write_atomically(self.path / MODEL, _torch_bytes(model))
            self.set_status(status, **facts)
            (self.path / CHECKPOINT).unlink(missing_ok=True)

    def set_status(self, status: str, **facts: Number | str) -> None:
        """Replace status.json."""
        with disk_errors(self.path, "status"):
            # JSON knows no infinite loss.
            known = {
                name: None if isinstance(fact, float) and not math.isfinite(fact) else fact
                for name, fact in facts.items()
            }
            _write_json(self.path / STATUS, {"status": status, **known})

    def status(self) -> dict[str, Any]:
        """Read status.json."""
        try:
            status: dict[str, Any] = json.loads((self.path / STATUS).read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise RunDirectoryError(f"cannot read {self.path / STATUS}: {problem}") from problem
        return status

    def add_session(self) -> None:
        """Record the environment in which the run continues."""
        with disk_errors(self.path, "resume"):
            _write_json(self.path / ENVIRONMENT, [*self._sessions(), environment()])

    def end_session(self, **times: float) -> None:
        """Record how long this session took."""
        with disk_errors(self.path, "finish"):
            *earlier, this = self._sessions()
            rounded = {name: round(seconds, 3) for name, seconds in times.items()}
            _write_json(self.path / ENVIRONMENT, [*earlier, {**this, **rounded}])

    def _sessions(self) -> list[dict[str, Any]]:
        sessions: list[dict[str, Any]] = json.loads((self.path / ENVIRONMENT).read_text(encoding="utf-8"))
        return sessions


def _number(text: str) -> Number:
    if text in ("", "True", "False"):
        return text == "True" if text else None
    try:
        return int(text)
    except ValueError:
        return float(text)


def _torch_bytes(state: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def _write_json(path: Path, value: object) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


@contextlib.contextmanager
def disk_errors(path: Path, when: object) -> Iterator[None]:
    """Turn the system's refusals to write into one clear message; what is on disk already stays resumable."""
    try:
        yield
    except StorageError:
        raise
    except OSError as problem:
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
        cause = "the disk is full" if full else problem.strerror or str(problem)
        moment = f"at step {when}" if isinstance(when, int) else f"({when})"
        raise StorageError(f"cannot write to {path} {moment}: {cause}. What to do: {_remedy(path)}") from problem


def _remedy(path: Path) -> str:
    with contextlib.suppress(OSError):
        command = "serve" if (path / EVENTS).exists() else "train"
        remedies = {name: remedy for name, (_, remedy) in _NOT_RESUMABLE.items()}
        for name, remedy in {**remedies, CONFIG: f"continue with gyroscope {command} --resume {path}"}.items():
            if (path / name).exists():
                return f"make room or permit writing, then {remedy}"
    return "choose another place with --out"

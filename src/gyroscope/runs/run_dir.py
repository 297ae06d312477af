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
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from gyroscope._core.errors import RunDirectoryError, StorageError
from gyroscope.runs.config import CommonConfig, Config, ResolvedConfig
from gyroscope.runs.environment import environment
from gyroscope.simulation.metrics import COLUMNS, Number

CONFIG, ENVIRONMENT, STATUS = "config.toml", "environment.json", "status.json"
METRICS, EVALUATIONS, WEIGHTS = "metrics.csv", "evaluations.csv", "workers.csv"
CHECKPOINT, MODEL, LOCK, BOARD = "checkpoint.pt", "model.pt", ".lock", "tensorboard"
DRIFT = "drift.csv"  # only where there are several servers
EVENTS = "events.csv"  # only where workers are processes of their own
ARRIVALS = "arrivals.csv"  # only in asynchronous runs
FLOWER = "flower.toml"  # only in the runs of gyroscope.integrations.flower
_OWN = (
    CONFIG, ENVIRONMENT, STATUS, METRICS, EVALUATIONS, WEIGHTS, DRIFT, EVENTS, ARRIVALS, CHECKPOINT, MODEL, LOCK, BOARD,
    FLOWER,
)  # fmt: skip

_UNFINISHED = ".new"

EVALUATION_COLUMNS = ("step", "accuracy", "correct", "samples")
RUNNING, COMPLETE, DIVERGED, INTERRUPTED, FAILED = "running", "complete", "diverged", "interrupted", "failed"


def columns(workers: int) -> dict[str, Sequence[str]]:
    """Return the tables that every synchronous run has, each with its columns."""
    weights = ("step", *(f"worker_{worker}" for worker in range(workers)))
    return {METRICS: COLUMNS, EVALUATIONS: EVALUATION_COLUMNS, WEIGHTS: weights}


class RunDirectory:
    """One run's files. Make it with `create` or `reopen`, and use it in a `with` block."""

    def __init__(self, path: Path, config: CommonConfig, columns: Mapping[str, Sequence[str]]) -> None:
        self.path = path
        self.config = config
        self.columns = columns
        """The tables, each with its columns."""
        self._tables: dict[str, IO[str]] = {}
        self._lock: IO[str] | None = None

    @classmethod
    def create(
        cls, path: str | Path, config: CommonConfig, columns: Mapping[str, Sequence[str]], *, overwrite: bool = False
    ) -> RunDirectory:
        """Begin a new run directory. An existing run is an error unless it is to be overwritten."""
        path = Path(path)
        cls.check_free(path, overwrite=overwrite)
        directory = cls(path, config, columns)
        try:
            with disk_errors(path, "start"):
                directory._begin()
        except BaseException:
            directory.close()
            raise
        return directory

    @classmethod
    def check_free(cls, path: Path, *, overwrite: bool = False) -> None:
        """Whether a run may begin there: nobody's files are in the way."""
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

    def _begin(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._acquire()
        for name in _OWN:
            if name == BOARD:
                shutil.rmtree(self.path / name, ignore_errors=True)
            elif name != LOCK:
                (self.path / name).unlink(missing_ok=True)
        for table, columns in self.columns.items():
            _replace(self.path / table, (",".join(columns) + "\n").encode())
        _replace(self.path / ENVIRONMENT, (json.dumps([environment()], indent=2) + "\n").encode())
        self.set_status(RUNNING, step=0)
        # Last, because a directory without a configuration holds no run.
        _replace(self.path / CONFIG, self.config.to_toml().encode())

    @classmethod
    def read_config(cls, path: str | Path) -> Config:
        """Return the configuration of a run that can be resumed.

        Raises:
            RunDirectoryError: there is no run, or it is of a kind that cannot be resumed.
        """
        path = Path(path)
        if (path / FLOWER).is_file():
            raise RunDirectoryError(
                f"{path} was written by a Flower app and cannot be resumed here: start it anew, flwr run"
            )
        if not (path / CONFIG).is_file():
            raise RunDirectoryError(f"{path} holds no run to resume: there is no {CONFIG} in it")
        if (path / ARRIVALS).is_file():
            raise RunDirectoryError(
                f"{path} holds an asynchronous run, which cannot be resumed: begin anew, gyroscope async --overwrite"
            )
        return Config.load(path / CONFIG)

    @classmethod
    def reopen(cls, path: str | Path, config: ResolvedConfig, columns: Mapping[str, Sequence[str]]) -> RunDirectory:
        """Open an existing run directory, to read or to resume."""
        path = Path(path)
        directory = cls(path, config, columns)
        for name in (*columns, ENVIRONMENT, STATUS):
            if not (path / name).is_file():
                raise RunDirectoryError(
                    f"{path} cannot be resumed: {name} is missing from it. Begin anew with --overwrite"
                )
        with disk_errors(path, "resume"):
            directory._acquire()
        return directory

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files and of the lock."""
        for table in self._tables.values():
            with contextlib.suppress(OSError):  # a full disk was reported when it happened
                table.close()
        self._tables.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _acquire(self) -> None:
        """One process at a time may write a run directory."""
        try:
            import fcntl
        except ImportError:  # a system without it relies on its user
            return
        self._lock = open(self.path / LOCK, "w")  # noqa: SIM115  closed in __exit__
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            self._lock.close()
            self._lock = None
            raise RunDirectoryError(f"{self.path} is in use by another process: wait for it or stop it") from problem
        except OSError:
            pass  # a file system without locks (some network ones) relies on its user, too

    # -- tables ------------------------------------------------------------------------------------------------------

    def append(self, table: str, row: Mapping[str, Number]) -> None:
        """Add a row to a table. It is on disk for certain after the next `save_checkpoint`."""
        with disk_errors(self.path, row["step"]):
            if table not in self._tables:
                self._tables[table] = open(self.path / table, "a", encoding="utf-8", newline="")  # noqa: SIM115
            self._tables[table].write(",".join(cell(row[column]) for column in self.columns[table]) + "\n")

    def flush(self) -> None:
        """Let readers of the directory see what was appended."""
        with disk_errors(self.path, "flush"):
            for table in self._tables.values():
                table.flush()

    def cut_back(self, step: int) -> None:
        """Forget rows from the step on: they were written after the checkpoint and will be computed again.

        Columns that the version that began the run did not know are added, empty.
        """
        for table, columns in self.columns.items():
            # An evaluation at step s happens after s rounds, so the one at `step` belongs to the checkpoint.
            last = step if table == EVALUATIONS else step - 1
            lines = (self.path / table).read_text(encoding="utf-8").splitlines(keepends=True)
            kept = lines[:1] + [
                line for line in lines[1:] if line.endswith("\n") and int(line.split(",", 1)[0]) <= last
            ]
            with disk_errors(self.path, step):
                _replace(self.path / table, "".join(_arranged(kept, columns)).encode())

    def rows(self, table: str) -> list[dict[str, Number]]:
        """A table read back, with the exact numbers that were written."""
        with open(self.path / table, encoding="utf-8", newline="") as file:
            return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]

    # -- checkpoints, status, model ----------------------------------------------------------------------------------

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint, after making sure that the tables' rows up to it are on disk."""
        with disk_errors(self.path, state["step"]):
            for table in self._tables.values():
                table.flush()
                os.fsync(table.fileno())
            _replace(self.path / CHECKPOINT, _torch_bytes(dict(state)))
            self.set_status(RUNNING, step=state["step"])

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, or None where none was written yet."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as problem:
            # torch's own message is long and advises to trust the file; ours does neither.
            raise RunDirectoryError(
                f"the checkpoint {path} is damaged ({type(problem).__name__}): delete it, and --resume begins anew"
            ) from problem
        return state

    def finish(self, status: str, model: Mapping[str, Tensor], **facts: Number | str) -> None:
        """The run has ended: keep the final model, drop the checkpoint that only resuming needs."""
        with disk_errors(self.path, "finish"):
            for table in self._tables.values():
                table.flush()
                os.fsync(table.fileno())
            _replace(self.path / MODEL, _torch_bytes(dict(model)))
            self.set_status(status, **facts)
            (self.path / CHECKPOINT).unlink(missing_ok=True)

    def set_status(self, status: str, **facts: Number | str) -> None:
        with disk_errors(self.path, "status"):
            _replace(self.path / STATUS, (json.dumps({"status": status, **facts}, indent=2) + "\n").encode())

    def status(self) -> dict[str, Any]:
        try:
            status: dict[str, Any] = json.loads((self.path / STATUS).read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise RunDirectoryError(f"cannot read {self.path / STATUS}: {problem}") from problem
        return status

    def add_session(self) -> None:
        """Note in which environment the run goes on."""
        path = self.path / ENVIRONMENT
        with disk_errors(self.path, "resume"):
            sessions = json.loads(path.read_text(encoding="utf-8"))
            _replace(path, (json.dumps([*sessions, environment()], indent=2) + "\n").encode())


def cell(value: Number) -> str:
    """A number as text that reads back to the same bits; nothing where the quantity does not exist."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    return repr(value)


def _arranged(lines: list[str], columns: Sequence[str]) -> list[str]:
    """A table's lines, header first, with these columns: nothing in those that they lack."""
    header = lines[0].rstrip("\n").split(",") if lines else []
    if header == list(columns):
        return lines
    cells = (dict(zip(header, line.rstrip("\n").split(","), strict=True)) for line in lines)
    rows = [[row.get(column, "") for column in columns] for row in cells]
    return [",".join(row) + "\n" for row in (list(columns), *rows[1:])]


def _number(text: str) -> Number:
    if text == "":
        return None
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)


def _torch_bytes(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old content or the new one, never a part."""
    temporary = path.with_name(f".{path.name}{_UNFINISHED}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def disk_errors(path: Path, when: object) -> Iterator[None]:
    """Turn the system's refusals to write into one clear message; what is on disk already stays resumable."""
    try:
        yield
    except StorageError:
        raise
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            cause = "the disk is full"
        else:
            cause = problem.strerror or str(problem)
        moment = f"at step {when}" if isinstance(when, int) else f"({when})"
        raise StorageError(f"cannot write to {path} {moment}: {cause}. What to do: {_remedy(path)}") from problem


def _remedy(path: Path) -> str:
    with contextlib.suppress(OSError):
        if (path / FLOWER).exists():
            return "make room or permit writing, then start it anew: flwr run"
        if (path / ARRIVALS).exists():
            return "make room or permit writing, then begin anew: gyroscope async --overwrite"
        if (path / CONFIG).exists():
            command = "serve" if (path / EVENTS).exists() else "train"
            return f"make room or permit writing, then continue with gyroscope {command} --resume {path}"
    return "choose another place with --out"

"""Run directories read back together: which runs there are, their curves, and summaries over seeds."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gyroscope._core.errors import GyroscopeError, RunDirectoryError
from gyroscope._core.optional import extra
from gyroscope.runs import run_dir
from gyroscope.runs.config import Config

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True)
class RunResult:
    """One finished run, its tables read only when they are asked for."""

    path: Path
    config: Config
    status: str
    step: int

    @cached_property
    def metrics(self) -> pandas.DataFrame:
        return self._read(run_dir.METRICS)

    @cached_property
    def evaluations(self) -> pandas.DataFrame:
        return self._read(run_dir.EVALUATIONS)

    @cached_property
    def weights(self) -> pandas.DataFrame:
        return self._read(run_dir.WEIGHTS)

    @cached_property
    def drift(self) -> pandas.DataFrame:
        """Only where there were several servers."""
        return self._read(run_dir.DRIFT)

    @property
    def max_accuracy(self) -> float:
        return float(self.evaluations["accuracy"].max())

    @property
    def final_accuracy(self) -> float:
        return float(self.evaluations["accuracy"].iloc[-1])

    def _read(self, table: str) -> pandas.DataFrame:
        with extra("lab", "reading the tables of a run"):
            import pandas

        frame: pandas.DataFrame = pandas.read_csv(self.path / table)
        return frame


@dataclasses.dataclass(frozen=True)
class SetupResult:
    """The runs of one setup: equal but for the seed."""

    config: Config
    runs: tuple[RunResult, ...]

    @property
    def seeds(self) -> list[int]:
        return [run.config.seed for run in self.runs]

    def each(self, quantity: Callable[[RunResult], float]) -> list[float]:
        """A quantity for each seed."""
        return [quantity(run) for run in self.runs]

    def mean(self, quantity: Callable[[RunResult], float]) -> float:
        return statistics.fmean(self.each(quantity))

    def deviation(self, quantity: Callable[[RunResult], float]) -> float:
        """Standard deviation over the seeds; 0 for a single one."""
        values = self.each(quantity)
        return statistics.stdev(values) if len(values) > 1 else 0.0


def load(folder: str | Path) -> list[RunResult]:
    """All ended runs below the folder, in the order of their names. Unfinished ones are left out."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RunDirectoryError(f"{folder} is not a folder of runs")
    return [run for run in (_load_one(path.parent) for path in sorted(folder.rglob(run_dir.CONFIG))) if run is not None]


def _load_one(path: Path) -> RunResult | None:
    try:
        status = json.loads((path / run_dir.STATUS).read_text(encoding="utf-8"))
        if status["status"] not in (run_dir.COMPLETE, run_dir.DIVERGED):
            return None
        return RunResult(path, Config.load(path / run_dir.CONFIG), status["status"], int(status["step"]))
    except (OSError, ValueError, KeyError, GyroscopeError):
        return None  # not a run, or one of which too little is left


def group(runs: Iterable[RunResult]) -> list[SetupResult]:
    """The runs by setup, seeds in ascending order; of two runs with the same seed the first counts."""
    setups: dict[Config, dict[int, RunResult]] = {}
    for run in runs:
        setups.setdefault(_without_seed(run.config), {}).setdefault(run.config.seed, run)
    return [SetupResult(config, tuple(members[seed] for seed in sorted(members))) for config, members in setups.items()]


def _without_seed(config: Config) -> Config:
    """The configuration with everything left out that does not make another setup."""
    return Config.from_mapping({**config.experiment(), "seed": 0})

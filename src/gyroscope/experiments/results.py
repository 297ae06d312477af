"""Read run directories back together: which runs there are, their curves, and summaries over seeds."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.errors import GyroscopeError, RunDirectoryError
from gyroscope._core.foreign_text import shortened
from gyroscope._core.optional import extra
from gyroscope.runs import run_dir
from gyroscope.runs.config import Config
from gyroscope.simulation.task_metric import ACCURACY, TaskMetric, known_metric

if TYPE_CHECKING:
    import pandas

ENDED = (run_dir.COMPLETE, run_dir.DIVERGED)
"""The statuses of runs that are not to be continued."""


def _table(name: str) -> cached_property[pandas.DataFrame]:
    """Return a property that reads a table of the run directory when it is first asked for."""

    def read(run: RunResult) -> pandas.DataFrame:
        with extra("lab", "reading the tables of a run"):
            import pandas

        frame: pandas.DataFrame = pandas.read_csv(run.path / name)
        return frame

    return cached_property(read)


@dataclasses.dataclass(frozen=True)
class RunResult:
    """One finished run, its tables read only when they are asked for."""

    path: Path
    config: Config
    status: str
    step: int

    metrics = _table(run_dir.METRICS)
    evaluations = _table(run_dir.EVALUATIONS)
    weights = _table(run_dir.WEIGHTS)
    drift = _table(run_dir.DRIFT)
    """Only where there were several servers."""

    @cached_property
    def metric(self) -> TaskMetric:
        """What the task's models are measured by."""
        try:
            status = json.loads((self.path / run_dir.STATUS).read_text(encoding="utf-8"))
        except OSError:
            status = {}
        return known_metric(status.get("metric", ACCURACY.name), status.get("better"), status.get("percent"))

    @cached_property
    def processor_seconds(self) -> float | None:
        """The processor time of all sessions of the run; None where one did not record its own."""
        try:
            sessions = json.loads((self.path / run_dir.ENVIRONMENT).read_text(encoding="utf-8"))
            return math.fsum(session["processor_seconds"] for session in sessions)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def best(self) -> float:
        """The best value of the task's metric."""
        return self.metric.best(map(float, self.evaluations[self.metric.name]))

    @property
    def final(self) -> float:
        return float(self.evaluations[self.metric.name].iloc[-1])

    @property
    def final_or_worst(self) -> float:
        """The final value; the worst there is where the run diverged."""
        if self.status == run_dir.DIVERGED or math.isnan(self.final):
            return 0.0 if self.metric.better == "higher" else math.inf
        return self.final

    @property
    def max_accuracy(self) -> float:
        return float(self.evaluations["accuracy"].max())

    @property
    def final_accuracy(self) -> float:
        return float(self.evaluations["accuracy"].iloc[-1])


@dataclasses.dataclass(frozen=True)
class SetupResult:
    """The runs of one setup: equal but for the seed."""

    config: Config
    runs: tuple[RunResult, ...]

    @property
    def seeds(self) -> list[int]:
        return [run.config.seed for run in self.runs]

    @property
    def metric(self) -> TaskMetric:
        """What the task's models are measured by."""
        return self.runs[0].metric

    def each(self, quantity: Callable[[RunResult], float]) -> list[float]:
        """Return a quantity of each run, in the order of the seeds."""
        return [quantity(run) for run in self.runs]

    def mean(self, quantity: Callable[[RunResult], float]) -> float:
        return statistics.fmean(self.each(quantity))


OnProblem = Callable[[Path, str], None]
"""Called with a run directory that is left out, and why."""


def scan(
    folder: Path, deep: bool = False, on_problem: OnProblem = lambda path, why: None
) -> Iterator[tuple[Path, Config, dict[str, Any]]]:
    """Yield (path, configuration, content of status.json) of each run directory in the folder, by name.

    Directories that are no runs, or of which too little can be read, are left out.

    Args:
        folder: where to look.
        deep: whether to look in folders of folders, too. Links are followed, and what has two names is found once.
        on_problem: called with each run directory of which too little can be read.
    """
    for path in sorted(_with_config(folder) if deep else (path.parent for path in folder.glob(f"*/{run_dir.CONFIG}"))):
        try:
            status = json.loads((path / run_dir.STATUS).read_text(encoding="utf-8"))
            found = path, Config.load(path / run_dir.CONFIG), {"status": status["status"], **status}
        except (OSError, ValueError, KeyError, TypeError, GyroscopeError) as problem:
            on_problem(path, shortened(f"{type(problem).__name__}: {problem}", 160))
            continue
        yield found


def _with_config(folder: Path) -> Iterator[Path]:
    """Yield the folders of runs by their own names; by that of a link only those that are elsewhere."""
    seen, links = set(), [str(folder)]
    for link in links:
        for here, inside, files in os.walk(link):
            if (place := os.path.realpath(here)) in seen:  # a second link, or one to a folder that contains it
                inside.clear()
                continue
            seen.add(place)
            inside.sort()
            links += [path for name in inside if os.path.islink(path := os.path.join(here, name))]
            if run_dir.CONFIG in files:
                yield Path(here)


def load(folder: str | Path, on_problem: OnProblem | None = None) -> list[RunResult]:
    """Return all ended runs below the folder, in the order of their names.

    Args:
        folder: where to look.
        on_problem: if given, a run whose tables cannot be read is left out, too, and each that is left out is reported.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RunDirectoryError(f"{folder} is not a folder of runs")
    report = on_problem or (lambda path, why: None)
    found = []
    for path, config, status in scan(folder, deep=True, on_problem=report):
        if status["status"] in ENDED and "step" in status:
            run = RunResult(path, config, status["status"], int(status["step"]))
            if on_problem is None or not (why := _damage(run)):
                found.append(run)
            else:
                report(path, why)
    return found


def _damage(run: RunResult) -> str:
    """Return why a run's tables cannot be used; empty if they can."""
    columns = {"evaluations": ["step", run.metric.name], "metrics": ["step"]}
    for table, needed in columns.items():
        try:
            frame = getattr(run, table)
            for column in needed:
                if not frame[column].map(lambda value: isinstance(value, (int, float))).all():
                    return f"{table}.csv is damaged: {column} is not a number everywhere"
        except Exception as problem:  # whatever pandas has for damaged files
            return f"{table}.csv cannot be read ({shortened(f'{type(problem).__name__}: {problem}', 120)})"
        if table == "evaluations" and not len(frame):
            return "evaluations.csv is empty"
    return ""


def group(runs: Iterable[RunResult]) -> list[SetupResult]:
    """Group runs by setup and metric, seeds in ascending order; of two runs with the same seed the first counts."""
    setups: dict[tuple[Config, str], dict[int, RunResult]] = {}
    for run in runs:
        setup = Config.from_mapping({**run.config.experiment(), "seed": 0})
        setups.setdefault((setup, run.metric.name), {}).setdefault(run.config.seed, run)
    return [
        SetupResult(config, tuple(members[seed] for seed in sorted(members))) for (config, _), members in setups.items()
    ]

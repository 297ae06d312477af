"""What a folder of the recipe `zoo` says: the drop of every cell, the worst case of every defence, and the noise."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from gyroscope import record
from gyroscope.config import NO_ATTACK, Config
from gyroscope.errors import GyroscopeError, RunDirectoryError
from gyroscope.experiments import zoo

CONTENDERS = 10
"""The noise is that of the best few: what fails altogether scatters in a way of its own."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Of one run. A run that diverged ends with a model of NaN, which knows nothing: its final accuracy is 0."""

    best: float
    final: float


Measure = Callable[[Accuracy], float]
Runs = Mapping[str, Mapping[int, Accuracy]]
"""By what the runs of a setup have in common (`zoo.setup_key`), and by seed."""


def best(accuracy: Accuracy) -> float:
    """The maximum over the run, which is the paper's measure: what whoever keeps the best model loses."""
    return accuracy.best


def final(accuracy: Accuracy) -> float:
    """At the end: what whoever cannot tell which model was the best loses."""
    return accuracy.final


@dataclasses.dataclass(frozen=True)
class Cell:
    """The drops of one cell in points of accuracy, one per seed: the unattacked average's accuracy minus its own."""

    entry: zoo.Entry
    drops: tuple[float, ...]

    @property
    def drop(self) -> float:
        return statistics.fmean(self.drops) if self.drops else math.nan


@dataclasses.dataclass(frozen=True)
class Standing:
    """A defence (a rule, what stands before it, and the placement) against all attacks with one f."""

    defence: str
    placement: str
    f: int
    cells: Mapping[str, Cell]
    """By attack, `none` included."""
    trusting: bool = False
    """Whether it relies on somebody known to be honest, which the others do not have."""

    @property
    def attacked(self) -> list[Cell]:
        return [cell for attack, cell in self.cells.items() if attack != NO_ATTACK]

    @property
    def complete(self) -> bool:
        return all(cell.drops for cell in self.attacked)

    @cached_property
    def worst(self) -> Cell:
        """The attack that costs most."""
        return max(self.attacked, key=lambda cell: cell.drop)

    @cached_property
    def mean(self) -> float:
        """Over the attacks."""
        return statistics.fmean(cell.drop for cell in self.attacked)


@dataclasses.dataclass(frozen=True)
class Noise:
    """How far a drop scatters from seed to seed."""

    deviation: float
    """Standard deviation of one seed's drop, in points."""
    seeds: int
    """How many seeds a cell has."""
    of_attacked: bool
    """Whether it was seen under attack; else it is only that of unattacked runs, which scatter less."""

    @property
    def indistinct(self) -> float:
        """Twice the standard error of the difference of two cells: what is nearer together cannot be told apart."""
        return 2 * self.deviation * math.sqrt(2 / self.seeds)


class Map:
    """The map by one measure."""

    def __init__(self, runs: Runs, measure: Measure) -> None:
        self.baselines = {
            entry.placement: {seed: 100 * measure(run) for seed, run in runs.get(entry.key, {}).items()}
            for entry in zoo.baselines()
        }
        grouped: dict[tuple[str, str, int], dict[str, Cell]] = {}
        for entry in zoo.entries():
            unattacked = self.baselines[entry.placement]
            drops = [
                unattacked[seed] - 100 * measure(run)
                for seed, run in sorted(runs.get(entry.key, {}).items())
                if seed in unattacked
            ]
            cells = grouped.setdefault((entry.defence, entry.placement, entry.f), {})
            cells[entry.attack] = Cell(entry, tuple(drops))
        trusting = {defence.name: defence.trusting for defence in zoo.defences()}
        self.standings = [Standing(*key, cells, trusting[key[0]]) for key, cells in grouped.items()]

    def ranking(self, f: int) -> list[Standing]:
        """The defences with all their runs, the one that loses least in the worst case first; then by the mean."""
        standings = [standing for standing in self.standings if standing.f == f and standing.complete]
        return sorted(standings, key=lambda standing: (standing.worst.drop, standing.mean, standing.defence))

    def noise(self, f: int) -> Noise:
        """Of the contenders' drops where cells have several seeds, else of the unattacked runs."""
        cells = [cell for standing in self.ranking(f)[:CONTENDERS] for cell in standing.attacked]
        pooled = _pooled(cell.drops for cell in cells)
        if pooled is not None:
            return Noise(pooled, min(len(cell.drops) for cell in cells), True)
        unattacked = _pooled(list(by_seed.values()) for by_seed in self.baselines.values())
        return Noise(math.sqrt(2) * (unattacked or 0.0), 1, False)  # a drop is the difference of two runs


def read(folder: str | Path) -> Runs:
    """The ended runs in the folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RunDirectoryError(f"{folder} is not a folder of runs: make it with gyroscope sweep zoo --out {folder}")
    runs: dict[str, dict[int, Accuracy]] = {}
    for path in sorted(folder.glob(f"*/{record.CONFIG}")):
        try:
            config = Config.load(path)
            status = json.loads((path.parent / record.STATUS).read_text(encoding="utf-8"))
            if status["status"] not in (record.COMPLETE, record.DIVERGED):
                continue
            last = 0.0 if status["status"] == record.DIVERGED else float(status["final_accuracy"])
            runs.setdefault(zoo.setup_key(config), {})[config.seed] = Accuracy(float(status["max_accuracy"]), last)
        except (OSError, ValueError, KeyError, GyroscopeError):
            continue  # not a run of ours, or damaged
    return runs


def _pooled(groups: Iterable[Sequence[float]]) -> float | None:
    """The standard deviation within groups; None where no group has two members."""
    several = [group for group in groups if len(group) > 1]
    if not several:
        return None
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in several)
    return math.sqrt(squares / sum(len(group) - 1 for group in several))

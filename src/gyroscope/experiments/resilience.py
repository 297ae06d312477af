"""What a folder of the recipe `zoo` says: the drop of every cell, the worst case of every defence, and the noise."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from gyroscope._core.errors import GyroscopeError, RunDirectoryError
from gyroscope.experiments import zoo
from gyroscope.runs import run_dir
from gyroscope.runs.config import NO_ATTACK, Config

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
    """One cell of the map."""

    entry: zoo.Entry
    drops: Mapping[int, float]
    """By seed, in points of accuracy: the unattacked average's with this seed minus the run's own."""

    @property
    def drop(self) -> float:
        """The mean over the seeds."""
        return self.over(self.drops)

    def over(self, seeds: Collection[int]) -> float:
        """The mean over these seeds."""
        return statistics.fmean(self.drops[seed] for seed in seeds) if seeds else math.nan


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

    @cached_property
    def attacked(self) -> list[Cell]:
        return [cell for attack, cell in self.cells.items() if attack != NO_ATTACK]

    @cached_property
    def seeds(self) -> frozenset[int]:
        """Those with which it met every attack."""
        return frozenset.intersection(*(frozenset(cell.drops) for cell in self.attacked))

    @property
    def complete(self) -> bool:
        return bool(self.seeds)

    @cached_property
    def worst(self) -> Cell:
        """The attack that costs most."""
        return max(self.attacked, key=lambda cell: cell.drop)

    @cached_property
    def mean(self) -> float:
        """Over the attacks."""
        return statistics.fmean(cell.drop for cell in self.attacked)

    def worst_over(self, seeds: Collection[int]) -> float:
        """The worst case as these seeds alone show it."""
        return max(cell.over(seeds) for cell in self.attacked)


@dataclasses.dataclass(frozen=True)
class Noise:
    """How far a drop scatters from seed to seed."""

    deviation: float
    """Standard deviation of one seed's drop, in points; NaN where nothing ran with two seeds."""
    seeds: int
    """How many seeds a cell has."""
    of_attacked: bool
    """Whether it was seen under attack; else it is only that of unattacked runs, which scatter less."""

    @property
    def known(self) -> bool:
        return not math.isnan(self.deviation)

    @property
    def indistinct(self) -> float:
        """Twice the standard error of the difference of two cells: what is nearer together cannot be told apart."""
        return self.between(self.seeds, self.seeds)

    def between(self, seeds: int, others: int) -> float:
        """The same for two cells with so many seeds each."""
        return 2 * self.deviation * math.sqrt(1 / seeds + 1 / others)


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
            drops = {
                seed: unattacked[seed] - 100 * measure(run)
                for seed, run in sorted(runs.get(entry.key, {}).items())
                if seed in unattacked
            }
            cells = grouped.setdefault((entry.defence, entry.placement, entry.f), {})
            cells[entry.attack] = Cell(entry, drops)
        trusting = {defence.name: defence.trusting for defence in zoo.defences()}
        self.standings = [Standing(*key, cells, trusting[key[0]]) for key, cells in grouped.items()]

    def ranking(self, f: int) -> list[Standing]:
        """The defences with all their runs, the one that loses least in the worst case first; then by the mean.

        The seeds that all have decide who comes first. Where the first few have more seeds than that, these decide
        among them: a final, in which nobody takes part who was lucky with one seed and not tried again.
        """
        standings = [standing for standing in self.standings if standing.f == f and standing.complete]
        if not standings:
            return []
        common = frozenset.intersection(*(standing.seeds for standing in standings))
        order = sorted(standings, key=lambda s: (s.worst_over(common or s.seeds), s.mean, s.defence))
        finalists = list(itertools.takewhile(lambda s: s.seeds > common, order))
        return sorted(finalists, key=lambda s: (s.worst.drop, s.mean, s.defence)) + order[len(finalists) :]

    def best(self, f: int, count: int) -> list[Standing]:
        """The first of the ranking, as far as it takes to have so many that trust nobody among them."""
        chosen: list[Standing] = []
        for standing in self.ranking(f):
            if sum(not before.trusting for before in chosen) == count:
                break
            chosen.append(standing)
        return chosen

    def noise(self, f: int) -> Noise:
        """Of the contenders' drops where they have several seeds, else of the unattacked runs."""
        several = [standing for standing in self.ranking(f)[:CONTENDERS] if len(standing.seeds) > 1]
        pooled = _pooled(list(cell.drops.values()) for standing in several for cell in standing.attacked)
        if pooled is not None:
            return Noise(pooled, min(len(standing.seeds) for standing in several), True)
        unattacked = _pooled(list(by_seed.values()) for by_seed in self.baselines.values())
        deviation = math.nan if unattacked is None else unattacked
        return Noise(math.sqrt(2) * deviation, 1, False)  # a drop is the difference of two runs


def read(folder: str | Path) -> Runs:
    """The ended runs in the folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RunDirectoryError(f"{folder} is not a folder of runs: make it with gyroscope sweep zoo --out {folder}")
    runs: dict[str, dict[int, Accuracy]] = {}
    for path in sorted(folder.glob(f"*/{run_dir.CONFIG}")):
        try:
            config = Config.load(path)
            status = json.loads((path.parent / run_dir.STATUS).read_text(encoding="utf-8"))
            if status["status"] not in (run_dir.COMPLETE, run_dir.DIVERGED):
                continue
            last = 0.0 if status["status"] == run_dir.DIVERGED else float(status["final_accuracy"])
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

"""Evaluate the runs of the resilience map: the drop of every cell, the worst case of every defence, and the noise."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from gyroscope._core.errors import RunDirectoryError
from gyroscope.experiments import resilience_map, results
from gyroscope.experiments.resilience_map import CellSetup
from gyroscope.runs import run_dir
from gyroscope.runs.config import NO_ATTACK

CONTENDERS = 10
"""The noise is that of the best few: the drops of a defence that fails altogether scatter differently."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The accuracies of one run."""

    best: float
    """The maximum over the run, which is the paper's measure: for users who keep the best model."""
    final: float
    """The last one; 0 for a run that diverged, whose model is NaN: for users who keep the last model."""


Runs = Mapping[str, Mapping[int, Accuracy]]
"""Accuracies by setup (`resilience_map.setup_key`) and seed."""


@dataclasses.dataclass(frozen=True)
class CellResult:
    """The drops of one cell of the map."""

    cell: CellSetup
    drops: Mapping[int, float]
    """By seed, in points of accuracy: that of the unattacked average with the same seed minus the run's own."""

    @property
    def drop(self) -> float:
        """The mean over the seeds."""
        return self.over(self.drops)

    def over(self, seeds: Collection[int]) -> float:
        """Return the mean over these seeds."""
        return statistics.fmean(self.drops[seed] for seed in seeds) if seeds else math.nan


@dataclasses.dataclass(frozen=True)
class DefenceResult:
    """A defence (a rule, its pre-aggregations and the placement) against all attacks with one f."""

    defence: str
    placement: str
    f: int
    cells: Mapping[str, CellResult]
    """By attack, `none` included."""
    trusting: bool = False
    """Whether it relies on a worker known to be honest, which the others do not have."""

    @cached_property
    def attacked(self) -> list[CellResult]:
        return [cell for attack, cell in self.cells.items() if attack != NO_ATTACK]

    @cached_property
    def seeds(self) -> frozenset[int]:
        """The seeds with which it was run against every attack; empty while runs are missing."""
        return frozenset.intersection(*(frozenset(cell.drops) for cell in self.attacked))

    @cached_property
    def worst(self) -> CellResult:
        """The attack that costs most."""
        return max(self.attacked, key=lambda cell: cell.drop)

    @cached_property
    def mean(self) -> float:
        """The mean drop over the attacks."""
        return statistics.fmean(cell.drop for cell in self.attacked)

    def worst_over(self, seeds: Collection[int]) -> float:
        """Return the worst case as these seeds alone show it."""
        return max(cell.over(seeds) for cell in self.attacked)


@dataclasses.dataclass(frozen=True)
class SeedNoise:
    """How far a drop scatters from seed to seed."""

    deviation: float
    """Standard deviation of one seed's drop, in points; NaN where nothing ran with two seeds."""
    seeds: int
    """How many seeds a cell has."""
    of_attacked: bool
    """Whether it was measured under attack; else it is that of unattacked runs, which scatter less."""

    def indistinct(self, seeds: int, others: int) -> float:
        """Return twice the standard error of the difference of two cells: smaller differences mean nothing."""
        return 2 * self.deviation * math.sqrt(1 / seeds + 1 / others)


class ResilienceMap:
    """The map by one measure: `best` or `final` accuracy."""

    def __init__(self, runs: Runs, measure: str) -> None:
        def accuracies(cell: CellSetup) -> dict[int, float]:
            return {seed: 100 * getattr(run, measure) for seed, run in sorted(runs.get(cell.key, {}).items())}

        self.baselines = {cell.placement: accuracies(cell) for cell in resilience_map.baselines()}
        grouped: dict[tuple[str, str, int], dict[str, CellResult]] = {}
        for cell in resilience_map.cells():
            unattacked = self.baselines[cell.placement]
            drops = {seed: unattacked[seed] - value for seed, value in accuracies(cell).items() if seed in unattacked}
            grouped.setdefault((cell.defence, cell.placement, cell.f), {})[cell.attack] = CellResult(cell, drops)
        trusting = {defence.name: defence.trusting for defence in resilience_map.defences()}
        self.defences = [DefenceResult(*key, cells, trusting[key[0]]) for key, cells in grouped.items()]

    def ranking(self, f: int) -> list[DefenceResult]:
        """Return the defences with all their runs, that with the smallest worst case first; then by the mean.

        The seeds that all have decide the order. Where the first few have more seeds than that, these decide among
        them: a final, without defences that did well with one seed and were not run again.
        """
        measured = [result for result in self.defences if result.f == f and result.seeds]
        if not measured:
            return []
        common = frozenset.intersection(*(result.seeds for result in measured))
        order = sorted(measured, key=lambda r: (r.worst_over(common or r.seeds), r.mean, r.defence))
        finalists = list(itertools.takewhile(lambda r: r.seeds > common, order))
        return sorted(finalists, key=lambda r: (r.worst.drop, r.mean, r.defence)) + order[len(finalists) :]

    def top(self, f: int, count: int) -> list[DefenceResult]:
        """Return the first of the ranking, up to `count` that trust no worker and all trusting ones among them."""
        ranking = self.ranking(f)
        others = [place for place, result in enumerate(ranking) if not result.trusting]
        return ranking[: others[count - 1] + 1] if len(others) >= count else ranking

    def noise(self, f: int) -> SeedNoise:
        """Return the scatter of the contenders' drops where they have several seeds, else of the unattacked runs."""
        several = [result for result in self.ranking(f)[:CONTENDERS] if len(result.seeds) > 1]
        pooled = _pooled(list(cell.drops.values()) for result in several for cell in result.attacked)
        if not math.isnan(pooled):
            return SeedNoise(pooled, min(len(result.seeds) for result in several), True)
        unattacked = _pooled(list(by_seed.values()) for by_seed in self.baselines.values())
        return SeedNoise(math.sqrt(2) * unattacked, 1, False)  # a drop is the difference of two runs


def read(folder: str | Path) -> Runs:
    """Return the accuracies of the ended runs in the folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RunDirectoryError(f"{folder} is not a folder of runs: make it with gyroscope sweep map --out {folder}")
    runs: dict[str, dict[int, Accuracy]] = {}
    for _, config, status in results.scan(folder):
        if status["status"] in results.ENDED and {"max_accuracy", "final_accuracy"} <= status.keys():
            last = 0.0 if status["status"] == run_dir.DIVERGED else float(status["final_accuracy"])
            accuracy = Accuracy(float(status["max_accuracy"]), last)
            runs.setdefault(resilience_map.setup_key(config), {})[config.seed] = accuracy
    return runs


def _pooled(groups: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation within groups; NaN where no group has two members."""
    several = [group for group in groups if len(group) > 1]
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in several)
    return math.sqrt(squares / sum(len(group) - 1 for group in several)) if several else math.nan

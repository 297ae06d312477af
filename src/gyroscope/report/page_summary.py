"""What the tables say of a setup: accuracies over the seeds, the drop below the unattacked average, how runs ended."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from gyroscope.experiments.results import RunResult, SetupResult
from gyroscope.runs import run_dir

BASELINE_RULE, NO_ATTACK = "average", "none"

_DEFENCE = ("rule", "attack", "byzantine", "declared_byzantine", "seed", "evaluate_every")
"""In what a setup under attack may differ from its baseline."""


@dataclasses.dataclass(frozen=True)
class Moments:
    """Mean and standard deviation over the seeds, in percent. nan: nothing to average, or a single seed."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Moments:
        known = [100 * value for value in values if math.isfinite(value)]
        return cls(
            statistics.fmean(known) if known else math.nan, statistics.stdev(known) if len(known) > 1 else math.nan
        )

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        return f"{self.mean:.1f}" if math.isnan(self.deviation) else f"{self.mean:.1f} ± {self.deviation:.1f}"


@dataclasses.dataclass(frozen=True)
class Summary:
    """A line of the accuracy table."""

    setup: SetupResult
    best: Moments
    final: Moments
    baseline: SetupResult | None
    drop: float
    """Points of maximum accuracy below the unattacked average; nan where there is none to compare with."""

    @property
    def diverged(self) -> int:
        return sum(run.status == run_dir.DIVERGED for run in self.setup.runs)

    @property
    def status(self) -> str:
        if self.diverged in (0, len(self.setup.runs)):
            return run_dir.DIVERGED if self.diverged else run_dir.COMPLETE
        return f"{self.diverged} of {len(self.setup.runs)} diverged"

    @property
    def drop_text(self) -> str:
        return "–" if math.isnan(self.drop) else f"{self.drop:+.1f}".replace("-", "−").replace("+0.0", "0.0")


def is_baseline(setup: SetupResult) -> bool:
    """Whether the setup is what others are measured against: the plain average, all workers honest."""
    return setup.config.rule == BASELINE_RULE and setup.config.attack == NO_ATTACK


def summarise(setups: Sequence[SetupResult]) -> list[Summary]:
    """A line for each setup, in the given order."""
    baselines: dict[tuple[object, ...], SetupResult] = {}
    for setup in setups:
        if is_baseline(setup):
            baselines.setdefault(_surroundings(setup), setup)
    lines = []
    for setup in setups:
        best = Moments.of(setup.each(_best))
        baseline = baselines.get(_surroundings(setup))
        reference = Moments.of(baseline.each(_best)).mean if baseline is not None else math.nan
        lines.append(Summary(setup, best, Moments.of(setup.each(_final)), baseline, reference - best.mean))
    return lines


def _surroundings(setup: SetupResult) -> tuple[object, ...]:
    """Every setting that a setup shares with its baseline: task, learning rate, placement and all the rest."""
    return tuple(value for key, value in setup.config.experiment().items() if key not in _DEFENCE)


def _best(run: RunResult) -> float:
    return run.max_accuracy if len(run.evaluations) else math.nan


def _final(run: RunResult) -> float:
    return run.final_accuracy if len(run.evaluations) else math.nan

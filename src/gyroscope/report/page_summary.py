"""Summarise a setup: the task's metric over the seeds, the drop below the unattacked average, how its runs ended."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from gyroscope.experiments.grid import BASELINE
from gyroscope.experiments.results import SetupResult
from gyroscope.runs import run_dir
from gyroscope.runs.config import NO_ATTACK

_DEFENCE = ("rule", "attack", "byzantine", "declared_byzantine", "seed", "evaluate_every")
"""The settings in which a setup under attack may differ from its baseline."""


class MeanStd(NamedTuple):
    """Mean and standard deviation over the seeds, in percent where the metric is a share.

    NaN: no run has the quantity, or only a single one.
    """

    mean: float
    deviation: float
    percent: bool = True

    @classmethod
    def of(cls, setup: SetupResult, quantity: str) -> MeanStd:
        """Summarise a property of the setup's runs, those that were evaluated."""
        metric = setup.metric
        known = [metric.scale * float(getattr(run, quantity)) for run in setup.runs if len(run.evaluations)]
        known = [value for value in known if not math.isnan(value)]
        return cls(
            statistics.fmean(known) if known else math.nan,
            statistics.stdev(known) if len(known) > 1 and all(map(math.isfinite, known)) else math.nan,
            metric.percent,
        )

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        mean = self.number(self.mean)
        return mean if math.isnan(self.deviation) else f"{mean} ± {self.number(self.deviation)}"

    def number(self, value: float) -> str:
        return f"{value:.1f}" if self.percent else f"{value:.4g}"


@dataclasses.dataclass(frozen=True)
class Summary:
    """A line of the table of setups."""

    setup: SetupResult
    best: MeanStd
    final: MeanStd
    baseline: SetupResult | None
    drop: float
    """How much worse the best value is than the unattacked average's: points of accuracy, or the task's own metric. NaN
    where there is none to compare with."""

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
        if math.isnan(self.drop):
            return "–"
        text = self.best.number(abs(self.drop))
        sign = "" if float(text) == 0 else "−" if self.drop < 0 else "+"
        return sign + text


def is_baseline(setup: SetupResult) -> bool:
    """Return whether others are measured against this setup: the plain average, all workers honest."""
    return setup.config.rule == BASELINE and setup.config.attack == NO_ATTACK


def summarise(setups: Sequence[SetupResult]) -> list[Summary]:
    """Return a line for each setup, in the given order."""
    baselines: dict[tuple[object, ...], SetupResult] = {}
    for setup in filter(is_baseline, setups):
        baselines.setdefault(_shared_settings(setup), setup)
    lines = []
    for setup in setups:
        best, baseline = MeanStd.of(setup, "best"), baselines.get(_shared_settings(setup))
        reference = math.nan if baseline is None else MeanStd.of(baseline, "best").mean
        unknown = math.isnan(reference) or math.isnan(best.mean)
        drop = math.nan if unknown else setup.metric.cost(reference, best.mean) / setup.metric.scale
        lines.append(Summary(setup, best, MeanStd.of(setup, "final"), baseline, drop))
    return lines


def _shared_settings(setup: SetupResult) -> tuple[object, ...]:
    """Return every setting that a setup has in common with its baseline: task, learning rate, placement and others."""
    shared = [value for key, value in setup.config.experiment().items() if key not in _DEFENCE]
    return (setup.metric.name, *shared)

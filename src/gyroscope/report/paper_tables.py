"""Tables for a paper: a row per run, and paired comparisons between rules."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gyroscope._core.optional import extra
from gyroscope.experiments.results import RunResult, SetupResult, group
from gyroscope.report import page_layout as layout
from gyroscope.report import text_tables
from gyroscope.runs.config import NO_ATTACK

_CONFIDENCE = 0.95


# -- seeds ---------------------------------------------------------------------------------------------------------


def write_seeds(runs: Sequence[RunResult], path: Path) -> Path:
    """Write a row per run: its configuration, how it ended, its best and final value."""
    rows = [
        {
            **{name: value for name, value in run.config.experiment().items() if name != "seed"},
            "seed": run.config.seed,
            "metric": run.metric.name,
            "best": f"{run.best:.6g}",
            "final": f"{run.final:.6g}",
            "status": run.status,
            "folder": run.path.name,
        }
        for setup in layout.in_order(group(runs))
        for run in setup.runs
    ]
    return text_tables.write_csv(path, [*(row.keys() for row in rows[:1]), *(row.values() for row in rows)])


# -- comparisons ---------------------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """One rule against another in the same setting, seed by seed."""

    setting: str
    metric: str
    first: str
    second: str
    seeds: int
    difference: float
    """Mean over the seeds of the second rule's best value minus the first's; percentage points of a share."""
    low: float
    high: float
    """The 95 % confidence interval of that mean, by Student's t; NaN for a single seed."""
    p: float
    """Of a paired two-sided t-test that the mean is zero."""


def comparisons(runs: Sequence[RunResult]) -> list[Comparison]:
    """Compare every two rules that met the same attack in the same setting with the same seeds.

    The p-values are not corrected for the number of comparisons: with twenty of them one is below 0.05 by chance.
    """
    settings: dict[tuple[object, ...], list[SetupResult]] = {}
    for setup in layout.in_order(group(runs)):
        rest = tuple(value for name, value in setup.config.experiment().items() if name not in ("rule", "seed"))
        settings.setdefault((setup.metric.name, *rest), []).append(setup)
    found = []
    for setups in settings.values():
        for first, second in itertools.combinations(setups, 2):
            one, two = ({run.config.seed: run.best for run in setup.runs} for setup in (first, second))
            seeds = sorted(one.keys() & two.keys())
            if seeds:
                scale = first.metric.scale
                found.append(_compared(first, second, [scale * (two[seed] - one[seed]) for seed in seeds]))
    return found


def _compared(first: SetupResult, second: SetupResult, differences: Sequence[float]) -> Comparison:
    c, n, mean = first.config, len(differences), statistics.fmean(differences)
    attack = "no attack" if c.attack == NO_ATTACK else f"{c.attack} f={c.byzantine}"
    setting = f"{c.task}, {attack}, lr {layout.rate_text(c.lr)}, momentum {c.momentum}"
    low = high = p = math.nan
    if n > 1 and all(map(math.isfinite, differences)):
        with extra("lab", "confidence intervals"):
            from scipy import stats

        error = statistics.stdev(differences) / math.sqrt(n)
        half = float(stats.t.ppf((1 + _CONFIDENCE) / 2, n - 1)) * error
        low, high = mean - half, mean + half
        p = float(2 * stats.t.sf(abs(mean) / error, n - 1)) if error > 0 else float(mean == 0)
    return Comparison(setting, first.metric.name, c.rule, second.config.rule, n, mean, low, high, p)


def write_comparisons(runs: Sequence[RunResult], path: Path) -> Path:
    """Write the comparisons as CSV."""
    rows = [[f"{value:.6g}" if isinstance(value, float) else value for value in each] for each in comparisons(runs)]
    return text_tables.write_csv(path, [Comparison._fields, *rows])

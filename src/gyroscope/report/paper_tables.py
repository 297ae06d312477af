"""Tables for a paper: a row per run, and paired comparisons between rules, placements and other settings."""

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
_NOT_COMPARED = ("task", "seed", "attack", "byzantine")
"""Settings that are no choice of the defence."""


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
    """One rule, placement or other value against another where all other settings are equal, seed by seed."""

    setting: str
    metric: str
    compared: str
    """The setting of which there are two values: rule, momentum, lr, ..."""
    first: str
    second: str
    seeds: int
    difference: float
    """Mean over the seeds of the second value's best result minus the first's; percentage points of a share."""
    low: float
    high: float
    """The 95 % confidence interval of that mean, by Student's t; NaN for a single seed."""
    p: float
    """Of a paired two-sided t-test that the mean is zero."""


def comparisons(runs: Sequence[RunResult]) -> list[Comparison]:
    """Compare every two setups that differ in one setting of the defence, with the same seeds: rules first.

    The p-values are not corrected for the number of comparisons: with twenty of them one is below 0.05 by chance.
    """
    setups = layout.in_order(group(runs))
    names = dict.fromkeys(["rule", "momentum", *(name for setup in setups for name in setup.config.experiment())])
    others = layout.varying(setups)
    found = []
    for name in names:
        if name in _NOT_COMPARED:
            continue
        settings: dict[tuple[object, ...], list[SetupResult]] = {}
        for setup in setups:
            rest = tuple(item for item in setup.config.experiment().items() if item[0] not in (name, "seed"))
            settings.setdefault((setup.metric.name, *rest), []).append(setup)
        for members in settings.values():
            for first, second in itertools.combinations(members, 2):
                one, two = ({run.config.seed: run.best for run in setup.runs} for setup in (first, second))
                seeds = sorted(one.keys() & two.keys())
                if seeds:
                    scale = first.metric.scale
                    differences = [scale * (two[seed] - one[seed]) for seed in seeds]
                    found.append(_compared(name, first, second, differences, others))
    return found


def _compared(
    name: str, first: SetupResult, second: SetupResult, differences: Sequence[float], others: Sequence[str]
) -> Comparison:
    c, n, mean = first.config, len(differences), statistics.fmean(differences)
    attack = "no attack" if c.attack == NO_ATTACK else f"{c.attack} f={c.byzantine}"
    shown = {"rule": c.rule, "lr": layout.rate_text(c.lr), "momentum": c.momentum}
    shown |= {other: getattr(c, other) for other in others}
    setting = ", ".join([c.task, attack, *(f"{key} {value}" for key, value in shown.items() if key != name)])
    one, two = (str(getattr(setup.config, name, None)) for setup in (first, second))
    low = high = p = math.nan
    if n > 1 and all(map(math.isfinite, differences)):
        with extra("lab", "confidence intervals"):
            from scipy import stats

        error = statistics.stdev(differences) / math.sqrt(n)
        half = float(stats.t.ppf((1 + _CONFIDENCE) / 2, n - 1)) * error
        low, high = mean - half, mean + half
        p = float(2 * stats.t.sf(abs(mean) / error, n - 1)) if error > 0 else float(mean == 0)
    return Comparison(setting, first.metric.name, name, one, two, n, mean, low, high, p)


def write_comparisons(runs: Sequence[RunResult], path: Path) -> Path:
    """Write the comparisons as CSV."""
    rows = [[f"{value:.6g}" if isinstance(value, float) else value for value in each] for each in comparisons(runs)]
    return text_tables.write_csv(path, [Comparison._fields, *rows])

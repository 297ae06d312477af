"""Tables for a paper: LaTeX, a row per run, and paired comparisons between rules."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gyroscope._core.files import write_atomically
from gyroscope._core.optional import extra
from gyroscope.experiments.results import RunResult, SetupResult, group
from gyroscope.report import page_layout as layout
from gyroscope.report import text_tables
from gyroscope.report.page_data import table_lines
from gyroscope.report.page_summary import Summary
from gyroscope.runs.config import NO_ATTACK
from gyroscope.simulation.task_metric import ACCURACY

_CONFIDENCE = 0.95
_OWN_COLUMNS = ("task", "attack", "byzantine", "lr", "momentum", "rule")


# -- LaTeX ---------------------------------------------------------------------------------------------------------


def write_latex(runs: Sequence[RunResult], path: Path) -> Path:
    """Write a table of the setups that a paper can \\input; it needs the package booktabs."""
    write_atomically(path, (latex_table(table_lines(runs)) + "\n").encode())
    return path


def latex_table(lines: Sequence[Summary]) -> str:
    """Return a tabular with a row per setup. A setting that all share is in a comment above it, not in a column."""
    setups = [line.setup for line in lines]
    shared = layout.common_settings(setups)
    fields = [name for name in (*_OWN_COLUMNS, *layout.varying(setups)) if name not in shared]
    percent = all(line.setup.metric == ACCURACY for line in lines)
    unit = r" (\%)" if percent else ""
    drops = [_math(line.drop_text) for line in lines]
    known = any(drop != "--" for drop in drops)
    names = ["$f$" if name == "byzantine" else _escaped(name) for name in fields]
    header = [*names, f"best{unit}", f"final{unit}", *(["drop (points)"] if known and percent else ["drop"] * known)]
    rows = [
        [*(_cell(line.setup, name) for name in fields), *(_math(str(value)) for value in (line.best, line.final)),
         *([drop] if known else [])]
        for line, drop in zip(lines, drops, strict=True)
    ]  # fmt: skip
    about = "drop: below the unattacked average" if known else 'no drop: add unattacked runs with rule = "average"'
    return "\n".join(
        [
            f"% all runs: {layout.common_text(setups)}",
            f"% mean and standard deviation over {_seed_counts(setups)} seeds; {about}",
            rf"\begin{{tabular}}{{{'l' * len(fields)}{'r' * (2 + known)}}}",
            r"\toprule",
            " & ".join(header) + r" \\",
            r"\midrule",
            *(" & ".join(row) + r" \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _cell(setup: SetupResult, name: str) -> str:
    value = getattr(setup.config, name)
    if name == "lr":
        return _escaped(layout.rate_text(value)).replace("→", r"$\to$")
    return "--" if name == "attack" and value == NO_ATTACK else _escaped(str(value))


def _math(text: str) -> str:
    return "--" if text == "–" else "$" + text.replace("±", r"\pm").replace("−", "-") + "$"


def _escaped(text: str) -> str:
    for letter in "&%$#_{}":
        text = text.replace(letter, "\\" + letter)
    return text


def _seed_counts(setups: Sequence[SetupResult]) -> str:
    counts = sorted({len(setup.runs) for setup in setups})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


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

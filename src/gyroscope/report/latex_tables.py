"""Tables for a paper in LaTeX: a row per setup, and pivots with a row per rule and a column per attack."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gyroscope._core.files import write_atomically
from gyroscope.experiments.results import RunResult, SetupResult
from gyroscope.report import page_layout as layout
from gyroscope.report.heat_maps import OF_ATTACKS, setting_text, value_text, values_in_order
from gyroscope.report.page_data import table_lines
from gyroscope.report.page_summary import MeanStd, Summary
from gyroscope.runs.config import NO_ATTACK
from gyroscope.simulation.task_metric import ACCURACY

_OWN_COLUMNS = ("task", "attack", "byzantine", "lr", "momentum", "rule")
_OWN_TABLES = ("workers", "byzantine", "lr", "momentum")
"""Settings of which every value has pivots of its own; any other only where one cell would hold two of its values."""
_SPECIAL = str.maketrans(
    {letter: "\\" + letter for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"}
    | {"→": r"$\to$", "±": r"$\pm$", "–": "--", "\n": " "}
)


# -- a row per setup -------------------------------------------------------------------------------------------------


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
    names = ["$f$" if name == "byzantine" else escaped(name) for name in fields]
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
            *_tabular("l" * len(fields) + "r" * (2 + known), header, rows),
        ]
    )


def _cell(setup: SetupResult, name: str) -> str:
    value = getattr(setup.config, name)
    if name == "lr":
        return escaped(layout.rate_text(value))
    return "--" if name == "attack" and value == NO_ATTACK else escaped(str(value))


# -- pivots ----------------------------------------------------------------------------------------------------------


def write_pivots(runs: Sequence[RunResult], path: Path) -> Path:
    """Write the pivots of all runs as one file that a paper can \\input; it needs the package booktabs."""
    tables = pivot_tables(table_lines(runs))
    if not tables:
        tables = ["% no pivot: the runs have one rule and one attack only; add others to the sweep"]
    write_atomically(path, ("\n\n".join(tables) + "\n").encode())
    return path


def pivot_tables(lines: Sequence[Summary]) -> list[str]:
    """Return two tables with rules as rows and attacks as columns for each value of the other settings that differ.

    A cell is the mean and the standard deviation, of the best value in the first table and of the final one in the
    second; the best of a column is bold. A run that nobody attacked is in the tables of all f; a rule of which there is
    no other run is in the caption, where some run was attacked.
    """
    tasks: dict[tuple[str, str], list[Summary]] = {}
    for line in lines:
        tasks.setdefault((line.setup.config.task, line.setup.metric.name), []).append(line)
    tables: list[str] = []
    number = 0
    for members in tasks.values():
        names = _own_tables(members)
        for values in _value_combinations(members, names):
            chosen = [line for line in members if _belongs(line, names, values)]
            if len({(line.setup.config.rule, line.setup.config.attack) for line in chosen}) > 1:
                number += 1
                tables += [_pivot(chosen, names, values, number, final) for final in (False, True)]
    return tables


def _pivot(lines: Sequence[Summary], names: Sequence[str], values: Sequence[Any], number: int, final: bool) -> str:
    setups = [line.setup for line in lines]
    rules, attacks = (values_in_order(setups, name) for name in ("rule", "attack"))
    attacked = [setup.config for setup in setups if setup.config.attack != NO_ATTACK]
    expected = _expected(attacked[0]) if attacked else None
    cells: dict[tuple[str, str], Summary] = {}
    # Of several unattacked runs of a rule, the one that expects as many Byzantine workers as the attacked ones do.
    for line in sorted(lines, key=lambda line: _expected(line.setup.config) != expected):
        cells.setdefault((line.setup.config.rule, line.setup.config.attack), line)
    # A baseline that nobody attacked, which drops are measured against, is a number for the caption and not a table.
    plain = [key for key in cells if key[1] == NO_ATTACK]
    baseline = None
    if len(plain) == 1 and attacked and sum(rule == plain[0][0] for rule, _ in cells) == 1:
        baseline = cells[plain[0]]
        rules, attacks = ([each for each in found if each not in plain[0]] for found in (rules, attacks))
    columns = [[cells.get((rule, attack)) for rule in rules] for attack in attacks]
    texts = [_column(column, final) for column in columns]
    header = ["rule", *(escaped(value_text("attack", attack)) for attack in attacks)]
    rows = [[escaped(rule), *cell] for rule, *cell in zip(rules, *texts, strict=True)]
    config, metric = (attacked or [setups[0].config])[0], setups[0].metric
    told = [(name, value) for name, value in zip(names, values, strict=True) if name not in ("workers", "byzantine")]
    where = [config.task, f"{config.byzantine} of {config.workers} workers Byzantine" if attacked else "no attack"]
    where += [setting_text(name, value) for name, value in told]
    unit = " (%)" if metric.percent else ""
    caption = (
        f"{', '.join(where)}: {'final' if final else metric.extreme} {metric.words}{unit}, "
        f"mean ± standard deviation over {_seed_counts(setups)} seeds; bold: the best of the column."
    )
    if baseline is not None:
        caption += f" Without an attack, {baseline.setup.config.rule} has {_shown(baseline, final)}."
    diverged = sum(line.diverged for line in cells.values())
    if diverged and final:
        caption += f" Runs that diverged ({diverged}) count with their last evaluation."
    differing = [
        name
        for name in layout.varying(setups)
        if name not in names and len({_value(line, name) for line in _judged(lines, name)}) > 1
    ]
    return "\n".join(
        [
            f"% all runs: {layout.common_text(setups)}",
            *([f"% settings that differ between these runs, too: {', '.join(differing)}"] if differing else []),
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escaped(caption)}}}",
            rf"\label{{tab:gyroscope-{number}{'-final' * final}}}",
            *_tabular("l" + "r" * len(attacks), header, rows),
            r"\end{table}",
        ]
    )


def _shown(line: Summary, final: bool) -> MeanStd:
    return line.final if final else line.best


def _column(lines: Sequence[Summary | None], final: bool) -> list[str]:
    """Return the cells of a column; bold are those that print the best mean, if there are others to compare with."""
    shown = [None if line is None else _shown(line, final) for line in lines]
    known = [value for value in shown if value is not None and not math.isnan(value.mean)]
    best = ""
    if len(known) > 1:
        better = next(line.setup.metric.better for line in lines if line is not None)
        winner = (max if better == "higher" else min)(known, key=lambda value: value.mean)
        best = winner.number(winner.mean)
    return ["--" if value is None else _math(str(value), bold=value.number(value.mean) == best) for value in shown]


def _own_tables(lines: Sequence[Summary]) -> list[str]:
    """Return the settings whose values have tables of their own."""
    keys = dict.fromkeys(name for line in lines for name in line.setup.config.experiment())
    others = [name for name in keys if name not in ("task", "seed", "rule", "attack", *_OWN_TABLES)]
    names = [name for name in _OWN_TABLES if len({_value(line, name) for line in _judged(lines, name)}) > 1]
    for name in others:
        cells: dict[tuple[Any, ...], set[Any]] = {}
        for line in _judged(lines, name):
            cells.setdefault(_key(line, ("rule", "attack", *names)), set()).add(_value(line, name))
        if any(len(found) > 1 for found in cells.values()):
            names.append(name)
    return names


def _value_combinations(lines: Sequence[Summary], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return which values these settings have together: under attack, and of runs that belong to none of those."""
    attacked = [line for line in lines if line.setup.config.attack != NO_ATTACK]
    found = dict.fromkeys(_key(line, names) for line in attacked)
    for line in lines:
        if not any(_belongs(line, names, values) for values in found):
            found[_key(line, names)] = None
    setups = [line.setup for line in lines]
    ranks = {name: values_in_order(setups, name) for name in names if name not in OF_ATTACKS}
    return sorted(
        found,
        key=lambda key: [
            (ranks[name].index(value), 0) if name in ranks else (value is not None, value or 0)
            for name, value in zip(names, key, strict=True)
        ],
    )


def _judged(lines: Sequence[Summary], name: str) -> Sequence[Summary]:
    """Return the lines in which a setting has a meaning: the number of Byzantine workers has none without an attack."""
    return [line for line in lines if name not in OF_ATTACKS or line.setup.config.attack != NO_ATTACK]


def _belongs(line: Summary, names: Sequence[str], values: Sequence[Any]) -> bool:
    unattacked = line.setup.config.attack == NO_ATTACK
    return all(
        (unattacked and name in OF_ATTACKS) or _value(line, name) == value
        for name, value in zip(names, values, strict=True)
    )


def _key(line: Summary, names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(_value(line, name) for name in names)


def _value(line: Summary, name: str) -> Any:
    config = line.setup.config
    if name == "declared_byzantine" and config.declared_byzantine == config.byzantine:
        return None  # as if it had not been said
    return getattr(config, name, None)


def _expected(config: Any) -> int:
    """Return how many Byzantine workers the rule expects."""
    return int(config.byzantine if config.declared_byzantine is None else config.declared_byzantine)


# -- text ------------------------------------------------------------------------------------------------------------


def _tabular(alignment: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(header) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _math(text: str, bold: bool = False) -> str:
    if text == "–":
        return "--"
    formula = text.replace("±", r"\pm").replace("−", "-").replace("inf", r"\infty")
    return rf"$\mathbf{{{formula}}}$" if bold else f"${formula}$"


def escaped(text: str) -> str:
    """Return a text in which LaTeX takes no letter for a command."""
    return text.translate(_SPECIAL)


def _seed_counts(setups: Sequence[SetupResult]) -> str:
    counts = sorted({len(setup.runs) for setup in setups})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"

"""Decide which chart shows what: setups in the paper's order, what tells them apart, and the blocks of charts.

A block of the metric is one task, attack and number of Byzantine workers: a row per learning rate (the larger on top),
a column per placement, a curve per rule and one for the unattacked average. A block of ratios or of straightness is one
task, rule and number of Byzantine workers: a row per learning rate, a column per attack, a curve per placement.
Whatever else varies between the setups of a task becomes part of the curve's label.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gyroscope.attacks import ATTACKS
from gyroscope.experiments.grid import PLACES
from gyroscope.experiments.results import SetupResult
from gyroscope.report.page_summary import Summary, is_baseline
from gyroscope.rules import RULES
from gyroscope.runs.config import NO_ATTACK, Config
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation.tasks import TASKS

_PLACED = ("task", "attack", "byzantine", "lr", "momentum", "rule", "seed", "declared_byzantine")
"""Settings that blocks, columns, rows and labels show already."""

_DASHES = ("dash", "dashdot", "longdash", "dot", "solid")
_MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "star", "pentagon")
_COLOURS = 6
INK = -1
"""The colour of the text: black on white, white on black."""
_OWN_STYLE = {
    "krum": (0, "dash", "circle"), "median": (1, "dashdot", "square"), "bulyan": (2, "longdash", "triangle-up"),
    "average": (3, "dot", "diamond"), "server": (0, "dash", "circle"), "workers": (1, "solid", "square"),
}  # fmt: skip
_FIRST_FREE = 4


def in_order(setups: Iterable[SetupResult]) -> list[SetupResult]:
    """Sort setups as the paper does: little before empire, no attack last, large f and learning rates first."""

    def key(setup: SetupResult) -> tuple[Any, ...]:
        c = setup.config
        return (
            _rank(c.task, TASKS), _rank(c.attack, ATTACKS), -c.byzantine, rate_rank(c.lr), _rank(c.momentum, PLACES),
            _rank(c.rule, RULES), c.to_toml(),
        )  # fmt: skip

    return sorted(setups, key=key)


def rate_rank(lr: str | float | None) -> tuple[float, str]:
    """Return a sort key that puts larger rates first."""
    return (-Schedule.parse(lr).at(0), str(lr)) if lr is not None else (0.0, "")


def _rank(spec: str, known: Iterable[str]) -> tuple[int, str]:
    """Return a sort key in the order of the table, then what it does not list, then the absence of an attack."""
    order, name = list(known), spec.partition(":")[0]
    return (order.index(name) if name in order else len(order) + (known is ATTACKS and spec == NO_ATTACK), spec)


def rate_text(lr: str | float | None) -> str:
    """Return `0.01,1500:0.001` in words."""
    if lr is None:
        return "–"
    (_, first), *later = Schedule.parse(lr).pieces
    return f"{first:g}" + "".join(f" → {rate:g} at step {step:,}" for step, rate in later)


def varying(setups: Iterable[SetupResult]) -> list[str]:
    """Return the settings without a place of their own that differ between setups of one task."""
    seen: dict[tuple[str, str], set[object]] = {}
    for config in (setup.config for setup in setups):
        for key, value in config.experiment().items():
            if key not in _PLACED:
                seen.setdefault((key, config.task), set()).add(value)
        if config.declared_byzantine not in (None, config.byzantine):  # the rule expects another number than there are
            seen.setdefault(("declared_byzantine", config.task), {None}).add(config.declared_byzantine)
    found = {key for (key, _), values in seen.items() if len(values) > 1}
    return [field.name for field in dataclasses.fields(Config) if field.name in found]


def common_settings(setups: Sequence[SetupResult]) -> dict[str, object]:
    """Return the settings that all setups share, by name."""
    each = [setup.config.experiment() for setup in setups] or [{}]
    shared = {name: value for name, value in each[0].items() if all(other.get(name) == value for other in each)}
    return {name: value for name, value in shared.items() if name != "seed" and value is not None}


def common_text(setups: Sequence[SetupResult]) -> str:
    """Return them as one line."""
    return ", ".join(f"{name} = {value}" for name, value in common_settings(setups).items())


def _extra(config: Config, fields: Sequence[str]) -> str:
    """Return the settings of these names as the end of a label."""
    values = ((field, getattr(config, field)) for field in fields)
    return "".join(f", {field}={f'{value:g}' if isinstance(value, float) else value}" for field, value in values)


def full_label(setup: SetupResult, fields: Sequence[str]) -> str:
    """Return a label that tells a setup apart from every other."""
    c = setup.config
    threat = _unless_none(c, f"{c.attack} f={c.byzantine}")
    return f"{c.task} · {threat} · {c.rule}{_extra(c, fields)} · lr {rate_text(c.lr)} · {place_text(c.momentum)}"


def _unless_none(config: Config, text: str) -> str:
    return "no attack" if config.attack == NO_ATTACK else text


def place_text(momentum: str) -> str:
    """Return a placement in words."""
    return "no momentum" if momentum == "none" else f"momentum at the {momentum}"


def styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return a colour, a dash pattern and a marker for each label, so that curves differ without colour too."""
    chosen: dict[str, dict[str, Any]] = {}
    free, plain = _FIRST_FREE, 0
    for label in dict.fromkeys(labels):
        if label in _OWN_STYLE:
            colour, dash, marker = _OWN_STYLE[label]
        elif label.startswith("average, no attack"):
            marker = _MARKERS[-plain % len(_MARKERS)] * (plain > 0)
            colour, dash, plain = INK, _DASHES[plain % len(_DASHES) - 1], plain + 1
        else:
            colour, dash, marker = free % _COLOURS, _DASHES[free % len(_DASHES)], _MARKERS[free % len(_MARKERS)]
            free += 1
        chosen[label] = {"colour": colour, "dash": dash, "marker": marker}
    return chosen


def measured_blocks(lines: Sequence[Summary], fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return blocks by task, attack and f; the baselines of what a chart shows are its last curves."""

    def curves(cell: Sequence[Summary]) -> list[tuple[SetupResult, str]]:
        baselines = {id(line.baseline): line.baseline for line in cell if line.baseline is not None}
        members = [line.setup for line in cell if id(line.setup) not in baselines] + list(baselines.values())
        names = ["average, no attack" if is_baseline(setup) else setup.config.rule for setup in members]
        return [(setup, name + _extra(setup.config, fields)) for setup, name in zip(members, names, strict=True)]

    return _blocks(
        lines, "measured", curves,
        block=lambda c: (c.task, c.attack, c.byzantine),
        title=lambda c: f"{c.task} · {_unless_none(c, f'{c.attack} · f = {c.byzantine} of {c.workers} workers')}",
        column=lambda c: (_rank(c.momentum, PLACES), place_text(c.momentum)),
    )  # fmt: skip


def placement_blocks(lines: Sequence[Summary], fields: Sequence[str], kind: str) -> list[dict[str, Any]]:
    """Return blocks by task, rule and f, one curve per placement."""

    def curves(cell: Sequence[Summary]) -> list[tuple[SetupResult, str]]:
        return [(line.setup, line.setup.config.momentum + _extra(line.setup.config, fields)) for line in cell]

    return _blocks(
        lines, kind, curves,
        block=lambda c: (c.task, c.rule, c.byzantine),
        title=lambda c: f"{c.task} · {c.rule} · {_unless_none(c, f'f = {c.byzantine}')}",
        column=lambda c: (_rank(c.attack, ATTACKS), _unless_none(c, c.attack)),
    )  # fmt: skip


def _blocks(
    lines: Sequence[Summary],
    kind: str,
    curves: Callable[[Sequence[Summary]], list[tuple[SetupResult, str]]],
    *,
    block: Callable[[Config], tuple[Any, ...]],
    title: Callable[[Config], str],
    column: Callable[[Config], tuple[tuple[int, str], str]],
) -> list[dict[str, Any]]:
    """Group lines into blocks of charts, one chart for each learning rate and column.

    Args:
        curves: Returns the (setup, label) pairs of a chart.
        block: Returns what the setups of a block have in common.
        column: Returns (sort key, title) of the column that a setup belongs to.
    """
    index = {id(line.setup): number for number, line in enumerate(lines)}
    grouped: dict[tuple[Any, ...], list[Summary]] = {}
    for line in lines:
        grouped.setdefault(block(line.setup.config), []).append(line)
    blocks = []
    for number, members in enumerate(grouped.values()):
        columns = sorted({column(line.setup.config) for line in members})
        charts: list[dict[str, Any]] = []
        for lr in sorted({line.setup.config.lr for line in members}, key=rate_rank):
            for rank, text in columns:
                cell = [m for m in members if m.setup.config.lr == lr and column(m.setup.config) == (rank, text)]
                shown = [{"setup": index[id(setup)], "label": label} for setup, label in curves(cell)]
                name = f"{kind}-{number}-{len(charts)}"
                charts.append({"id": name, "title": f"lr {rate_text(lr)} · {text}", "curves": shown})
        blocks.append(
            {
                "id": f"{kind}-{number}",
                "title": title(members[0].setup.config),
                "columns": len(columns),
                "charts": charts,
                "labels": list(dict.fromkeys(curve["label"] for chart in charts for curve in chart["curves"])),
            }
        )
    return blocks

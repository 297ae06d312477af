"""Which chart shows what: setups in the paper's order, what tells them apart, and the blocks of charts.

A block of accuracies is one task, attack and number of Byzantine workers: a row per learning rate (the larger on top),
a column per placement, a curve per rule and one for the unattacked average. A block of ratios or of straightness is one
task, rule and number of Byzantine workers: a row per learning rate, a column per attack, a curve per placement.
Whatever else varies between the setups of a task becomes part of the curve's label.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gyroscope.attacks import ATTACKS
from gyroscope.experiments.results import SetupResult
from gyroscope.report.page_summary import NO_ATTACK, Summary, is_baseline
from gyroscope.rules import RULES
from gyroscope.runs.config import Config
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation.tasks import TASKS

PLACEMENTS = ("server", "workers")
_OWN_PLACE = ("task", "attack", "byzantine", "lr", "momentum", "rule", "seed", "declared_byzantine")

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
    """Setups as the paper has them: little before empire, no attack last, large f and learning rates first."""

    def key(setup: SetupResult) -> tuple[Any, ...]:
        c = setup.config
        return (
            _rank(c.task, [*TASKS]), attack_rank(c.attack), -c.byzantine, rate_rank(c.lr),
            placement_rank(c.momentum), rule_rank(c.rule), c.to_toml(),
        )  # fmt: skip

    return sorted(setups, key=key)


def attack_rank(attack: str) -> tuple[int, str]:
    return _rank(attack, [*ATTACKS]) if attack != NO_ATTACK else (len(ATTACKS) + 1, "")


def rule_rank(rule: str) -> tuple[int, str]:
    return _rank(rule, [*RULES])


def placement_rank(placement: str) -> tuple[int, str]:
    return _rank(placement, PLACEMENTS)


def rate_rank(lr: str | float | None) -> tuple[float, str]:
    """Larger rates first."""
    return (-Schedule.parse(lr).at(0), str(lr)) if lr is not None else (0.0, "")


def _rank(spec: str, known: Sequence[str]) -> tuple[int, str]:
    name = spec.partition(":")[0]
    return (known.index(name) if name in known else len(known), spec)


def rate_text(lr: str | float | None) -> str:
    """`0.01,1500:0.001` in words."""
    if lr is None:
        return "–"
    (_, first), *later = Schedule.parse(lr).pieces
    return f"{first:g}" + "".join(f" → {rate:g} at step {step:,}" for step, rate in later)


def varying(setups: Iterable[SetupResult]) -> list[str]:
    """The settings without a place of their own that differ between setups of one task."""
    seen: dict[tuple[str, str], set[object]] = {}
    for setup in setups:
        for key, value in setup.config.experiment().items():
            if key not in _OWN_PLACE:
                seen.setdefault((key, setup.config.task), set()).add(value)
        if _declared(setup.config) is not None:
            seen.setdefault(("declared_byzantine", setup.config.task), set()).update((None, _declared(setup.config)))
    found = {key for (key, _), values in seen.items() if len(values) > 1}
    return [field.name for field in dataclasses.fields(Config) if field.name in found]


def _declared(config: Config) -> int | None:
    """What the rule was told, where it differs from the truth."""
    return None if config.declared_byzantine in (None, config.byzantine) else config.declared_byzantine


def extra(config: Config, fields: Sequence[str]) -> str:
    """The settings of these names, as the end of a label."""
    return "".join(f", {field}={_text(getattr(config, field))}" for field in fields)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def curve_label(setup: SetupResult, fields: Sequence[str]) -> str:
    """What an accuracy curve is called in its block."""
    rule = "average, no attack" if is_baseline(setup) else setup.config.rule
    return rule + extra(setup.config, fields)


def full_label(setup: SetupResult, fields: Sequence[str]) -> str:
    """A setup told apart from every other."""
    c = setup.config
    threat = "no attack" if c.attack == NO_ATTACK else f"{c.attack} f={c.byzantine}"
    return f"{c.task} · {threat} · {c.rule}{extra(c, fields)} · lr {rate_text(c.lr)} · {place_text(c.momentum)}"


def place_text(momentum: str) -> str:
    return "no momentum" if momentum == "none" else f"momentum at the {momentum}"


def styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A colour, a dash pattern and a marker for each label, so that curves differ without colour too."""
    chosen: dict[str, dict[str, Any]] = {}
    free, plain = _FIRST_FREE, 0
    for label in dict.fromkeys(labels):
        if label in _OWN_STYLE:
            colour, dash, marker = _OWN_STYLE[label]
        elif label.startswith("average, no attack"):
            colour, dash, marker = (
                INK,
                _DASHES[plain % len(_DASHES) - 1],
                _MARKERS[-plain % len(_MARKERS)] * (plain > 0),
            )
            plain += 1
        else:
            colour, dash, marker = free % _COLOURS, _DASHES[free % len(_DASHES)], _MARKERS[free % len(_MARKERS)]
            free += 1
        chosen[label] = {"colour": colour, "dash": dash, "marker": marker}
    return chosen


# -- blocks ----------------------------------------------------------------------------------------------------------


def accuracy_blocks(lines: Sequence[Summary], fields: Sequence[str]) -> list[dict[str, Any]]:
    """Setups by task, attack and f; the baselines of what a chart shows are its last curves."""
    place = {id(line.setup): index for index, line in enumerate(lines)}

    def curves(cell: Sequence[Summary]) -> list[dict[str, Any]]:
        baselines = {id(line.baseline): line.baseline for line in cell if line.baseline is not None}
        members = [line.setup for line in cell if id(line.setup) not in baselines] + list(baselines.values())
        return [{"setup": place[id(setup)], "label": curve_label(setup, fields)} for setup in members]

    return _blocks(
        lines, "accuracy",
        block=lambda c: (c.task, c.attack, c.byzantine),
        title=lambda c: f"{c.task} · {_threat(c)}",
        column=lambda c: c.momentum, column_text=place_text, column_rank=placement_rank,
        curves=curves,
    )  # fmt: skip


def placement_blocks(lines: Sequence[Summary], fields: Sequence[str], kind: str) -> list[dict[str, Any]]:
    """Setups by task, rule and f, one curve per placement."""
    place = {id(line.setup): index for index, line in enumerate(lines)}

    def curves(cell: Sequence[Summary]) -> list[dict[str, Any]]:
        return [
            {"setup": place[id(line.setup)], "label": line.setup.config.momentum + extra(line.setup.config, fields)}
            for line in cell
        ]

    return _blocks(
        lines, kind,
        block=lambda c: (c.task, c.rule, c.byzantine),
        title=lambda c: f"{c.task} · {c.rule} · {'no attack' if c.attack == NO_ATTACK else f'f = {c.byzantine}'}",
        column=lambda c: c.attack,
        column_text=lambda attack: "no attack" if attack == NO_ATTACK else attack, column_rank=attack_rank,
        curves=curves,
    )  # fmt: skip


def _threat(config: Config) -> str:
    if config.attack == NO_ATTACK:
        return "no attack"
    return f"{config.attack} · f = {config.byzantine} of {config.workers} workers"


def _blocks(
    lines: Sequence[Summary],
    kind: str,
    *,
    block: Callable[[Config], tuple[Any, ...]],
    title: Callable[[Config], str],
    column: Callable[[Config], str],
    column_text: Callable[[str], str],
    column_rank: Callable[[str], tuple[int, str]],
    curves: Callable[[Sequence[Summary]], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    grouped: dict[tuple[Any, ...], list[Summary]] = {}
    for line in lines:
        grouped.setdefault(block(line.setup.config), []).append(line)
    blocks = []
    for number, members in enumerate(grouped.values()):
        columns = sorted({column(line.setup.config) for line in members}, key=column_rank)
        rates = sorted({line.setup.config.lr for line in members}, key=rate_rank)
        charts: list[dict[str, Any]] = []
        for lr in rates:
            for name in columns:
                cell = [m for m in members if m.setup.config.lr == lr and column(m.setup.config) == name]
                text = f"lr {rate_text(lr)} · {column_text(name)}"
                charts.append({"id": f"{kind}-{number}-{len(charts)}", "title": text, "curves": curves(cell)})
        labels = dict.fromkeys(curve["label"] for chart in charts for curve in chart["curves"])
        blocks.append(
            {
                "id": f"{kind}-{number}",
                "title": title(members[0].setup.config),
                "columns": len(columns),
                "charts": charts,
                "labels": list(labels),
            }
        )
    return blocks

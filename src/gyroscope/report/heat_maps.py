"""Heat-maps of a folder of runs: the mean of the task's metric for each value of two settings.

A panel has one value of a third setting, a figure one value of everything else that tells the setups apart.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.errors import ConfigError
from gyroscope.experiments.results import RunResult, SetupResult, group
from gyroscope.report import page_layout as layout
from gyroscope.report.figures import FigureOptions, draw_heat_map, new_figure, save, wrapped
from gyroscope.runs.config import NO_ATTACK, Config
from gyroscope.simulation.task_metric import TaskMetric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Axes = tuple[str, str]
"""The settings of the rows and of the columns."""

SCALE = "cividis"
"""The colours: readers who are colour-blind, and grey printers, see the same order of brightness."""
_ORDER = ("rule", "attack", "momentum", "byzantine", "lr")
"""Which settings become axes first, if they vary, and then panels."""
OF_ATTACKS = ("byzantine", "declared_byzantine")
"""Settings without a meaning where nobody attacks: such setups belong to every value."""
_WIDEST = 13.0
"""Inches beside each other, before panels go below each other."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """The mean over the seeds of a run's best value, in rows and columns; NaN where there is no run."""

    title: str
    values: list[list[float]]


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """A figure: panels with the same rows and columns."""

    name: str
    title: str
    axes: Axes
    rows: list[str]
    columns: list[str]
    panels: list[Panel]
    metric: TaskMetric

    def text(self, value: float) -> str:
        """Return what a cell says."""
        if math.isnan(value):
            return "–"
        return f"{value:.1f}" if self.metric.percent else f"{value:.3g}".replace("inf", "∞")

    def shades(self) -> list[list[list[float]]]:
        """Return a shade for each cell of each panel: from 0 for the worst value of all to 1 for the best."""
        lower = self.metric.better == "lower"

        def level(value: float) -> float:  # losses and perplexities differ by factors
            level = -math.log(value) if lower and value > 0 else -value if lower else value
            return level if math.isfinite(level) else math.nan

        cells = [value for panel in self.panels for row in panel.values for value in row]
        known = [level(value) for value in cells if math.isfinite(level(value))]
        low, high = (min(known), max(known)) if known else (0.0, 0.0)

        def shade(value: float) -> float:
            if math.isnan(value):
                return math.nan
            if math.isinf(value):
                return 0.0
            return (level(value) - low) / (high - low) if high > low else 0.5

        return [[[shade(value) for value in row] for row in panel.values] for panel in self.panels]


def parse_axes(text: str | None) -> Axes | None:
    """Return the two settings that `--heat-map ROWS,COLUMNS` names.

    Raises:
        ConfigError: These are not two different settings.
    """
    if text is None:
        return None
    known = {field.name: field.name for field in dataclasses.fields(Config)} | {"f": "byzantine"}
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2:
        raise ConfigError(f"cannot read --heat-map {text!r}: write two settings, as in rule,attack")
    for name in names:
        if name not in known or name == "seed":
            near = difflib.get_close_matches(name, [each for each in known if each != "seed"], 1)
            hint = f"did you mean {near[0]!r}?" if near else "take a key of config.toml but the seed"
            raise ConfigError(f"--heat-map {text}: {name!r} is no setting that a heat-map can show; {hint}")
    rows, columns = (known[name] for name in names)
    if rows == columns:
        raise ConfigError(f"--heat-map {text}: rows and columns are the same setting; write two, as in rule,attack")
    return rows, columns


def heat_maps(runs: Iterable[RunResult], axes: Axes | None = None) -> list[HeatMap]:
    """Return the heat-maps of each task that has runs for at least two values of two settings.

    Args:
        runs: The runs.
        axes: The settings of the rows and columns. By default those of rule, attack, momentum, byzantine, lr and the
            other settings, in this order, that vary first. With axes that are given, one of them need not vary.
    """
    tasks: dict[tuple[str, str], list[SetupResult]] = {}
    for setup in layout.in_order(group(runs)):
        tasks.setdefault((setup.config.task, setup.metric.name), []).append(setup)
    return [one for setups in tasks.values() for one in _of_task(setups, axes)]


def _of_task(setups: Sequence[SetupResult], axes: Axes | None) -> list[HeatMap]:
    varying = [name for name in _settings(setups) if len({_value(setup, name) for setup in setups}) > 1]
    if axes is None:
        if len(varying) < 2:
            return []
        axes = varying[0], varying[1]
    elif not set(axes) & set(varying):
        return []
    # Only settings that tell apart what would be in the same cell: not those that follow from others.
    apart: list[str] = []
    panels_first = sorted((name for name in varying if name not in axes), key=lambda name: name != "momentum")
    for name in panels_first:
        cells: dict[tuple[object, ...], set[object]] = {}
        for setup in setups:
            cells.setdefault(_key(setup, (*axes, *apart)), set()).add(_value(setup, name))
        if any(len(values) > 1 for values in cells.values()):
            apart.append(name)
    by_panel, by_figure = apart[:1], apart[1:]
    found = []
    for chosen in _combinations(setups, by_figure):
        members = [setup for setup in setups if _fits(setup, by_figure, chosen)]
        found.append(_heat_map(members, axes, by_panel, [*zip(by_figure, chosen, strict=True)]))
    return [one for one in found if len(one.rows) * len(one.columns) > 1]


def _heat_map(
    setups: Sequence[SetupResult], axes: Axes, by_panel: Sequence[str], fixed: Sequence[tuple[str, object]]
) -> HeatMap:
    rows, columns = (values_in_order(setups, name) for name in axes)
    panels = []
    for chosen in _combinations(setups, by_panel):
        members = [setup for setup in setups if _fits(setup, by_panel, chosen)]
        cells = {
            (row, column): [
                setup.metric.scale * run.best
                for setup in members
                if _key(setup, axes) == (row, column)
                for run in setup.runs
            ]
            for row in rows
            for column in columns
        }
        values = [[_mean(cells[row, column]) for column in columns] for row in rows]
        title = ", ".join(setting_text(name, value) for name, value in zip(by_panel, chosen, strict=True))
        panels.append(Panel(title, values))
    task, metric = setups[0].config.task, setups[0].metric
    where = [task, *(setting_text(name, value) for name, value in fixed)]
    unit = " (%)" if metric.percent else ""
    seeds = len({seed for setup in setups for seed in setup.seeds})
    title = (
        f"{', '.join(where)}: {metric.extreme} {metric.words}{unit}, mean over {seeds} seed{'s' * (seeds != 1)}; "
        "bright is better"
    )
    name = "-".join(["heat-map", task, *axes, *(f"{name}_{value}" for name, value in fixed)])
    texts = [[value_text(axis, value) for value in each] for axis, each in zip(axes, (rows, columns), strict=True)]
    return HeatMap(_file_name(name), title, axes, texts[0], texts[1], panels, metric)


def _settings(setups: Sequence[SetupResult]) -> list[str]:
    """Return the names of all settings, in the order in which they become axes and panels."""
    names = dict.fromkeys([*_ORDER, *(name for setup in setups for name in setup.config.experiment())])
    return [name for name in names if name not in ("seed", "task")]


def _value(setup: SetupResult, name: str) -> Any:
    return getattr(setup.config, name, None)


def _key(setup: SetupResult, names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(_value(setup, name) for name in names)


def _fits(setup: SetupResult, names: Sequence[str], values: Sequence[object]) -> bool:
    unattacked = setup.config.attack == NO_ATTACK
    return all(
        (unattacked and name in OF_ATTACKS) or _value(setup, name) == value
        for name, value in zip(names, values, strict=True)
    )


def _combinations(setups: Sequence[SetupResult], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return which values these settings have together; of the settings of attacks only those under attack."""
    attacked = [setup for setup in setups if setup.config.attack != NO_ATTACK]
    judged = attacked if set(names) & set(OF_ATTACKS) and attacked else setups
    order = {name: {value: place for place, value in enumerate(values_in_order(judged, name))} for name in names}
    found = {_key(setup, names) for setup in judged}
    return sorted(found, key=lambda key: [order[name][value] for name, value in zip(names, key, strict=True)])


def values_in_order(setups: Sequence[SetupResult], name: str) -> list[Any]:
    """Return the values of a setting: numbers in ascending order, others in the order of the setups."""
    found = list(dict.fromkeys(_value(setup, name) for setup in setups))
    if name == "lr":
        return sorted(found, key=layout.rate_rank)
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in found):
        return sorted(found)
    return found


def value_text(name: str, value: Any) -> str:
    """Return a value as the name of a row or column."""
    if name == "attack" and value == NO_ATTACK:
        return "no attack"
    return str(value) if name in ("rule", "attack", "momentum") else setting_text(name, value)


def setting_text(name: str, value: Any) -> str:
    """Return a setting and its value in words."""
    if name == "momentum":
        return layout.place_text(value)
    if name == "lr":
        return f"lr {layout.rate_text(value)}"
    if name == "attack" and value == NO_ATTACK:
        return "no attack"
    return f"{'f' if name == 'byzantine' else name} = {value}"


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in text)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.fmean(known) if known else math.nan


# -- drawing ---------------------------------------------------------------------------------------------------------


def write_all(
    runs: Iterable[RunResult],
    folder: Path,
    advance: Callable[[str, int, int], None] = lambda *_: None,
    options: FigureOptions | None = None,
    axes: Axes | None = None,
) -> list[Path]:
    """Draw all heat-maps of the runs; return the files written.

    Args:
        runs: The runs.
        folder: Where the files go.
        advance: Called before each figure with its name, how many are done and how many there are.
        options: Another size or title.
        axes: As for `heat_maps`.
    """
    options = options or FigureOptions()
    drawings = {one.name: partial(figure, one, options) for one in heat_maps(runs, axes)}
    written: list[Path] = []
    for number, (name, make) in enumerate(drawings.items()):
        advance(name, number, len(drawings))
        written += save(options.apply(make()), folder / name)
    return written


def figure(one: HeatMap, options: FigureOptions | None = None) -> Figure:
    """Draw a heat-map, its panels beside each other as long as the page is wide enough."""
    size = (options or FigureOptions()).size
    cell = 0.16 + 0.075 * max(len(one.text(value)) for panel in one.panels for row in panel.values for value in row)
    labels, heads = (0.075 * max(map(len, names)) for names in (one.rows, one.columns))
    width, height = max(1.2, cell * len(one.columns)), 0.28 * len(one.rows)
    beside = min(len(one.panels), max(1, int((_WIDEST - labels) / (width + 0.4))))
    below = -(-len(one.panels) // beside)
    size = size or (max(4.5, 0.6 + labels + beside * (width + 0.4)), 0.9 + below * (height + 0.5 + 0.9 * heads))
    drawn, grid = new_figure(below, beside, share=False, size=size)
    for number, (axes, panel, shades) in enumerate(zip(grid.flatten(), one.panels, one.shades(), strict=False)):
        texts = [[one.text(value) for value in row] for row in panel.values]
        draw_heat_map(axes, shades, texts, one.rows if number % beside == 0 else [], one.columns, SCALE)
        axes.set_title(wrapped(panel.title, size[0] / beside), fontsize=10)
    for axes in grid.flatten()[len(one.panels) :]:
        axes.set_visible(False)
    drawn.suptitle(wrapped(one.title, size[0]), fontsize=11)
    return drawn

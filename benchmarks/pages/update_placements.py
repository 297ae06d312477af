"""Run the grids of docs/beyond/placements.md and adapting.md, and rewrite their tables and figures.

    python -m benchmarks.pages.update_placements runs/placements

The grids are placements.toml and adapting.toml beside this file; complete runs are not repeated. `--no-runs` reads only
the runs that exist and leaves the numbers of the others empty.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import DOCS, GRIDS, markers
from gyroscope.cli import main as gyroscope
from gyroscope.experiments import grid, results
from gyroscope.experiments.results import RunResult, SetupResult
from gyroscope.report import figures
from gyroscope.runs.config import Config
from gyroscope.runs.schedule import Schedule

BEYOND = DOCS / "beyond"
RATES = (0.5, 0.02)
DEFENCES = (("krum", 24), ("median", 24), ("krum", 12), ("median", 12), ("bulyan", 12))
FORESEEN = {"little": "foresight", "empire": "empire"}
"""The attacks, and the form in which an adversary that knows the server's accumulated sums would use them. `empire`
needs no other form: it sends a share of the mean, and the same share of the accumulated mean serves it as well."""
PAPERS = ("server", "workers")
PLACEMENTS = (*PAPERS, "server-kept", "feedback", "adaptive", "adaptive-oracle")
SHOWN = 68.0
"""Where the axis of the accuracy begins, in percent. Smaller values are written as text."""
ADAPTATIONS = ("mu", "lr", "safe-lr", "mu+safe-lr")
STYLES: dict[str, dict[str, Any]] = {
    "server": {"color": "#D55E00", "marker": "o"},
    "workers": {"color": "#0072B2", "marker": "s"},
    "server-kept": {"color": "#56B4E9", "marker": "D"},
    "feedback": {"color": "#E69F00", "marker": "v"},
    "adaptive": {"color": "#009E73", "marker": "P"},
    "adaptive-oracle": {"color": "#000000", "marker": "x"},
    "adaptive, foreseen": {"color": "#009E73", "marker": "P", "fillstyle": "none"},
    "adaptive-oracle, foreseen": {"color": "#000000", "marker": "+"},
    "mu": {"color": "#D55E00", "marker": "o"},
    "lr": {"color": "#E69F00", "marker": "v"},
    "safe-lr": {"color": "#0072B2", "marker": "s"},
    "mu+safe-lr": {"color": "#009E73", "marker": "P"},
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings that stay the same while placements and adaptations are compared."""

    lr: float
    rule: str
    f: int
    attack: str

    @property
    def label(self) -> str:
        return "no attack, average" if self.attack == "none" else f"{self.attack}, {self.rule}, f = {self.f}"

    @property
    def cells(self) -> str:
        return f"| {self.attack} | {self.rule} | {self.f} |"

    @property
    def foreseen(self) -> Setting:
        return dataclasses.replace(self, attack=FORESEEN[self.attack])


class Study:
    """The runs by setting, placement and adaptation. Quantities of missing runs are NaN."""

    def __init__(self, setups: Iterable[SetupResult], wanted: int) -> None:
        self.setups = {_key(setup.config): setup for setup in setups}
        self.wanted = wanted

    def mean(
        self, quantity: Callable[[RunResult], float], setting: Setting, placement: str, adapt: str = "none"
    ) -> float:
        """Return the mean of a quantity over the seeds."""
        setup = self.setups.get((setting, placement, adapt))
        return math.nan if setup is None else setup.mean(quantity)

    def accuracy(self, setting: Setting, placement: str, adapt: str = "none") -> float:
        """Return the maximum accuracy over the run, in percent."""
        return self.mean(lambda run: 100 * run.max_accuracy, setting, placement, adapt)

    def size(self) -> str:
        """Return in words how much of the grid was run."""
        runs = [run for setup in self.setups.values() for run in setup.runs]
        seeds = sorted({run.config.seed for run in runs})
        return f"From {len(runs)} of the grid's {self.wanted} runs; seeds {', '.join(map(str, seeds))}."


def main(folder: Path, *options: str) -> int:
    for name, publish in (("placements", publish_placements), ("adapting", publish_adapting)):
        path = GRIDS / f"{name}.toml"
        if "--no-runs" not in options:
            code = gyroscope(["sweep", str(path), "--out", str(folder), *options])
            if code != 0:
                return code
        wanted = {grid.fingerprint(setup.config) for setup in grid.read(path)}
        runs = [run for run in markers.runs_in(folder) if grid.fingerprint(run.config) in wanted]
        publish(Study(results.group(runs), len(wanted)))
    return 0


def publish_placements(study: Study) -> None:
    markers.replace(BEYOND / "placements.md", {"accuracy": accuracy_table(study), "switch": switch_table(study)})
    draw_placements(study)


def publish_adapting(study: Study) -> None:
    markers.replace(BEYOND / "adapting.md", {"change": change_table(study), "force": force_table(study)})
    draw_adapting(study)


# -- tables ------------------------------------------------------------------------------------------------------------


def accuracy_table(study: Study) -> str:
    """Return the accuracy of every placement."""
    lines = _head(("lr", "attack", "rule", "f"), PLACEMENTS)
    for setting in [*_settings(RATES), *(Setting(rate, "average", 0, "none") for rate in RATES)]:
        values = [study.accuracy(setting, placement) for placement in PLACEMENTS]
        lines += _line(f"| {setting.lr:g} {setting.cells}", values, "{:.1f}")
    return "\n".join([*lines, "", f"Maximum accuracy in %. {study.size()}"])


def switch_table(study: Study) -> str:
    """Return how the adaptive placements fared against an adversary that knows the server's sums, and their choices."""
    lines = _head(
        ("lr", "attack", "rule", "f"),
        ("server", "workers", "adaptive", "oracle", "adaptive at workers", "oracle at workers", "agreed"),
    )
    for setting in _settings(RATES):
        adaptive = [(setting.foreseen, "adaptive"), (setting.foreseen, "adaptive-oracle")]
        shares = [100 * study.mean(_mean("at_workers"), at, placement) for at, placement in adaptive]
        shares.append(100 * study.mean(_agreement, setting.foreseen, "adaptive"))
        if not all(map(math.isnan, shares)):
            values = [
                *(study.accuracy(setting, place) for place in PAPERS),
                *(study.accuracy(*each) for each in adaptive),
            ]
            cells = [*(_cell("{:.1f}", value) for value in values), *(_cell("{:.0f} %", share) for share in shares)]
            lines.append(f"| {setting.lr:g} {setting.cells} {' | '.join(cells)} |")
    return "\n".join(lines)


def change_table(study: Study) -> str:
    """Return what each adaptation changes, in points, against none."""
    lines = _head(("momentum", "attack", "rule", "f"), ("none", *ADAPTATIONS))
    for place in PAPERS:
        for setting in [*_settings(RATES[:1]), Setting(RATES[0], "average", 0, "none")]:
            none, *changes = _changes(study, setting, place)
            if not all(map(math.isnan, changes)):
                cells = [_cell("{:.1f}", none), *(_cell("{:+.1f}", change) for change in changes)]
                lines.append(f"| {place} {setting.cells} {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Maximum accuracy in %, and its change in points. {study.size()}"])


def force_table(study: Study) -> str:
    """Return the factors and rates used, and how often the decrease condition held: means over rules and f."""
    lines = _head(
        ("momentum", "attack", "adapt"), ("runs", "mean mu", "mean lr", "decrease_holds", "median ratio_sent")
    )
    for place in PAPERS:
        for attack in (*FORESEEN, "none"):
            for adapt in ("none", *ADAPTATIONS):
                runs = [
                    run
                    for (setting, placement, kind), setup in study.setups.items()
                    if (setting.attack, placement, kind) == (attack, place, adapt)
                    for run in setup.runs
                ]
                if runs:
                    mu, lr, holds = (
                        statistics.fmean(map(_mean(column), runs)) for column in ("mu", "lr", "decrease_holds")
                    )
                    ratio = statistics.median(float(run.metrics["ratio_sent"].median()) for run in runs)
                    cells = f"{len(runs)} | {mu:.2f} | {lr:.2f} | {100 * holds:.0f} % | {ratio:.2g}"
                    lines.append(f"| {place} | {attack} | {adapt} | {cells} |")
    return "\n".join(lines)


def _head(left: Sequence[str], right: Sequence[str]) -> list[str]:
    cells = [*left, *right]
    return [f"| {' | '.join(cells)} |", f"|{'---|' * len(left)}{'---:|' * len(right)}"]


def _line(start: str, values: Sequence[float], pattern: str) -> list[str]:
    """Return a line of a table, or none where nothing was run. The largest number is bold."""
    there = [value for value in values if not math.isnan(value)]
    cells = [_cell(pattern, value) for value in values]
    bold = [
        f"**{cell}**" if value == max(there, default=0.0) else cell for cell, value in zip(cells, values, strict=True)
    ]
    return [f"{start} {' | '.join(bold)} |"] if there else []


def _cell(pattern: str, value: float) -> str:
    return "" if math.isnan(value) else pattern.format(value)


# -- figures -----------------------------------------------------------------------------------------------------------


def draw_placements(study: Study) -> None:
    """Draw all settings: a line per setting, a marker per placement."""
    rates = [rate for rate in RATES if any(setting.lr == rate for setting, _, _ in study.setups)]
    figure, panels = figures.new_figure(1, len(rates))
    for axes, rate in zip(panels[0], rates, strict=True):
        settings = [at for at in _settings([rate]) if any((at, place, "none") in study.setups for place in PLACEMENTS)]
        values = {place: [study.accuracy(setting, place) for setting in settings] for place in PLACEMENTS}
        for place in ("adaptive", "adaptive-oracle"):
            values[f"{place}, foreseen"] = [
                study.accuracy(at.foreseen, place) if at.foreseen != at else math.nan for at in settings
            ]
        _dots(axes, values)
        for line, everyone in enumerate(zip(*values.values(), strict=True)):
            there = [value for value in everyone if not math.isnan(value)]
            if max(there) < SHOWN:
                axes.text(SHOWN + 0.3, line, f"\N{LEFTWARDS ARROW} all at {max(there):.1f}", va="center", fontsize=9)
        axes.set_xlim(left=SHOWN)
        unattacked = study.accuracy(Setting(rate, "average", 0, "none"), "workers")
        if not math.isnan(unattacked):
            axes.axvline(unattacked, color="#000000", linewidth=0.8, linestyle=":", label="no attack, average")
        _name(axes, settings, f"learning rate {rate:g}", "maximum accuracy (%)")
    _finish(figure, panels[0], "Where momentum is: MNIST, 51 workers, f of them Byzantine", "placements")


def draw_adapting(study: Study) -> None:
    """Draw the change in points against a constant factor and rate."""
    figure, panels = figures.new_figure(1, len(PAPERS))
    settings = [*_settings(RATES[:1]), Setting(RATES[0], "average", 0, "none")]
    there = [at for at in settings if any((at, place, "mu") in study.setups for place in PAPERS)]
    for axes, place in zip(panels[0], PAPERS, strict=True):
        changes = [_changes(study, setting, place)[1:] for setting in there]
        _dots(axes, {adapt: [change[number] for change in changes] for number, adapt in enumerate(ADAPTATIONS)})
        axes.axvline(0, color="#000000", linewidth=0.8)
        _name(axes, there, f"momentum at the {place}", "change of the maximum accuracy (points)")
    _finish(figure, panels[0], "What adapting changes: MNIST, learning rate 0.5, 51 workers", "adapting")


def _dots(axes: Any, values: Mapping[str, Sequence[float]]) -> None:
    """Draw a row of numbers for each label. Rows are a little apart within a line, so that none hides another."""
    for number, (label, row) in enumerate(values.items()):
        if not all(map(math.isnan, row)):
            lines = [line + 0.7 * ((number + 0.5) / len(values) - 0.5) for line in range(len(row))]
            axes.plot(row, lines, linestyle="", markersize=6, label=label, **STYLES[label])


def _name(axes: Any, settings: Sequence[Setting], title: str, label: str) -> None:
    axes.set_yticks(range(len(settings)), [setting.label for setting in settings])
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
    axes.set_ylim(-0.5, len(settings) - 0.5)
    for line in range(1, len(settings)):
        axes.axhline(line - 0.5, color="#BBBBBB", linewidth=0.6)


def _finish(figure: Any, panels: Sequence[Any], title: str, name: str) -> None:
    panels[0].invert_yaxis()  # shared: the first setting is on top of all panels
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    figure.suptitle(title)
    figure.set_size_inches(3 + 4 * len(panels), 2.2 + 0.45 * len(panels[0].get_yticks()))
    figures.save_for_page(figure, BEYOND / f"{name}.png")


# -- which runs --------------------------------------------------------------------------------------------------------


def _settings(rates: Sequence[float]) -> list[Setting]:
    return [Setting(rate, rule, f, attack) for rate in rates for attack in FORESEEN for rule, f in DEFENCES]


def _key(config: Config) -> tuple[Setting, str, str]:
    rate = Schedule.parse(config.lr or 0).at(0)
    return (
        Setting(rate, config.rule, config.byzantine, config.attack),
        config.momentum,
        getattr(config, "adapt", "none"),
    )


def _changes(study: Study, setting: Setting, place: str) -> list[float]:
    """Return the accuracy without adapting, and its change with each adaptation."""
    none = study.accuracy(setting, place)
    return [none, *(study.accuracy(setting, place, adapt) - none for adapt in ADAPTATIONS)]


def _mean(column: str) -> Callable[[RunResult], float]:
    """Return a quantity: the mean of a column over the measured rounds."""
    return lambda run: float(run.metrics[column].mean())


def _agreement(run: RunResult) -> float:
    """Return how often the server's estimate agreed with the honest rows."""
    return float((run.metrics["at_workers"] == run.metrics["decrease_holds"]).mean())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))

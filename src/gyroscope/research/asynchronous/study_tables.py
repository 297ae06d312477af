"""The numbers, tables and figure of docs/beyond/asynchronous.md, from the run directories of `study_runs`."""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.optional import extra
from gyroscope.research.asynchronous import study_runs
from gyroscope.research.asynchronous.async_config import AsyncConfig
from gyroscope.research.asynchronous.async_placement import PLACEMENTS
from gyroscope.research.asynchronous.study_runs import StudyRun
from gyroscope.runs import run_dir

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

JUDGED = {"workers": "sums", "server-each": "gradients"}
"""What the filter judges in the two orders."""
EXTREMES = 3
"""How many workers the table of speeds calls the slowest, and how many the fastest."""


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How the filter's verdicts on honest gradients compare with those in the other order of filter and momentum."""

    same: float
    """The share of verdicts that are the same."""
    kappa: float
    """Cohen's: 1 for always the same, 0 for what chance alone would give at these rates; NaN where one never varies."""
    accepted: float
    other_accepted: float


def agreement(verdicts: Sequence[bool], others: Sequence[bool]) -> Agreement:
    """Compare two sequences of verdicts on the same gradients."""
    count = len(verdicts)
    same = sum(own == other for own, other in zip(verdicts, others, strict=True)) / count
    own, other = sum(verdicts) / count, sum(others) / count
    chance = own * other + (1 - own) * (1 - other)
    return Agreement(same, (same - chance) / (1 - chance) if chance < 1 else math.nan, own, other)


@dataclasses.dataclass(frozen=True)
class StudyResult:
    """A run of the study that has ended. Its tables are read when they are asked for."""

    entry: StudyRun
    path: Path

    @property
    def config(self) -> AsyncConfig:
        return self.entry.config

    @cached_property
    def arrivals(self) -> pandas.DataFrame:
        with extra("lab", "reading the tables of a run"):
            import pandas

        frame: pandas.DataFrame = pandas.read_csv(self.path / run_dir.ARRIVALS)
        return frame

    @cached_property
    def max_accuracy(self) -> float:
        with extra("lab", "reading the tables of a run"):
            import pandas

        return 100 * float(pandas.read_csv(self.path / run_dir.EVALUATIONS)["accuracy"].max())

    @cached_property
    def staleness(self) -> float:
        """The mean staleness of the accepted gradients."""
        return float(self.arrivals.loc[self.arrivals["accepted"], "staleness"].mean())

    @cached_property
    def age(self) -> float:
        """The mean age of the applied gradients, in versions."""
        return float(self.arrivals["age"].mean())

    @cached_property
    def byzantine_share(self) -> float:
        """The Byzantine gradients, in percent of the accepted ones."""
        return 100 * float(self.arrivals.loc[self.arrivals["accepted"], "byzantine"].mean())

    @cached_property
    def honest_accepted(self) -> float:
        """The accepted gradients of honest workers, in percent of those that they sent."""
        return 100 * float(self.arrivals.loc[~self.arrivals["byzantine"], "accepted"].mean())

    def refused_as_growing(self, byzantine: bool) -> float:
        """Return what the Lipschitz filter refused, in percent of what honest or Byzantine workers sent."""
        sent = self.arrivals[self.arrivals["byzantine"] == byzantine]
        return 100 * float(sent["refused_lipschitz"].mean())

    def accepted_of(self, group: slice) -> float:
        """Return the accepted gradients of these workers in percent; workers are ordered by how many they sent."""
        by_worker = self.arrivals.groupby("worker")["accepted"].agg(["size", "mean"]).sort_values("size", kind="stable")
        return 100 * float(by_worker["mean"].iloc[group].mean())

    @cached_property
    def agreement(self) -> Agreement:
        honest = self.arrivals[~self.arrivals["byzantine"]].dropna(subset=["other_accepted"])
        return agreement(honest["accepted"].astype(bool).tolist(), honest["other_accepted"].astype(bool).tolist())


def load(entries: Iterable[StudyRun], out: Path) -> list[StudyResult]:
    """Return the runs that have ended."""
    return [
        StudyResult(entry, out / entry.name) for entry in entries if study_runs.is_complete(entry, out / entry.name)
    ]


def where(runs: Iterable[StudyResult], part: str, **settings: object) -> list[StudyResult]:
    """Return the runs of a part of the study with these settings."""
    return [
        run
        for run in runs
        if run.entry.part == part and all(getattr(run.config, key) == value for key, value in settings.items())
    ]


def mean(runs: Sequence[StudyResult], quantity: Callable[[StudyResult], float]) -> float:
    return statistics.fmean(map(quantity, runs)) if runs else math.nan


def _cell(value: float, digits: int = 1) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def staleness_table(runs: Sequence[StudyResult]) -> str:
    """Return the table of how often the two orders agree, and of the accuracies, by learning rate and staleness."""
    lines = [
        "| rate | workers | mean staleness | verdicts the same (%) | kappa | accepted: sums / gradients (%) | "
        + " | ".join(f"`{placement}`" for placement in PLACEMENTS)
        + " |",
        "|---:|---|---:|---:|---:|---:|" + "---:|" * len(PLACEMENTS),
    ]
    for rate in study_runs.STALE_RATES:
        for label, settings in _stale_settings():
            by_place = {place: at_rate(runs, rate, place, **settings) for place in PLACEMENTS}
            sums = by_place["workers"]
            if not sums:
                continue
            cells = [
                f"{rate:g}",
                label,
                _cell(mean(sums, lambda run: run.staleness)),
                _cell(100 * mean(sums, lambda run: run.agreement.same), 0),
                _cell(mean(sums, lambda run: run.agreement.kappa), 2),
                f"{_cell(100 * mean(sums, lambda run: run.agreement.accepted), 0)} / "
                f"{_cell(100 * mean(sums, lambda run: run.agreement.other_accepted), 0)}",
                *(_cell(mean(found, lambda run: run.max_accuracy)) for found in by_place.values()),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def at_rate(runs: Iterable[StudyResult], rate: float, placement: str, **settings: object) -> list[StudyResult]:
    """Return the runs about staleness with this placement, at the rate that corresponds to this one."""
    lr = study_runs.rate_of(placement, rate)
    return where(runs, "staleness", momentum=placement, lr=lr, **settings)


def _stale_settings() -> list[tuple[str, dict[str, object]]]:
    even = [
        (
            f"pause of {idle:g} computing time{'s' * (idle != 1)}" if idle else "no pause",
            {"idle": idle, "speeds": "equal"},
        )
        for idle in study_runs.IDLE_TIMES
    ]
    return [*even, ("no pause, uneven, stragglers", {"idle": 0.0, "speeds": study_runs.UNEVEN["speeds"]})]


def speeds_table(runs: Sequence[StudyResult]) -> str:
    """Return the table of what the Lipschitz filter accepts of the slowest workers, the others and the fastest."""
    groups = {f"slowest {EXTREMES}": slice(None, EXTREMES), "others": slice(EXTREMES, -EXTREMES),
              f"fastest {EXTREMES}": slice(-EXTREMES, None)}  # fmt: skip
    lines = [
        "| momentum | the filter judges | " + " | ".join(f"accepted of the {group} (%)" for group in groups) + " |"
    ]
    lines.append("|---|---|" + "---:|" * len(groups))
    for placement, judged in JUDGED.items():
        here = where(runs, "staleness", momentum=placement, **study_runs.UNEVEN)
        if here:
            shares = [_cell(mean(here, operator.methodcaller("accepted_of", group)), 0) for group in groups.values()]
            lines.append(f"| `{placement}` | {judged} | " + " | ".join(shares) + " |")
    return "\n".join(lines)


def attacks_table(runs: Sequence[StudyResult]) -> str:
    """Return the table of accuracies by attack, speed of the Byzantine workers, filter and placement."""
    lines = [
        "| attack | liars' speed | filter | liars' share (%) | honest accepted (%) | "
        "refused by Lipschitz: honest / liars (%) | " + " | ".join(f"`{placement}`" for placement in PLACEMENTS) + " |",
        "|---|---:|---|---:|---:|---:|" + "---:|" * len(PLACEMENTS),
    ]
    cases: list[tuple[str, float]] = [("none", 1.0)]
    cases += [(attack, speed) for attack in study_runs.ATTACKS for speed in study_runs.BYZANTINE_SPEEDS]
    for attack, speed in cases:
        for filter in ("none", "kardam"):
            here = where(runs, "attacks", attack=attack, byzantine_speed=speed, filter=filter)
            if not here:
                continue
            cells = [
                attack,
                "" if attack == "none" else f"{speed:g}",
                filter,
                _cell(mean(here, lambda run: run.byzantine_share), 0),
                _cell(mean(here, lambda run: run.honest_accepted), 0),
                f"{_cell(mean(here, lambda run: run.refused_as_growing(False)), 0)} / "
                f"{_cell(mean(here, lambda run: run.refused_as_growing(True)), 0)}",
            ]
            for placement in PLACEMENTS:
                own = [run for run in here if run.config.momentum == placement]
                cells.append(_cell(mean(own, lambda run: run.max_accuracy)))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def dampening_table(runs: Sequence[StudyResult]) -> str:
    """Return the table of accuracies by dampening and placement, with the mean weight of a gradient."""
    places = ("workers", "server", "none")
    lines = [
        "| dampening | mean weight | " + " | ".join(f"`{place}`" for place in places) + " |",
        "|---|---:|" + "---:|" * len(places),
    ]
    for dampening in study_runs.DAMPENINGS:
        here = [run for run in runs if run.entry.part == "dampening" and run.config.dampening == dampening]
        if not here:
            continue
        weight = mean(here, lambda run: float(run.arrivals["weight"].mean()))
        cells = [dampening, _cell(weight, 2)]
        for place in places:
            own = [run for run in here if run.config.momentum == place]
            cells.append(_cell(mean(own, lambda run: run.max_accuracy)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(runs: Sequence[StudyResult], path: Path) -> list[Path]:
    """Draw the agreement of the two orders, the age of the applied gradients, and the accuracy, over the staleness."""
    from gyroscope.report.figures import new_figure, save

    drawing, grid = new_figure(2, 2, share=False)
    grid[1][1].sharey(grid[1][0])
    agree, old = grid[0]
    agree.set(title="do both orders judge alike?", ylabel="Cohen's kappa of the verdicts", ylim=(-0.02, 1.02))
    old.set(title="how old is what is applied?", ylabel="mean age (versions)")
    first = study_runs.STALE_RATES[0]
    for placement, judged in JUDGED.items():
        other = "gradients" if judged == "sums" else "sums"
        label = f"{placement}: {judged} judged, {other} beside"
        _draw(agree, runs, first, placement, lambda run: run.agreement.kappa, label)
    for placement in PLACEMENTS:
        _draw(old, runs, first, placement, lambda run: run.age, placement)
        for axes, rate in zip(grid[1], study_runs.STALE_RATES, strict=True):
            _draw(axes, runs, rate, placement, lambda run: run.max_accuracy, placement)
    for axes, rate in zip(grid[1], study_runs.STALE_RATES, strict=True):
        axes.set(title=f"what is learned, learning rate {rate:g}", ylabel="maximum accuracy (%)")
    for axes in grid.flatten():
        axes.set_xlabel("mean staleness (versions)")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    n, f = study_runs.N, study_runs.F
    drawing.suptitle(f"{runs[0].config.task}, {n} honest workers, Lipschitz filter that tolerates {f}")
    return save(drawing, path)


def _draw(
    axes: Axes,
    runs: Sequence[StudyResult],
    rate: float,
    placement: str,
    quantity: Callable[[StudyResult], float],
    label: str,
) -> None:
    """Draw a quantity over the mean staleness: a point for each length of the workers' pauses."""
    points = [at_rate(runs, rate, placement, idle=idle, speeds="equal") for idle in study_runs.IDLE_TIMES]
    known = [point for point in points if point]
    stale = [mean(point, lambda run: run.staleness) for point in known]
    axes.plot(stale, [mean(point, quantity) for point in known], label=label, **_STYLES[placement])


_STYLES: dict[str, dict[str, Any]] = {
    "workers": {"color": "#0072B2", "linestyle": "-", "marker": "s"},
    "server": {"color": "#D55E00", "linestyle": "--", "marker": "o"},
    "server-each": {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    "server-rounds": {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    "none": {"color": "#000000", "linestyle": (0, (5, 2)), "marker": "x"},
}

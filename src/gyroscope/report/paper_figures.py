"""Draw every figure of the paper from run directories, under the paper's file names.

mnist-little-f_12-lr_0.5-at_worker      accuracy per step, a curve per rule and the unattacked average
mnist-little-krum-f_12-lr_0.5-ratio     variance-norm ratio per step, both placements and the rule's bound
mnist-little-krum-f_12-lr_0.5-straightness
mnist-little-f_12                       a block of four: larger rate above, smaller below; server left, workers right
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gyroscope.experiments.grid import BASELINE, PLACES, PaperKey, rule_label
from gyroscope.experiments.results import RunResult, SetupResult, group
from gyroscope.report.figures import Curve, FigureOptions, accuracy_figure, draw, new_figure, save, wrapped
from gyroscope.runs.config import NO_ATTACK
from gyroscope.simulation.task_metric import ACCURACY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Setups = dict[PaperKey, SetupResult]
_RESCORING = "bulyan:rescore=true"
_ORDER = ("krum", "median", "bulyan", _RESCORING)
_GREY = "#555555"


def write_all(
    runs: Iterable[RunResult],
    folder: Path,
    advance: Callable[[str, int, int], None] = lambda *_: None,
    options: FigureOptions | None = None,
) -> list[Path]:
    """Draw all figures for which there are runs of tasks that are measured by accuracy; return the files written.

    Args:
        runs: The runs.
        folder: Where the files go.
        advance: Called before each figure with its name, how many are done and how many there are.
        options: Another size, title or range of accuracies.
    """
    options = options or FigureOptions()
    setups = {PaperKey.of(setup.config): setup for setup in group(runs) if setup.metric == ACCURACY}  # as in the paper
    figures: dict[str, Callable[[], Figure]] = {}
    for key in _distinct(setups, "rule"):
        name = f"{key.task}-{key.attack}-f_{key.f}-lr_{key.lr:g}-{PLACES[key.place]}"
        title = f"{_title(key)}, rate {key.lr:g}, momentum at the {key.place}"
        figures[name] = partial(accuracy_figure, [(title, _accuracy_curves(setups, key))], options=options)
    for kind in ("ratio", "straightness"):
        for key in _distinct(setups, "place"):
            name = f"{key.task}-{key.attack}-{rule_label(key.rule)}-f_{key.f}-lr_{key.lr:g}-{kind}"
            both = [setups[k] for place in PLACES if (k := dataclasses.replace(key, place=place)) in setups]
            figures[name] = partial(
                _metric_figure, kind, both, f"{_title(key)}, {_rule_name(key.rule)}, rate {key.lr:g}"
            )
    for key in _distinct(setups, "rule", "lr", "place"):
        figures[f"{key.task}-{key.attack}-f_{key.f}"] = partial(_block_of_four, setups, key, options)
    written: list[Path] = []
    for number, (name, make) in enumerate(figures.items()):
        advance(name, number, len(figures))
        written += save(options.apply(make()), folder / name)
    return written


def _block_of_four(setups: Setups, key: PaperKey, options: FigureOptions) -> Figure:
    rates = sorted({k.lr for k in setups if (k.task, k.attack, k.f) == (key.task, key.attack, key.f)}, reverse=True)
    panels = [
        (f"momentum at the {place}, rate {rate:g}", curves)
        for rate in rates
        for place in PLACES
        if len(curves := _accuracy_curves(setups, dataclasses.replace(key, lr=rate, place=place)))
    ]
    return accuracy_figure(panels, _title(key), options=options)


def _accuracy_curves(setups: Setups, key: PaperKey) -> list[Curve]:
    """Return the curve of the unattacked average and of every rule with these hyperparameters, in the paper's order."""
    shown = {"no attack": setups.get(dataclasses.replace(key, attack=NO_ATTACK, rule=BASELINE, f=0))}
    same = [other for other in setups if other == dataclasses.replace(key, rule=other.rule)]
    for other in sorted(same, key=lambda k: (_ORDER.index(k.rule) if k.rule in _ORDER else len(_ORDER), k.rule)):
        shown[_rule_name(other.rule)] = setups[other]
    return [Curve(label, [run.evaluations for run in setup.runs]) for label, setup in shown.items() if setup]


def _metric_figure(kind: str, both: list[SetupResult], title: str) -> Figure:
    """Draw the ratio, logarithmically and with the rule's bound, or the straightness, around zero."""
    figure, grid = new_figure()
    axes = grid[0][0]
    ratio = kind == "ratio"
    column, label = ("ratio_sent", "variance-norm ratio") if ratio else ("straightness", "straightness $s_t$")
    axes.set_yscale("log" if ratio else "linear")
    curves = [Curve(setup.config.momentum, [run.metrics for run in setup.runs], column) for setup in both]
    draw(axes, curves, positive=ratio)
    bound = both[0].runs[0].metrics["ratio_bound"].iloc[0]
    if not ratio:
        axes.axhline(0, color=_GREY, linewidth=0.8)
    elif bound == bound:  # rules without a theorem have none
        axes.axhline(bound, color=_GREY, linestyle=(0, (1, 3)), linewidth=1.5, label="theoretical bound")
    axes.set(title=wrapped(title, figure.get_size_inches()[0]), ylabel=label)
    axes.legend()
    return figure


def _distinct(setups: Setups, *ignored: str) -> list[PaperKey]:
    """Return one key of the attacked setups for each combination of the hyperparameters that are not ignored."""
    seen: dict[tuple[object, ...], PaperKey] = {}
    for key in setups:
        if key.attack != NO_ATTACK and key.place in PLACES:
            seen.setdefault(tuple(v for name, v in dataclasses.asdict(key).items() if name not in ignored), key)
    return list(seen.values())


def _title(key: PaperKey) -> str:
    attack = {"little": "A little is enough", "empire": "Fall of empires"}.get(key.attack, key.attack)
    return f"{key.task}, {attack}, f = {key.f}"


def _rule_name(rule: str) -> str:
    return "bulyan, rescoring" if rule == _RESCORING else rule

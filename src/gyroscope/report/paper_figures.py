"""Every figure of the paper, from run directories, with the paper's file names.

mnist-little-f_12-lr_0.5-at_worker      accuracy per step, a curve per rule and the unattacked average
mnist-little-krum-f_12-lr_0.5-ratio     variance-norm ratio per step, both placements and the rule's bound
mnist-little-krum-f_12-lr_0.5-straightness
mnist-little-f_12                       a block of four: larger rate above, smaller below; server left, workers right
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from gyroscope.experiments.grid import BASELINE, PLACES, Key, rule_label
from gyroscope.experiments.results import RunResult, SetupResult, group
from gyroscope.report.figures import Curve, accuracy_figure, draw, draw_accuracy, new_figure, save


def write_all(
    runs: Iterable[RunResult], folder: Path, advance: Callable[[str, int, int], None] = lambda *_: None
) -> list[Path]:
    """Draw all figures for which there are runs. Returns the files written."""
    setups = {Key.of(setup.config): setup for setup in group(runs)}
    jobs = [
        *_accuracy(setups, folder),
        *_ratio(setups, folder),
        *_straightness(setups, folder),
        *_blocks(setups, folder),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for number, (name, work) in enumerate(jobs):
        advance(name, number, len(jobs))
        written += work()
    return written


Jobs = Iterator[tuple[str, Callable[[], list[Path]]]]


def _accuracy(setups: dict[Key, SetupResult], folder: Path) -> Jobs:
    for key in _distinct(setups, "rule"):
        name = f"{key.task}-{key.attack}-f_{key.f}-lr_{key.lr:g}-{PLACES[key.place]}"
        curves = _accuracy_curves(setups, key)

        def work(name: str = name, curves: Sequence[Curve] = curves, key: Key = key) -> list[Path]:
            figure, grid = new_figure()
            draw_accuracy(grid[0][0], curves, f"{_title(key)}, rate {key.lr:g}, momentum at the {key.place}")
            grid[0][0].set_ylabel("accuracy on the test set (%)")
            grid[0][0].legend(loc="lower right")
            return save(figure, folder / name)

        yield name, work


def _blocks(setups: dict[Key, SetupResult], folder: Path) -> Jobs:
    for key in _distinct(setups, "rule", "lr", "place"):
        rates = sorted({k.lr for k in setups if (k.task, k.attack, k.f) == (key.task, key.attack, key.f)}, reverse=True)
        panels = [
            (f"momentum at the {place}, rate {rate:g}", curves)
            for rate in rates
            for place in PLACES
            if len(curves := _accuracy_curves(setups, dataclasses.replace(key, lr=rate, place=place)))
        ]
        name = f"{key.task}-{key.attack}-f_{key.f}"

        def work(name: str = name, panels: list[tuple[str, list[Curve]]] = panels, key: Key = key) -> list[Path]:
            return accuracy_figure(panels, _title(key), folder / name)

        yield name, work


def _accuracy_curves(setups: dict[Key, SetupResult], key: Key) -> list[Curve]:
    curves = []
    baseline = setups.get(Key(key.task, "none", BASELINE, 0, key.lr, key.place))
    if baseline is not None:
        curves.append(Curve("no attack", [run.evaluations for run in baseline.runs]))
    for other, setup in sorted(setups.items(), key=lambda pair: _order(pair[0].rule)):
        if other == dataclasses.replace(key, rule=other.rule):
            curves.append(Curve(_rule_name(other.rule), [run.evaluations for run in setup.runs]))
    return curves


def _ratio(setups: dict[Key, SetupResult], folder: Path) -> Jobs:
    for key in _distinct(setups, "place"):
        name = f"{key.task}-{key.attack}-{rule_label(key.rule)}-f_{key.f}-lr_{key.lr:g}-ratio"
        both = _both_places(setups, key)

        def work(name: str = name, both: list[SetupResult] = both, key: Key = key) -> list[Path]:
            figure, grid = new_figure()
            axes = grid[0][0]
            axes.set_yscale("log")
            draw(axes, _metric_curves(both, "ratio_sent"), positive=True)
            bound = both[0].runs[0].metrics["ratio_bound"].iloc[0]
            if bound == bound:  # rules without a theorem have none
                axes.axhline(bound, color="#555555", linestyle=(0, (1, 3)), linewidth=1.5, label="theoretical bound")
            axes.set_title(f"{_title(key)}, {_rule_name(key.rule)}, rate {key.lr:g}")
            axes.set_ylabel("variance-norm ratio")
            axes.legend()
            return save(figure, folder / name)

        yield name, work


def _straightness(setups: dict[Key, SetupResult], folder: Path) -> Jobs:
    for key in _distinct(setups, "place"):
        name = f"{key.task}-{key.attack}-{rule_label(key.rule)}-f_{key.f}-lr_{key.lr:g}-straightness"
        both = _both_places(setups, key)

        def work(name: str = name, both: list[SetupResult] = both, key: Key = key) -> list[Path]:
            figure, grid = new_figure()
            axes = grid[0][0]
            draw(axes, _metric_curves(both, "straightness"))
            axes.axhline(0, color="#555555", linewidth=0.8)
            axes.set_title(f"{_title(key)}, {_rule_name(key.rule)}, rate {key.lr:g}")
            axes.set_ylabel("straightness $s_t$")
            axes.legend()
            return save(figure, folder / name)

        yield name, work


def _metric_curves(both: Sequence[SetupResult], column: str) -> list[Curve]:
    return [Curve(setup.config.momentum, [run.metrics for run in setup.runs], column) for setup in both]


def _both_places(setups: dict[Key, SetupResult], key: Key) -> list[SetupResult]:
    return [setups[k] for place in PLACES if (k := dataclasses.replace(key, place=place)) in setups]


def _distinct(setups: Iterable[Key], *ignored: str) -> list[Key]:
    """One key of the attacked setups for each combination of the hyperparameters that are not ignored."""
    seen: dict[tuple[object, ...], Key] = {}
    for key in setups:
        if key.attack != "none" and key.place in PLACES:
            seen.setdefault(tuple(v for name, v in dataclasses.asdict(key).items() if name not in ignored), key)
    return list(seen.values())


def _title(key: Key) -> str:
    attack = {"little": "A little is enough", "empire": "Fall of empires"}.get(key.attack, key.attack)
    return f"{key.task}, {attack}, f = {key.f}"


def _order(rule: str) -> tuple[int, str]:
    """The paper's rules in the paper's order, then all others."""
    ours = ("krum", "median", "bulyan", "bulyan:rescore=true")
    return (ours.index(rule) if rule in ours else len(ours), rule)


def _rule_name(rule: str) -> str:
    return "bulyan, rescoring" if rule == "bulyan:rescore=true" else rule

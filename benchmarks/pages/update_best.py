"""Run the studies of docs/beyond/best.md and rewrite its tables and its figure.

    python -m benchmarks.pages.update_best runs/best

The grids are best-search.toml, best.toml and best-more.toml beside this file; each gets its own folder below the one
named, and complete runs are not repeated. The losses of the paper's rules come from docs/reproduction/summary.csv.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.pages import DOCS, GRIDS, markers
from gyroscope.cli import main as gyroscope
from gyroscope.experiments import results
from gyroscope.experiments.results import SetupResult
from gyroscope.report import figures
from gyroscope.runs.config import Config

STUDIES = ("best-search", "best", "best-more")
BEST = "flame"
"""The rule that lost least in this study; `gyroscope redteam` finds attacks that cost it far more."""
LIMIT = 2.0
"""The largest loss, in points, that counts as success."""

Setting = tuple[str, int, float]
"""Attack, f and learning rate."""


def main(folder: Path, *options: str) -> int:
    for study in STUDIES:
        code = gyroscope(["sweep", str(GRIDS / f"{study}.toml"), "--out", str(folder / study), *options])
        if code != 0:
            return code
    publish(*(results.group(markers.runs_in(folder / study)) for study in STUDIES))
    return 0


def publish(searched: list[SetupResult], confirmed: list[SetupResult], more: list[SetupResult]) -> None:
    parts = {"search": search(searched), "confirmation": confirmation(confirmed), "verdict": verdict(confirmed),
             "more": others(more)}  # fmt: skip
    markers.replace(DOCS / "beyond" / "best.md", parts)
    draw(confirmed)


# -- the tables -------------------------------------------------------------------------------------------------------


def search(setups: list[SetupResult]) -> str:
    """Return the maximum accuracies in the hardest settings, the best worst case first."""
    by_rule: dict[str, dict[str, float]] = {}
    for setup in setups:
        by_rule.setdefault(setup.config.rule, {})[setup.config.attack] = accuracy(setup)
    lines = ["| rule | little (%) | empire (%) |", "|---|---:|---:|"]
    for rule, found in sorted(by_rule.items(), key=lambda item: -min(item[1].values())):
        lines.append(f"| `{rule}` | {found['little']:.1f} | {found['empire']:.1f} |")
    return "\n".join(lines)


def confirmation(setups: list[SetupResult]) -> str:
    """Return the points lost in every setting: mean over the seeds, and the largest loss of a seed."""
    rules = list(dict.fromkeys(setup.config.rule for setup in attacked(setups)))
    lines = ["| attack | f | learning rate | unattacked (%) | " + " | ".join(f"`{rule}`" for rule in rules) + " |",
             "|---|---:|---:|---:|" + "---:|" * len(rules)]  # fmt: skip
    for setting in settings(setups):
        attack, f, rate = setting
        cells = [attack, str(f), f"{rate:g}", f"{accuracy(baseline(setups, rate)):.1f}"]
        for rule in rules:
            lost = losses(setups, rule, setting)
            cells.append(f"{statistics.fmean(lost):.2f} (at most {max(lost):.2f})")
        lines.append("| " + " | ".join(cells) + " |")
    worst = [max(statistics.fmean(losses(setups, rule, setting)) for setting in settings(setups)) for rule in rules]
    lines.append("| **worst** | | | | " + " | ".join(f"**{value:.2f}**" for value in worst) + " |")
    return "\n".join(lines)


def verdict(setups: list[SetupResult]) -> str:
    """Return in words whether the best defence loses at most the limit everywhere."""
    means = {setting: statistics.fmean(losses(setups, BEST, setting)) for setting in settings(setups)}
    worst = max(means, key=lambda setting: means[setting])
    largest = max(loss for setting in means for loss in losses(setups, BEST, setting))
    word = "Yes" if means[worst] <= LIMIT else "No"
    attack, f, rate = worst
    count = len(losses(setups, BEST, worst))
    return (
        f"**{word}: `{BEST}` with momentum at the workers loses at most {means[worst]:.2f} points of maximum accuracy "
        f"in every setting of these two attacks (mean of {count} fresh seeds), to `{attack}` with f = {f} and "
        f"learning rate {rate:g}; no single run loses more than {largest:.2f}.**"
    )


def others(setups: list[SetupResult]) -> str:
    """Return the points lost to every attack: no attack first, then the most costly."""
    base = accuracy(next(setup for setup in setups if setup.config.rule == "average"))
    rules = list(dict.fromkeys(setup.config.rule for setup in setups if setup.config.rule != "average"))
    lost: dict[str, dict[str, float]] = {}
    for setup in setups:
        if setup.config.rule != "average":
            lost.setdefault(setup.config.attack, {})[setup.config.rule] = base - accuracy(setup)
    order = sorted(lost, key=lambda attack: (attack != "none", -lost[attack][BEST]))
    lines = ["| attack | " + " | ".join(f"`{rule}`" for rule in rules) + " |", "|---|" + "---:|" * len(rules)]
    for attack in order:
        lines.append(f"| `{attack}` | " + " | ".join(f"{lost[attack][rule]:.1f}" for rule in rules) + " |")
    return "\n".join(lines)


# -- the figure -------------------------------------------------------------------------------------------------------


def draw(setups: list[SetupResult]) -> None:
    """Draw the points lost in every setting: the paper's rules with both placements, and the best defence."""
    figure, grid = figures.new_figure(1, 1)
    figure.set_size_inches(9, 4.6)
    axes = grid[0][0]
    known = settings(setups)
    labels = [f"{attack}, f = {f}, lr {rate:g}" for attack, f, rate in known]
    for place, colour, marker in (("server", "#D55E00", "o"), ("workers", "#0072B2", "s")):
        points = [(loss, y) for y, setting in enumerate(known) for loss in of_the_paper(setting, place)]
        axes.scatter([max(loss, 0.0) for loss, _ in points], [y for _, y in points], c=colour, marker=marker, alpha=0.8,
                     label=f"the paper's rules, momentum at the {place}")  # fmt: skip
    means = [max(statistics.fmean(losses(setups, BEST, setting)), 0.0) for setting in known]
    axes.scatter(means, range(len(known)), c="#009E73", marker="*", s=160, label=f"{BEST}, momentum at the workers")
    axes.axvline(LIMIT, color="black", linewidth=0.8, linestyle="--")
    axes.set_xscale("symlog", linthresh=2, linscale=1)
    axes.set_xlim(-0.1, 100)
    axes.set_xticks([0, 1, 2, 5, 10, 20, 50, 100], ["0", "1", "2", "5", "10", "20", "50", "100"])
    axes.set_yticks(range(len(known)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("points of maximum accuracy lost (dashed: 2)")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    axes.set_title("MNIST, 51 workers: the paper's attacked settings")
    figures.save_for_page(figure, DOCS / "beyond" / "best.png")


def of_the_paper(setting: Setting, place: str) -> list[float]:
    """Return what Krum, Median and Bulyan lose in this setting, from the reproduction."""
    with (DOCS / "reproduction" / "summary.csv").open(encoding="utf-8") as file:
        return [
            float(line["drop_points"])
            for line in csv.DictReader(file)
            if (line["task"], line["attack"], int(line["byzantine"])) == ("mnist", *setting[:2])
            and float(line["lr"]) == setting[2]
            and line["momentum"] == place
        ]


# -- what they are made of --------------------------------------------------------------------------------------------


def accuracy(setup: SetupResult) -> float:
    return 100 * setup.mean(lambda run: run.max_accuracy)


def attacked(setups: Iterable[SetupResult]) -> list[SetupResult]:
    return [setup for setup in setups if setup.config.attack != "none"]


def setting_of(config: Config) -> Setting:
    return config.attack, config.byzantine, float(config.lr or 0)


def settings(setups: Iterable[SetupResult]) -> list[Setting]:
    found = {setting_of(setup.config) for setup in attacked(setups)}
    return sorted(found, key=lambda setting: (setting[0] != "little", -setting[1], -setting[2]))


def baseline(setups: Iterable[SetupResult], rate: float) -> SetupResult:
    return _only(setups, lambda config: config.attack == "none" and float(config.lr or 0) == rate)


def losses(setups: Iterable[SetupResult], rule: str, setting: Setting) -> list[float]:
    """Return the points lost by each seed, against the unattacked average with the same seed."""
    setups = list(setups)
    setup = _only(setups, lambda config: config.rule == rule and setting_of(config) == setting)
    without = {run.config.seed: run.max_accuracy for run in baseline(setups, setting[2]).runs}
    return [100 * (without[run.config.seed] - run.max_accuracy) for run in setup.runs if run.config.seed in without]


def _only(setups: Iterable[SetupResult], wanted: Callable[[Config], bool]) -> SetupResult:
    (found,) = [setup for setup in setups if wanted(setup.config)]
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))

"""Red-team the defences of docs/leaderboard.md and rewrite its tables and its figure.

    python -m benchmarks.pages.update_leaderboard runs/leaderboard

Each search gets its own folder below the one named, and a finished one is not repeated. All of them take some three
hours on two cores. `--only digits` leaves out MNIST, `--only nothing` rewrites the page from what is there.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.pages import DOCS, markers
from gyroscope import rules
from gyroscope.cli import main as gyroscope
from gyroscope.experiments.grid import rule_label
from gyroscope.report import figures
from gyroscope.report.text_tables import write_csv

BEST = "caf-history, horizon 2"
RECOMMENDED = {BEST: ["--defence", "best"], "caf, horizon 2": ["--rule", "caf", "--horizon", "2"]}
RULES = (
    "caf-history", "caf", "flame", "flame:linkage=ball", "dnc", "dnc:robust=true", "nnm+median", "nnm+trimmed-mean",
    "nnm+krum", "nnm+cge", "nnm+smea", "smea", "safeguard", "bucketing+signguard", "bulyan", "krum", "median",
)  # fmt: skip
TRUSTING = {"zeno (trusts)": ["--rule", "zeno", "--trusted", "100"]}
DEFENCES = {**RECOMMENDED, **{rule: ["--rule", rule] for rule in RULES}, **TRUSTING}

SETTINGS = {
    "digits": (15, (3, 6), ["--budget", "30", "--seeds", "3"]),
    "mnist": (51, (12, 24), ["--budget", "20", "--seeds", "3"]),
}
ON_MNIST = 5
"""How many defences, the best on digits, run on MNIST, too."""


class Line(NamedTuple):
    """What the worst attack cost a defence; accuracies in percent, means of the seeds."""

    task: str
    f: int
    defence: str
    attack: str
    maximum: float
    final: float
    unattacked: float
    seeds: str

    @property
    def lost(self) -> float:
        return self.unattacked - self.maximum


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=["digits", "mnist", "nothing"])
    options, others = parser.parse_known_args(arguments)
    for task in SETTINGS if options.only is None else [options.only]:
        chosen = best_five(options.out) if task == "mnist" else list(DEFENCES)
        for defence, f, folder in searches(options.out, task, chosen) if task in SETTINGS else ():
            if not (folder / "redteam.csv").is_file():
                n, _, how = SETTINGS[task]
                numbers = ["--task", task, "--workers", str(n), "--byzantine", str(f)]
                code = gyroscope(["redteam", *DEFENCES[defence], *numbers, *how, "--out", str(folder), *others])
                if code == 130:
                    return code
    publish(options.out)
    return 0


def searches(out: Path, task: str, defences: Iterable[str]) -> Iterator[tuple[str, int, Path]]:
    """Yield the searches on a task: defence, f and the folder."""
    n, sizes, _ = SETTINGS[task]
    for defence in defences:
        for f in sizes:
            if defence not in RULES or rules.parse(defence).min_workers(f) <= n:
                yield defence, f, out / rule_label(f"{task}-{defence}-f_{f}")


def finished(out: Path) -> list[Line]:
    """Return the finished searches. Those of one task have one baseline: the unattacked average without a horizon."""
    lines = []
    for task in SETTINGS:
        unattacked = None
        for defence, f, folder in searches(out, task, DEFENCES):
            if (folder / "redteam.csv").is_file():
                with (folder / "redteam.csv").open(encoding="utf-8") as file:
                    worst = next(csv.DictReader(file))
                maximum, final = float(worst["max_accuracy_percent"]), float(worst["final_accuracy_percent"])
                if unattacked is None:
                    unattacked = maximum + float(worst["cost_points"])
                lines.append(Line(task, f, defence, worst["attack"], maximum, final, unattacked, worst["seeds"]))
    return lines


def best_five(out: Path) -> list[str]:
    """Return the defences that trust nobody and lose least on digits with the larger f."""
    return [defence for defence, _ in ranked(finished(out), "digits") if defence not in TRUSTING][:ON_MNIST]


def publish(out: Path) -> None:
    lines = finished(out)
    (DOCS / "leaderboard").mkdir(exist_ok=True)
    values = [(*line[:4], *(f"{number:.2f}" for number in (line.lost, *line[4:7])), line.seeds) for line in lines]
    header = ("task", "byzantine", "defence", "worst_attack", "points_lost", "max_accuracy_percent",
              "final_accuracy_percent", "unattacked_percent", "seeds")  # fmt: skip
    write_csv(DOCS / "leaderboard" / "leaderboard.csv", [header, *values])
    markers.replace(DOCS / "leaderboard.md", {task: table(lines, task) for task in SETTINGS})
    draw(lines)


def ranked(lines: Iterable[Line], task: str) -> list[tuple[str, dict[int, Line]]]:
    """Return the defences with their lines by f, the smallest loss with the largest f first."""
    found: dict[str, dict[int, Line]] = {}
    for line in lines:
        if line.task == task:
            found.setdefault(line.defence, {})[line.f] = line
    largest = max(SETTINGS[task][1])
    return sorted(found.items(), key=lambda item: item[1][largest].lost if largest in item[1] else 1000.0)


def table(lines: list[Line], task: str) -> str:
    """Return the table of a task."""
    n, sizes, _ = SETTINGS[task]
    heads = [f"f = {f} of {n}: lost | final (%) | to" for f in sizes]
    rows = ["| | defence | " + " | ".join(heads) + " |", "|---:|---|" + "---:|---:|---|" * len(sizes)]
    for place, (defence, by_f) in enumerate(ranked(lines, task), 1):
        cells = [
            f"{by_f[f].lost:.1f} | {by_f[f].final:.1f} | `{by_f[f].attack}`" if f in by_f else "- | - | -"
            for f in sizes
        ]
        rows.append(f"| {place} | `{defence}` | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def draw(lines: list[Line]) -> None:
    """Draw the points that each defence lost on digits, one bar for each f."""
    order = ranked(lines, "digits")
    _, sizes, _ = SETTINGS["digits"]
    figure, grid = figures.new_figure(1, 1)
    figure.set_size_inches(9, 0.36 * len(order) + 1.4)
    axes = grid[0][0]
    for number, (f, colour) in enumerate(zip(sizes, ("#56B4E9", "#D55E00"), strict=True)):
        points = [(place, by_f[f].lost) for place, (_, by_f) in enumerate(order) if f in by_f]
        at = [place + 0.36 * (number - 0.5) for place, _ in points]
        axes.barh(at, [max(lost, 0.0) for _, lost in points], height=0.34, color=colour, label=f"f = {f} of 15")
    axes.set_yticks(range(len(order)), [defence for defence, _ in order], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("points of maximum accuracy lost to the worst attack found")
    axes.set_title("digits, 15 workers, momentum at the workers")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower right")
    figures.save_as(figure, DOCS / "leaderboard" / "leaderboard.png")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

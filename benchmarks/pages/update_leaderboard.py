"""Red-team the defences of docs/leaderboard.md and rewrite its tables and its figure.

    python -m benchmarks.pages.update_leaderboard runs/leaderboard

Each search gets its own folder below the one named, and a finished one is not repeated. All of them take some five
hours on two cores. `--only digits` leaves out the other settings, `--only nothing` rewrites the page from what is
there. Other options go to `gyroscope redteam`: `--jobs 1`.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gyroscope as gy
from benchmarks.pages import DOCS, markers
from gyroscope import rules
from gyroscope.cli import main as gyroscope
from gyroscope.experiments.grid import rule_label
from gyroscope.report import figures
from gyroscope.report.text_tables import write_csv

BEST = "caf-history, horizon 2"
RECOMMENDED: dict[str, dict[str, Any]] = {
    BEST: {"rule": "caf-history", "horizon": 2.0},
    "caf, horizon 2": {"rule": "caf", "horizon": 2.0},
}
RULES = (
    "caf-history", "caf", "flame", "flame:linkage=ball", "dnc", "dnc:robust=true", "nnm+median", "nnm+trimmed-mean",
    "nnm+krum", "nnm+cge", "nnm+smea", "smea", "safeguard", "bucketing+signguard", "bulyan", "krum", "median",
)  # fmt: skip
TRUSTING: dict[str, dict[str, Any]] = {"zeno (trusts)": {"rule": "zeno", "trusted": 100}}
DEFENCES = {**RECOMMENDED, **{rule: {"rule": rule} for rule in RULES}, **TRUSTING}
SOME = (BEST, "caf-history", "caf", "nnm+median", "median", "zeno (trusts)")


class Setting(NamedTuple):
    """Where defences are red-teamed."""

    task: dict[str, Any]
    n: int
    sizes: tuple[int, ...]
    budget: int
    defences: tuple[str, ...] | None
    """None for those that lose least on digits."""


SETTINGS = {
    "digits": Setting({"task": "digits"}, 15, (3, 6), 30, tuple(DEFENCES)),
    "dirichlet-0.5": Setting({"task": "digits", "shards": "dirichlet:alpha=0.5"}, 15, (3,), 20, SOME),
    "dirichlet-0.1": Setting({"task": "digits", "shards": "dirichlet:alpha=0.1"}, 15, (3,), 20, SOME),
    "fashion-mnist": Setting({"task": "fashion-mnist"}, 51, (12,), 10, (BEST,)),
    "mnist": Setting({"task": "mnist"}, 51, (12, 24), 20, None),
}
UNEQUAL = ("dirichlet-0.5", "dirichlet-0.1")
ON_MNIST = 5
"""How many defences, the best on digits, run on MNIST, too."""
SEEDS = (101, 102, 103)
"""Those that `gyroscope redteam` takes to confirm what it has found."""


class Line(NamedTuple):
    """What the worst attack cost a defence; accuracies in percent, means of the seeds."""

    setting: str
    f: int
    defence: str
    attack: str
    maximum: float
    final: float
    unattacked: float
    """The average of all rows without an attack."""
    seeds: str

    @property
    def lost(self) -> float:
        return self.unattacked - self.maximum


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=[*SETTINGS, "nothing"])
    options, others = parser.parse_known_args(arguments)
    for setting in SETTINGS if options.only is None else [options.only]:
        if setting == "nothing":
            break
        for defence, f, folder in searches(options.out, setting):
            if not (folder / "redteam.csv").is_file():
                where = SETTINGS[setting]
                settings = {**DEFENCES[defence], **where.task, "workers": where.n, "byzantine": f}
                given = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
                how = ["--budget", str(where.budget), "--seeds", str(len(SEEDS)), "--out", str(folder)]
                if gyroscope(["redteam", *given, *how, *others]) == 130:
                    return 130
    publish(options.out)
    return 0


def searches(out: Path, setting: str) -> Iterator[tuple[str, int, Path]]:
    """Yield the searches in a setting: defence, f and the folder."""
    where = SETTINGS[setting]
    for defence in where.defences or best_on_digits(out):
        for f in where.sizes:
            if rules.parse(DEFENCES[defence]["rule"]).min_workers(f) <= where.n:
                yield defence, f, out / rule_label(f"{setting}-{defence}-f_{f}")


def finished(out: Path, setting: str) -> list[Line]:
    """Return the finished searches in a setting."""
    lines: list[Line] = []
    for defence, f, folder in searches(out, setting):
        if (folder / "redteam.csv").is_file():
            with (folder / "redteam.csv").open(encoding="utf-8") as file:
                worst = next(csv.DictReader(file))
            maximum, final = float(worst["max_accuracy_percent"]), float(worst["final_accuracy_percent"])
            # A search compares a defence that has a horizon with an average that has it; here all have one baseline.
            unattacked = lines[0].unattacked if lines else unattacked_accuracy(setting, {})
            lines.append(Line(setting, f, defence, worst["attack"], maximum, final, unattacked, worst["seeds"]))
    return lines


def unattacked_accuracy(setting: str, defence: dict[str, Any], f: int = 0) -> float:
    """Return the maximum accuracy in percent where nobody attacks: of the average, or of a defence against f."""
    where = SETTINGS[setting]
    given: dict[str, Any] = {**where.task, **defence, "workers": where.n, "declared_byzantine": f}
    runs = [gy.train(gy.Config(**given, seed=seed)) for seed in SEEDS]
    return 100 * statistics.fmean(run.max_accuracy for run in runs)


def best_on_digits(out: Path) -> list[str]:
    """Return the defences that trust nobody and lose least on digits with the larger f."""
    order = ranked(finished(out, "digits"), "digits")
    return [defence for defence, _ in order if defence not in TRUSTING][:ON_MNIST]


# -- the page ---------------------------------------------------------------------------------------------------------


def publish(out: Path) -> None:
    lines = {setting: finished(out, setting) for setting in SETTINGS}
    (DOCS / "leaderboard").mkdir(exist_ok=True)
    values = [
        (*line[:4], *(f"{number:.2f}" for number in (line.lost, *line[4:7])), line.seeds)
        for setting in SETTINGS
        for line in lines[setting]
    ]
    header = ("setting", "byzantine", "defence", "worst_attack", "points_lost", "max_accuracy_percent",
              "final_accuracy_percent", "unattacked_percent", "seeds")  # fmt: skip
    write_csv(DOCS / "leaderboard" / "leaderboard.csv", [header, *values])
    parts = {setting: table(lines[setting], setting) for setting in SETTINGS if setting not in UNEQUAL}
    parts["unequal"] = unequal([line for setting in UNEQUAL for line in lines[setting]])
    text = (DOCS / "leaderboard.md").read_text(encoding="utf-8")
    parts = {name: part for name, part in parts.items() if f"<!-- {name} begin -->" in text}
    markers.replace(DOCS / "leaderboard.md", parts)
    draw(lines["digits"])


def ranked(lines: Iterable[Line], setting: str) -> list[tuple[str, dict[int, Line]]]:
    """Return the defences with their lines by f, the smallest loss with the largest f first."""
    found: dict[str, dict[int, Line]] = {}
    for line in lines:
        found.setdefault(line.defence, {})[line.f] = line
    largest = max(SETTINGS[setting].sizes)
    return sorted(found.items(), key=lambda item: item[1][largest].lost if largest in item[1] else 1000.0)


def table(lines: list[Line], setting: str) -> str:
    """Return the table of a setting."""
    where = SETTINGS[setting]
    heads = [f"f = {f} of {where.n}: lost | final (%) | to" for f in where.sizes]
    rows = ["| | defence | " + " | ".join(heads) + " |", "|---:|---|" + "---:|---:|---|" * len(where.sizes)]
    for place, (defence, by_f) in enumerate(ranked(lines, setting), 1):
        cells = [
            f"{by_f[f].lost:.1f} | {by_f[f].final:.1f} | `{by_f[f].attack}`" if f in by_f else "- | - | -"
            for f in where.sizes
        ]
        rows.append(f"| {place} | `{defence}` | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def unequal(lines: list[Line]) -> str:
    """Return the table of the settings in which workers hold unequal data."""
    rows = [
        "| shards | defence | unattacked (%) | under the worst attack (%) | lost | to |",
        "|---|---|---:|---:|---:|---|",
    ]
    for setting in UNEQUAL:
        here = [line for line in lines if line.setting == setting]
        if here:
            rows.append(f"| `{setting}` | the average | {here[0].unattacked:.1f} | ruined by one worker | - | - |")
        for line in sorted(here, key=lambda line: line.lost):
            quiet = unattacked_accuracy(setting, DEFENCES[line.defence], line.f)
            cells = [f"`{setting}`", f"`{line.defence}`", f"{quiet:.1f}", f"{line.maximum:.1f}", f"{line.lost:.1f}"]
            rows.append(f"| {' | '.join(cells)} | `{line.attack}` |")
    return "\n".join(rows)


def draw(lines: list[Line]) -> None:
    """Draw the points that each defence lost on digits, one bar for each f."""
    order = ranked(lines, "digits")
    figure, grid = figures.new_figure(1, 1)
    figure.set_size_inches(9, 0.36 * len(order) + 1.4)
    axes = grid[0][0]
    for number, (f, colour) in enumerate(zip(SETTINGS["digits"].sizes, ("#56B4E9", "#D55E00"), strict=True)):
        points = [(place, by_f[f].lost) for place, (_, by_f) in enumerate(order) if f in by_f]
        at = [place + 0.36 * (number - 0.5) for place, _ in points]
        axes.barh(at, [max(lost, 0.0) for _, lost in points], height=0.34, color=colour, label=f"f = {f} of 15")
    axes.set_yticks(range(len(order)), [defence for defence, _ in order], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("points of maximum accuracy lost to the worst attack found")
    axes.set_title("digits, 15 workers, momentum at the workers")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower right")
    figures.save_for_page(figure, DOCS / "leaderboard" / "leaderboard.png")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

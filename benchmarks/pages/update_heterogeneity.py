"""Run the grid of docs/heterogeneity.md (heterogeneity.toml) and rewrite its tables, its figure and its CSV file.

    python -m benchmarks.pages.update_heterogeneity runs/heterogeneity --jobs 1

Complete runs and searches are not repeated. All of them take some fifty minutes of one core. The options are those of
`gyroscope sweep` and `gyroscope redteam` alike: `--jobs`, `--quiet`.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from benchmarks.pages import DOCS, GRIDS, markers
from gyroscope.cli import main as gyroscope
from gyroscope.experiments import grid, results
from gyroscope.experiments.results import RunResult, SetupResult
from gyroscope.report import figures
from gyroscope.report.text_tables import markdown_table, write_csv
from gyroscope.rules.base import Aggregate, ContextualRule, RuleContext, RuleState, trusted_gradient
from gyroscope.runs import run_dir
from gyroscope.runs.config import NO_ATTACK, Config

PAGE = DOCS / "heterogeneity.md"
STUDIES = {"grid": GRIDS / "heterogeneity.toml", "weights": GRIDS / "heterogeneity-weights.toml"}
"""The grids by the folders of their runs."""
SHARDS = {"dirichlet:alpha=0.1": "dirichlet-0.1", "sorted": "sorted", "dirichlet": "dirichlet-0.5", "common": "common"}
"""The shardings as configurations spell them, and their names here."""
UNEQUAL = ("dirichlet-0.1", "sorted", "dirichlet-0.5")
PLACES = ("workers", "server")
SEARCHED = {"searched:every=30": "searched", "searched:goal=against,every=30": "searched, against"}
PUBLISHED = ("little", "empire", "mimic", "label-flip")
ATTACKS = (*PUBLISHED, *SEARCHED.values())
LARGE, HONEST = "empire:factor=100.0", "empire:factor=0.0"
AVERAGE, ALONE = "average", "server-alone"
TRUSTING = ("fltrust",)
OWN_SAMPLES = (10, 30, 100)
"""How many samples the server holds where it is trusted; tables name the number where it is not the last."""
RED_TEAM = [
    (shards, placement, rule)
    for placement, rule in (("workers", "fltrust"), ("server", "nnm+median"), ("server", "caf"))
    for shards in UNEQUAL[:2]
]
"""What `gyroscope redteam` searches, where data are most unequal: the defences that lose least in the grid."""
BUDGET = 12
SOME_SHARE = 1e-9
"""A worker with less of the aggregate has no part in it."""


@dataclasses.dataclass(frozen=True)
class ServerAlone(ContextualRule):
    """The gradient at the server's own samples, whatever workers send: what these samples are worth by themselves."""

    name = ALONE
    summary = "the gradient at the server's own samples"
    needs = "n >= f + 1"
    uses = frozenset({"trusted"})

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        return Aggregate(trusted_gradient(self, rows, context).to(rows.dtype), None), {}


class Kind(NamedTuple):
    """What distinguishes the setups of the grid."""

    shards: str
    placement: str
    defence: str
    attack: str

    @classmethod
    def of(cls, config: Config) -> Kind:
        defence = ALONE if config.rule.endswith(":ServerAlone") else config.rule
        if config.mu == 0.95:  # as --horizon 2 makes it
            defence = f"{defence}, horizon 2"
        if config.trusted:
            defence = trusting(defence, config.trusted)
        attack = SEARCHED.get(config.attack, config.attack)
        return cls(SHARDS[config.shards], config.momentum, defence, attack)


def trusting(rule: str, samples: int) -> str:
    """Return the name here of a rule that trusts so many samples of the server's own."""
    return rule if samples == OWN_SAMPLES[-1] else f"{rule}, {samples} samples"


class Worst(NamedTuple):
    """The attack that leaves a defence least, and what it leaves: maximum and final accuracy in percent."""

    maximum: float
    final: float
    attack: str


class Study:
    """The runs by kind. Accuracies are in percent, means over the seeds; NaN where nothing was run."""

    def __init__(self, setups: Iterable[SetupResult]) -> None:
        self.setups = {Kind.of(setup.config): setup for setup in setups}

    def runs(self, kind: Kind, seeds: Iterable[int] | None = None) -> list[RunResult]:
        """Return the runs of a kind, all of them or those with these seeds."""
        setup = self.setups.get(kind)
        found = setup.runs if setup else ()
        return [run for run in found if seeds is None or run.config.seed in seeds]

    def maximum(self, kind: Kind, seeds: Iterable[int] | None = None) -> float:
        return mean([100 * run.max_accuracy for run in self.runs(kind, seeds)])

    def final(self, kind: Kind, seeds: Iterable[int] | None = None) -> float:
        return mean([100 * run.final_or_worst for run in self.runs(kind, seeds)])

    def worst(self, shards: str, placement: str, defence: str, attacks: Sequence[str] = ATTACKS) -> Worst:
        """Return what the worst of these attacks leaves of a defence."""
        kinds = [Kind(shards, placement, defence, attack) for attack in attacks]
        kind = min((kind for kind in kinds if kind in self.setups), key=self.maximum)
        return Worst(self.maximum(kind), self.final(kind), kind.attack)

    def common_worst(self, shards: str, defence: str) -> dict[str, float]:
        """Return the worst case of each placement over the seeds that both have."""
        found: dict[str, list[float]] = {place: [] for place in PLACES}
        for attack in ATTACKS:
            kinds = {place: Kind(shards, place, defence, attack) for place in PLACES}
            seeds = set.intersection(*({run.config.seed for run in self.runs(kind)} for kind in kinds.values()))
            for place, kind in kinds.items():
                found[place].append(self.maximum(kind, seeds))
        return {place: min(values) for place, values in found.items()}

    def defences(self, shards: str, placement: str) -> list[str]:
        """Return the defences that met every attack, the best worst case first."""
        names = dict.fromkeys(kind.defence for kind in self.setups if kind[:2] == (shards, placement))
        there = [name for name in names if all(Kind(shards, placement, name, a) in self.setups for a in ATTACKS)]
        return sorted(there, key=lambda name: -self.worst(shards, placement, name).maximum)

    @cached_property
    def order(self) -> list[str]:
        """The defences by their worst case over all unequal shards, momentum at the workers, the best first."""
        return sorted(
            self.defences(UNEQUAL[0], "workers"),
            key=lambda name: -min(self.worst(shards, "workers", name).maximum for shards in UNEQUAL),
        )


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def main(folder: Path, *options: str) -> int:
    for name, path in STUDIES.items():
        code = gyroscope(["sweep", str(path), "--out", str(folder / name), *options])
        if code != 0:
            return code
    for shards, placement, rule in RED_TEAM:
        if not (red_team_folder(folder, shards, placement, rule) / "redteam.csv").is_file():
            code = gyroscope([*red_team_command(folder, shards, placement, rule), *options])
            if code != 0:
                return code
    publish(read(folder, "grid"), read(folder, "weights"), folder)
    return 0


def read(folder: Path, study: str) -> list[SetupResult]:
    """Return the runs of a study, and no others that its folder may hold."""
    wanted = {grid.fingerprint(setup.config) for setup in grid.read(STUDIES[study])}
    return results.group(run for run in markers.runs_in(folder / study) if grid.fingerprint(run.config) in wanted)


def red_team_folder(folder: Path, shards: str, placement: str, rule: str) -> Path:
    return folder / "redteam" / f"{shards}-{grid.rule_label(rule)}-{placement}"


def red_team_command(folder: Path, shards: str, placement: str, rule: str) -> list[str]:
    spelt = next(spec for spec, name in SHARDS.items() if name == shards)
    where = ["--task", "digits", "--workers", "20", "--byzantine", "4", "--shards", spelt, "--momentum", placement]
    trusted = ["--trusted", str(OWN_SAMPLES[-1])] if rule in TRUSTING else []
    out = red_team_folder(folder, shards, placement, rule)
    return ["redteam", "--rule", rule, *trusted, *where, "--budget", str(BUDGET), "--out", str(out)]


def publish(setups: list[SetupResult], weights: list[SetupResult], folder: Path) -> None:
    """Write the tables, the CSV file and the figure."""
    study = Study(setups)
    tables = {shards: whole_table(study, shards, "workers") for shards in SHARDS.values()}
    parts = {
        "summary": summary(study),
        "placements": placements(study),
        "average": of_the_average(study),
        "ranges": ranges(study),
        **tables,
    }
    more = {"server": server_tables(study), "trusted": trusted_table(study), "redteam": red_team_table(study, folder)}
    markers.replace(PAGE, {**parts, **more, "left-out": left_out_table(weights), "copies": share_of_copies(weights)})
    beside = DOCS / "heterogeneity"
    beside.mkdir(exist_ok=True)
    header = (*Kind._fields, "seeds", "max_accuracy_percent", "max_deviation", "final_accuracy_percent", "diverged")
    write_csv(beside / "heterogeneity.csv", [header, *sorted(map(csv_row, study.setups.items()))])
    draw(study, beside / "heterogeneity.png")


def csv_row(item: tuple[Kind, SetupResult]) -> tuple[str, ...]:
    kind, setup = item
    best = [100 * run.max_accuracy for run in setup.runs]
    final = mean([100 * run.final_or_worst for run in setup.runs])
    deviation = f"{statistics.stdev(best):.2f}" if len(best) > 1 else ""
    diverged = sum(run.status == run_dir.DIVERGED for run in setup.runs)
    return (*kind, " ".join(map(str, setup.seeds)), f"{mean(best):.2f}", deviation, f"{final:.2f}", str(diverged))


# -- the tables -------------------------------------------------------------------------------------------------------


def summary(study: Study) -> str:
    """Return what each defence reaches without an attack and under the worst one, for each sharding."""
    names = list(SHARDS.values())
    header = ["defence", *(f"`{shards}`: nobody attacks | worst" for shards in names)]
    lines = [[shown(name), *(pair(study, shards, name) for shards in names)] for name in study.order]
    return with_pairs(header, lines)


def pair(study: Study, shards: str, name: str) -> str:
    quiet = study.maximum(Kind(shards, "workers", name, NO_ATTACK))
    return f"{quiet:.1f} | {study.worst(shards, 'workers', name).maximum:.1f}"


def whole_table(study: Study, shards: str, placement: str) -> str:
    """Return the maximum accuracy of each defence under each attack, and the final one under the worst."""
    header = ["defence", "nobody attacks", *(f"`{attack}`" for attack in ATTACKS), "worst", "final under the worst"]
    lines = []
    for name in study.defences(shards, placement):
        worst = study.worst(shards, placement, name)
        cells = [study.maximum(Kind(shards, placement, name, attack)) for attack in (NO_ATTACK, *ATTACKS)]
        lines.append(
            [shown(name), *(f"{cell:.1f}" for cell in cells), f"**{worst.maximum:.1f}**", f"{worst.final:.1f}"]
        )
    return markdown_table(header, lines, header[1:])


def server_tables(study: Study) -> str:
    """Return the tables with momentum at the server, folded."""
    tables = {shards: whole_table(study, shards, "server") for shards in SHARDS.values()}
    return "\n\n".join(
        f"<details><summary>{shards}, momentum at the server</summary>\n\n{table}\n\n</details>"
        for shards, table in tables.items()
    )


def placements(study: Study) -> str:
    """Return the worst case with momentum at the workers and at the server, over the seeds that both have."""
    header = ["defence", *(f"`{shards}`: workers | server" for shards in SHARDS.values())]
    there = [name for name in study.order if name in study.defences(UNEQUAL[0], "server")]
    lines = []
    for name in there:
        found = [study.common_worst(shards, name) for shards in SHARDS.values()]
        lines.append([shown(name), *(f"{one['workers']:.1f} | {one['server']:.1f}" for one in found)])
    return with_pairs(header, lines)


def ranges(study: Study) -> str:
    """Return the best and the worst of the worst cases for each sharding, of defences that trust nobody."""
    header = ["shards", "costs without an attack", "best worst case", "of", "worst worst case", "of "]
    lines = []
    for shards in SHARDS.values():
        names = [name for name in study.defences(shards, "workers") if name not in (AVERAGE, *TRUSTING)]
        average = study.maximum(Kind(shards, "workers", AVERAGE, NO_ATTACK))
        costs = [average - study.maximum(Kind(shards, "workers", name, NO_ATTACK)) for name in names]
        first, last = (study.worst(shards, "workers", name).maximum for name in (names[0], names[-1]))
        lines.append([f"`{shards}`", f"{min(costs):.1f} to {max(costs):.1f}".replace("-0.0", "0.0"),
                      f"{first:.1f}", f"`{names[0]}`", f"{last:.1f}", f"`{names[-1]}`"])  # fmt: skip
    return markdown_table(header, lines, [header[1], header[2], header[4]])


def of_the_average(study: Study) -> str:
    """Return what attacks leave of the average, and what no defence can be expected to exceed."""
    header = ["shards", "nobody attacks", "the four send the honest mean", "worst published attack", f"`{LARGE}`",
              "worst `searched`"]  # fmt: skip
    lines = []
    for shards in SHARDS.values():
        plain = [study.maximum(Kind(shards, "workers", AVERAGE, attack)) for attack in (NO_ATTACK, HONEST, LARGE)]
        known, aimed = (
            study.worst(shards, "workers", AVERAGE, attacks) for attacks in (PUBLISHED, tuple(SEARCHED.values()))
        )
        lines.append([f"`{shards}`", f"{plain[0]:.1f}", f"{plain[1]:.1f}", f"{known.maximum:.1f} (`{known.attack}`)",
                      f"{plain[2]:.1f}", f"{aimed.maximum:.1f}"])  # fmt: skip
    return markdown_table(header, lines, header[1:])


def trusted_table(study: Study) -> str:
    """Return what samples of the server's own are worth, by their number: by themselves and with `fltrust`."""
    attacks = ("empire", "label-flip", *SEARCHED.values())
    header = ["samples", "these alone", *(f"`{shards}`: nobody attacks | worst of four" for shards in UNEQUAL[:2])]
    lines = []
    for count in OWN_SAMPLES:
        rule = trusting("fltrust", count)
        alone = study.maximum(Kind("common", "workers", trusting(ALONE, count), NO_ATTACK))
        cells = [f"{study.maximum(Kind(shards, 'workers', rule, NO_ATTACK)):.1f} | "
                 f"{study.worst(shards, 'workers', rule, attacks).maximum:.1f}" for shards in UNEQUAL[:2]]  # fmt: skip
        lines.append([str(count), f"{alone:.1f}", *cells])
    return with_pairs(header, lines, 2)


def red_team_table(study: Study, folder: Path) -> str:
    """Return the worst attacks that the red team found."""
    header = ["shards", "defence", "momentum at the", "nobody attacks", "worst in the grid", "worst of the search",
              "final", "to"]  # fmt: skip
    lines = []
    for shards, placement, rule in RED_TEAM:
        with (red_team_folder(folder, shards, placement, rule) / "redteam.csv").open(encoding="utf-8") as file:
            found = next(csv.DictReader(file))
        numbers = (study.maximum(Kind(shards, placement, rule, NO_ATTACK)),
                   study.worst(shards, placement, rule).maximum,
                   float(found["max_accuracy_percent"]), float(found["final_accuracy_percent"]))  # fmt: skip
        cells = [f"{number:.1f}" for number in numbers]
        lines.append([f"`{shards}`", shown(rule), placement, *cells, f"`{found['attack']}`"])
    return markdown_table(header, lines, header[3:-1])


def left_out_table(setups: list[SetupResult]) -> str:
    """Return how many workers a rule leaves out of nearly all of the last 100 rounds, though nobody attacks."""
    header = ["rule", "momentum at the", "accuracy", "workers left out"]
    lines = []
    for setup in setups:
        config = setup.config
        if config.attack == NO_ATTACK:
            numbers = [left_out(run) for run in setup.runs]
            accuracy = f"{100 * setup.mean(lambda run: run.max_accuracy):.1f}"
            lines.append([f"`{config.rule}`", config.momentum, accuracy, ", ".join(map(str, numbers))])
    return markdown_table(header, sorted(lines, reverse=True), header[2:])


def left_out(run: RunResult) -> int:
    """Return how many workers have a share in less than a tenth of the last 100 rounds."""
    shares = run.weights.drop(columns="step").iloc[-100:]
    return int(((shares > SOME_SHARE).mean() < 0.1).sum())


def share_of_copies(setups: list[SetupResult]) -> str:
    """Return in words which share the four Byzantine workers have under an attack, the mean over rounds and seeds."""
    (setup,) = (setup for setup in setups if setup.config.attack != NO_ATTACK)
    share = setup.mean(lambda run: float(run.weights.iloc[:, -setup.config.byzantine :].sum(axis=1).mean()))
    return (
        f"With `{setup.config.shards}` shards `{setup.config.rule}` gives the four workers of `{setup.config.attack}` "
        f"{100 * share:.0f} % of the weight (mean of all rounds and {len(setup.runs)} seeds)."
    )


def with_pairs(header: Sequence[str], lines: Iterable[Sequence[str]], single: int = 1) -> str:
    """Return a table whose columns hold two cells each, but for the first few."""
    first, _, rest = markdown_table(header, lines).split("\n", 2)
    return "\n".join([first, "|---|" + "---:|" * (single - 1) + "---:|---:|" * (len(header) - single), rest])


def shown(name: str) -> str:
    return f"`{name}`{' (trusts)' if name in TRUSTING else ''}"


# -- the figure -------------------------------------------------------------------------------------------------------


def draw(study: Study, path: Path) -> None:
    """Draw a heat-map for each sharding: defences by attacks, the accuracy in figures in every cell."""
    columns = (NO_ATTACK, *ATTACKS)
    figure, axes_grid = figures.new_figure(2, 2, size=(12, 0.7 * len(study.order) + 1.5))
    for axes, shards in zip(axes_grid.flatten(), SHARDS.values(), strict=True):
        cells = [[study.maximum(Kind(shards, "workers", name, column)) for column in columns] for name in study.order]
        # Grey by the square root of what is missing, so that a few points show.
        shades = [[math.sqrt(min(max(98 - value, 0.0), 88.0) / 88.0) for value in line] for line in cells]
        axes.imshow(shades, cmap="Greys", vmin=0, vmax=1, aspect="auto")
        for y, line in enumerate(cells):
            for x, value in enumerate(line):
                colour = "white" if shades[y][x] > 0.55 else "black"
                axes.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
        axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(study.order)), study.order)
        axes.axvline(0.5, color="black", linewidth=1.5)
        axes.set_title(shards)
    figure.suptitle("Maximum accuracy in %: digits, 4 of 20 workers Byzantine, momentum at the workers")
    figures.save_for_page(figure, path, dpi=110)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))

"""Run the grid of docs/transformers.md (transformers.toml) and rewrite its tables and its figures.

    python -m benchmarks.pages.update_transformers runs/transformers --jobs 2

Complete runs are not repeated. All of them take some three hours on one core.
"""

from __future__ import annotations

import math
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.pages import DOCS, GRIDS, markers
from gyroscope.cli import main as gyroscope
from gyroscope.experiments import results
from gyroscope.experiments.results import RunResult, SetupResult
from gyroscope.report import figures
from gyroscope.report.text_tables import write_csv
from gyroscope.runs import run_dir
from gyroscope.runs.config import Config

PAGE = DOCS / "transformers.md"
RULES = ("krum", "median", "bulyan", "caf-history")
ATTACKS = ("little", "empire", "searched")
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}
SERVER, SLOW_SERVER, WORKERS = "server", "server, the workers' rate", "workers"
PLACES = {"adamw": (SERVER, SLOW_SERVER, WORKERS), "sgd": (SERVER, WORKERS)}


class Kind(NamedTuple):
    """What distinguishes the setups of the grid."""

    optimizer: str
    rule: str
    attack: str
    placement: str

    @classmethod
    def of(cls, config: Config) -> Kind:
        # AdamW without momentum before it has its own, beta1, after the rule: at the server.
        placement = config.momentum
        if placement == "none":
            placement = SERVER if config.lr == "0.01" else SLOW_SERVER
        return cls(config.optimizer.partition(":")[0], config.rule, config.attack, placement)


def main(folder: Path, *options: str) -> int:
    code = gyroscope(["sweep", str(GRIDS / "transformers.toml"), "--out", str(folder), *options])
    if code != 0:
        return code
    publish({Kind.of(setup.config): setup for setup in results.group(markers.runs_in(folder))})
    return 0


def publish(setups: dict[Kind, SetupResult]) -> None:
    """Write the tables, the CSV and one figure for each optimizer."""
    parts = {optimizer: table(setups, optimizer) for optimizer in OPTIMIZERS}
    markers.replace(PAGE, {**parts, "baselines": baselines(setups)})
    folder = DOCS / "transformers"
    folder.mkdir(exist_ok=True)
    header = (*Kind._fields, "workers", "byzantine", "seeds", "best_test_loss", "best_deviation", "final_test_loss",
              "diverged")  # fmt: skip
    rows = [(*kind, setup.config.workers, setup.config.byzantine, *numbers(setup)) for kind, setup in setups.items()]
    write_csv(folder / "transformers.csv", [header, *sorted(rows)])
    for optimizer in OPTIMIZERS:
        draw(setups, optimizer, folder / f"{optimizer}.png")


def numbers(setup: SetupResult) -> tuple[str, ...]:
    """Return seeds, best loss with its deviation, final loss and the number of runs that diverged, as text."""
    best, final = setup.each(best_loss), [loss for loss in setup.each(final_loss) if math.isfinite(loss)]
    diverged = sum(run.status == run_dir.DIVERGED for run in setup.runs)
    last = f"{statistics.fmean(final):.3f}" if final else ""
    deviation = statistics.stdev(best) if len(best) > 1 else 0.0
    seeds = " ".join(map(str, setup.seeds))
    return seeds, f"{statistics.fmean(best):.3f}", f"{deviation:.3f}", last, str(diverged)


def table(setups: dict[Kind, SetupResult], optimizer: str) -> str:
    """Return the losses of each placement for each rule and attack."""
    places = PLACES[optimizer]
    lines = [
        f"| rule | attack | f of 13 | {' | '.join(f'{place}: best | final' for place in places)} |",
        f"|---|---|---:|{'---:|---:|' * len(places)}",
    ]
    for rule in RULES:
        for attack in ATTACKS:
            row = [setups.get(Kind(optimizer, rule, attack, place)) for place in places]
            there = [setup for setup in row if setup]
            if not there:
                continue
            cells = [cell for setup in row for cell in losses(setup, bold=is_best(setup, there))]
            lines.append(f"| `{rule}` | `{attack}` | {there[0].config.byzantine} | {' | '.join(cells)} |")
    return "\n".join(lines)


def is_best(setup: SetupResult | None, among: list[SetupResult]) -> bool:
    """Return whether a setup's best loss is below all others' by more than the deviations over seeds."""
    if setup is None:
        return False
    spread = max(statistics.stdev(each.each(best_loss)) if len(each.runs) > 1 else 0.0 for each in among)
    return all(setup.mean(best_loss) + spread < other.mean(best_loss) for other in among if other is not setup)


def losses(setup: SetupResult | None, bold: bool) -> tuple[str, str]:
    """Return the cells of a setup: its best loss with the deviation over seeds, and its final loss."""
    if setup is None:
        return "-", "-"
    _, best, deviation, final, diverged = numbers(setup)
    mark = "**" if bold else ""
    ended = final if diverged == "0" else f"{final or '-'}; {diverged} of {len(setup.runs)} diverged"
    return f"{mark}{best}{mark} ± {deviation}", ended


def baselines(setups: dict[Kind, SetupResult]) -> str:
    """Return the losses of the average, which is no defence."""
    lines = ["| optimizer | momentum | nobody attacks: best | final | `little`, f = 5: best | final |",
             "|---|---|---:|---:|---:|---:|"]  # fmt: skip
    for optimizer, places in PLACES.items():
        for place in places:
            pair = [setups.get(Kind(optimizer, "average", attack, place)) for attack in ("none", "little")]
            if any(pair):
                cells = [cell for setup in pair for cell in losses(setup, bold=False)]
                lines.append(f"| {OPTIMIZERS[optimizer]} | {place} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(setups: dict[Kind, SetupResult], optimizer: str, path: Path) -> None:
    """Draw test loss over steps: a panel for each rule and attack, a curve for each placement."""
    figure, grid = figures.new_figure(len(ATTACKS), len(RULES))
    unattacked = setups.get(Kind(optimizer, "average", "none", WORKERS))
    for line, attack in zip(grid, ATTACKS, strict=True):
        line[0].set_ylabel(f"{attack}\ntest loss")
        for axes, rule in zip(line, RULES, strict=True):
            shown = {place: setups.get(Kind(optimizer, rule, attack, place)) for place in PLACES[optimizer]}
            curves = {"no attack": unattacked, **shown}
            figures.draw(axes, [curve(label, setup) for label, setup in curves.items() if setup])
            axes.set_ylim(1.4, 4.4)
    for axes, rule in zip(grid[0], RULES, strict=True):
        axes.set_title(f"{rule}, f = {2 if rule == 'bulyan' else 5}")
    grid[0][0].legend(loc="upper right", title="momentum")
    title = f"A small GPT, {OPTIMIZERS[optimizer]} at the server, 13 workers: momentum at the server or at the workers"
    figure.suptitle(title)
    figures.save_for_page(figure, path)


def curve(label: str, setup: SetupResult) -> figures.Curve:
    return figures.Curve(label, [run.evaluations for run in setup.runs], "test_loss")


def best_loss(run: RunResult) -> float:
    return float(run.evaluations["test_loss"].min())


def final_loss(run: RunResult) -> float:
    return float(run.evaluations["test_loss"].iloc[-1])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))

"""Run the grid of docs/beyond/servers.md (servers.toml) and rewrite its table and its figures.

    python -m benchmarks.pages.update_servers runs/servers

Complete runs are not repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.pages import DOCS, GRIDS, markers
from gyroscope.cli import main as gyroscope
from gyroscope.experiments import results
from gyroscope.experiments.results import RunResult, SetupResult
from gyroscope.report import figures
from gyroscope.runs.config import Config

SETTLED = 30
"""Steps after which momentum has settled: 0.9^30 is 4 %."""
SCENES: dict[str, Callable[[Config], bool]] = {
    "nobody lies": lambda config: _lies(config) == ("none", "none") and getattr(config, "exchange_every", 1) == 1,
    "workers: little": lambda config: _lies(config) == ("little", "none"),
    "workers: equivocate": lambda config: _lies(config) == ("equivocate", "none"),
    "a server: equivocate": lambda config: _lies(config) == ("none", "equivocate"),
    "nobody lies, exchange every 10 steps": lambda config: getattr(config, "exchange_every", 1) == 10,
}
DRAWN = ("nobody lies", "workers: equivocate", "a server: equivocate")
ROWS = {
    "drift_before": "largest distance between\nhonest servers",
    "relative_before": "the same, divided by\nthe length of the step",
}


def main(folder: Path, *options: str) -> int:
    code = gyroscope(["sweep", str(GRIDS / "servers.toml"), "--out", str(folder), *options])
    if code != 0:
        return code
    publish(results.group(markers.runs_in(folder)))
    return 0


def publish(setups: list[SetupResult]) -> None:
    markers.replace(DOCS / "beyond" / "servers.md", {"drift": table(setups)})
    draw(setups)
    draw_rare_exchanges(setups)


def draw(setups: list[SetupResult]) -> None:
    """Draw the drift over steps, before the exchange: absolute, and relative to the step length."""
    figure, grid = figures.new_figure(len(ROWS), len(DRAWN))
    for line, (quantity, label) in zip(grid, ROWS.items(), strict=True):
        line[0].set_ylabel(label)
        for axes, scene in zip(line, DRAWN, strict=True):
            figures.draw(axes, [_curve(setup, quantity) for setup in _of(scene, setups)], positive=True)
            axes.set_yscale("log")
    for axes, scene in zip(grid[0], DRAWN, strict=True):
        axes.set_title(scene)
    grid[0][0].legend(loc="upper right", title="momentum")
    config = setups[0].config
    count = getattr(config, "servers", 1)
    figure.suptitle(f"Drift between the honest ones of {count} servers: MNIST, {config.workers} workers, Krum")
    figures.save_for_page(figure, DOCS / "beyond" / "servers.png")


def draw_rare_exchanges(setups: list[SetupResult]) -> None:
    """Draw the saw-tooth of servers that exchange their models every tenth step."""
    figure, grid = figures.new_figure(1, 1)
    axes = grid[0][0]
    figures.draw(axes, [_curve(setup, "drift_before") for setup in _of(list(SCENES)[-1], setups)])
    axes.set_ylabel("largest distance between honest servers")
    axes.set_title("nobody lies, exchange every 10 steps")
    axes.legend(title="momentum")
    figures.save_for_page(figure, DOCS / "beyond" / "servers-rare.png")


def table(setups: list[SetupResult]) -> str:
    """Return means over seeds and over the steps after momentum has settled."""
    lines = [
        "| who lies | momentum | maximum accuracy | step length | disagreement | drift before | drift after | "
        "before / step | after / step | contraction | alignment |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for scene in SCENES:
        for setup in _of(scene, setups):
            accuracy = f"{100 * setup.mean(lambda run: run.max_accuracy):.1f} %"
            numbers = [
                f"{setup.mean(_settled(column)):.3f}"
                for column in ("step_length", "disagreement", "drift_before", "drift_after", "relative_before",
                               "relative_after", "contraction", "alignment")
            ]  # fmt: skip
            lines.append(f"| {scene} | {setup.config.momentum} | {accuracy} | {' | '.join(numbers)} |")
    seeds = sorted({seed for setup in setups for seed in setup.seeds})
    lines.append("")
    lines.append(f"Means over steps {SETTLED} to the last and seeds {', '.join(map(str, seeds))}.")
    return "\n".join(lines)


def _lies(config: Config) -> tuple[str, str]:
    return config.attack, getattr(config, "server_attack", "none")


def _of(scene: str, setups: list[SetupResult]) -> list[SetupResult]:
    order = ("server", "workers", "none")
    chosen = [setup for setup in setups if SCENES[scene](setup.config)]
    return sorted(chosen, key=lambda setup: order.index(setup.config.momentum))


def _curve(setup: SetupResult, column: str) -> figures.Curve:
    return figures.Curve(setup.config.momentum, [run.drift for run in setup.runs], column)


def _settled(column: str) -> Callable[[RunResult], float]:
    return lambda run: float(run.drift.loc[run.drift["step"] >= SETTLED, column].mean())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))

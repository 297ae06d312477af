"""The demo: an attack succeeds with momentum at the server and fails with momentum at the workers."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gyroscope.report.figures import Curve, accuracy_figure
from gyroscope.runs.config import Config
from gyroscope.runs.result import Result
from gyroscope.runs.training import train
from gyroscope.simulation.tasks import TASKS

RULES = ("krum", "median", "bulyan")
PLACEMENTS = ("server", "workers")
BYZANTINE = 5
BASELINE = "no attack"


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the demo's table: mean and deviation over the seeds, in percent."""

    rule: str
    momentum: str
    accuracies: Sequence[float]
    drop: float

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


def configs(seeds: Sequence[int]) -> Iterator[tuple[str, str, Config]]:
    """(rule, placement, configuration) of every run: the unattacked average, then each rule under attack."""
    for seed in seeds:
        for placement in PLACEMENTS:
            yield BASELINE, placement, Config(rule="average", momentum=placement, seed=seed, threads=1)
            for rule in RULES:
                yield (
                    rule,
                    placement,
                    Config(rule=rule, attack="little", byzantine=BYZANTINE, momentum=placement, seed=seed, threads=1),
                )


def run(
    out: Path, seeds: Sequence[int], advance: Callable[[str, int, int], None], overwrite: bool = False
) -> tuple[list[Row], list[Path], float]:
    """Train everything, draw the figure. Returns the table, the figure's files and the seconds it took."""
    started = time.monotonic()
    todo = list(configs(seeds))
    results: dict[tuple[str, str], list[Result]] = {}
    for number, (rule, placement, config) in enumerate(todo):
        advance(f"{rule}, momentum at the {placement}, seed {config.seed}", number, len(todo))
        name = f"{rule.replace(' ', '-')}-{placement}-seed_{config.seed}"
        result = train(config, out=out / name, overwrite=overwrite)
        results.setdefault((rule, placement), []).append(result)
    advance("drawing", len(todo), len(todo))
    figure = accuracy_figure(
        [
            (
                f"momentum at the {placement}",
                [
                    Curve(rule, [result.evaluations for result in results[rule, placement]])
                    for rule in (BASELINE, *RULES)
                ],
            )
            for placement in PLACEMENTS
        ],
        f'digits, {TASKS["digits"].defaults.workers} workers, {BYZANTINE} of them Byzantine: "A little is enough"',
        out / "demo",
    )
    return table(results), figure, time.monotonic() - started


def table(results: dict[tuple[str, str], list[Result]]) -> list[Row]:
    """Maximum accuracies, and how far below the unattacked average with the same placement they are."""
    rows: list[Row] = []
    for placement in PLACEMENTS:
        baseline = statistics.fmean(100 * result.max_accuracy for result in results[BASELINE, placement])
        for rule in (BASELINE, *RULES):
            accuracies = [100 * result.max_accuracy for result in results[rule, placement]]
            rows.append(Row(rule, placement, accuracies, baseline - statistics.fmean(accuracies)))
    return rows

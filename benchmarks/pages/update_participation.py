"""Run the grid of docs/partial-participation.md (participation.toml) and rewrite its tables.

    python -m benchmarks.pages.update_participation runs/participation

Complete runs are not repeated. All of them take some ten minutes on one core.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.pages import DOCS, GRIDS, markers
from gyroscope.cli import main as gyroscope
from gyroscope.experiments import grid, results
from gyroscope.experiments.results import SetupResult
from gyroscope.runs.config import Config

PAGE = DOCS / "partial-participation.md"
RULES = ("median", "krum", "nnm+trimmed-mean", "caf-history")
ATTACKS = ("none", "little", "empire", "sign-flip", "empire:factor=100.0")


class Way(NamedTuple):
    """Who is asked, and what the rule is given and told."""

    sample: int | None
    absent: str = "momentum"
    declared: int = 5

    @property
    def words(self) -> str:
        if self.sample is None:
            return "all 25"
        return f"{self.sample}, `{self.absent}`" + ("" if self.declared == 5 else f", f = {self.declared} declared")


WAYS = (Way(None), Way(15), Way(15, "left-out"), Way(8), Way(8, "left-out", 2))
Key = tuple[Way, str, str]


def key(config: Config) -> Key:
    """Return what distinguishes the setups of the grid: who is asked, the rule and the attack."""
    declared = config.declared_byzantine if config.declared_byzantine is not None else config.byzantine
    return Way(config.sample, config.absent, declared), config.rule, config.attack


def main(folder: Path, *options: str) -> int:
    path = GRIDS / "participation.toml"
    code = gyroscope(["sweep", str(path), "--out", str(folder), *options])
    if code != 0:
        return code
    wanted = {grid.fingerprint(setup.config) for setup in grid.read(path)}
    runs = [run for run in markers.runs_in(folder) if grid.fingerprint(run.config) in wanted]
    setups = {key(setup.config): setup for setup in results.group(runs)}
    markers.replace(PAGE, {"best": table(setups, "max_accuracy"), "final": table(setups, "final_accuracy")})
    return 0


def table(setups: dict[Key, SetupResult], what: str) -> str:
    """Return an accuracy in percent for each rule, way and attack: its mean over the seeds, and its deviation."""
    heads = ["rule", "a round asks", *(f"`{attack}`" if attack != "none" else "nobody attacks" for attack in ATTACKS)]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * len(ATTACKS)]
    for rule in RULES:
        for way in WAYS:
            found = [setups.get((way, rule, attack)) for attack in ATTACKS]
            if any(found):
                lines.append(f"| `{rule}` | {way.words} | {' | '.join(cell(setup, what) for setup in found)} |")
    return "\n".join(lines)


def cell(setup: SetupResult | None, what: str) -> str:
    if setup is None:
        return "-"
    values = [100 * getattr(run, what) for run in setup.runs]
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.1f} ± {deviation:.1f}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))

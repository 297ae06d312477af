"""`gyroscope demo`: an attack succeeds and fails."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

from gyroscope._core.errors import ConfigError

_RULES = ("no attack", "krum", "median", "bulyan")
"""The unattacked average, then each rule under attack."""
_BYZANTINE = 5


def add(commands: Any) -> None:
    command = commands.add_parser(
        "demo",
        help="see an attack succeed and fail, in under a minute",
        description="Trains a small network on 8x8 digits (no download): unattacked, then under 'A little is enough' "
        "with Krum, Median and Bulyan, with momentum at the server and at the workers.",
    )
    command.add_argument("--out", default="demo-runs", metavar="DIR", help="where to write (default: %(default)s)")
    command.add_argument("--seeds", type=int, default=3, metavar="K", help="seeds 1 to K (default: %(default)s)")
    command.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from gyroscope.experiments.claims.checks import mean_text
    from gyroscope.experiments.grid import PLACES
    from gyroscope.report.figures import Curve, accuracy_figure, save
    from gyroscope.runs.config import Config
    from gyroscope.runs.progress import overall
    from gyroscope.runs.result import Result
    from gyroscope.runs.training import train
    from gyroscope.simulation.tasks import TASKS

    if options.seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {options.seeds}")
    started, out = time.monotonic(), Path(options.out)
    todo = list(itertools.product(range(1, options.seeds + 1), PLACES, _RULES))
    results: dict[tuple[str, str], list[Result]] = {case: [] for case in itertools.product(PLACES, _RULES)}
    with overall() as advance:
        for number, (seed, place, rule) in enumerate(todo):
            advance(f"{rule}, momentum at the {place}, seed {seed}", number, len(todo))
            attacked = {"rule": rule, "attack": "little", "byzantine": _BYZANTINE} if rule != _RULES[0] else {}
            config = Config.from_mapping({"momentum": place, "seed": seed, "threads": 1, **attacked})
            path = out / f"{rule.replace(' ', '-')}-{place}-seed_{seed}"
            results[place, rule].append(train(config, out=path, overwrite=True))
        advance("drawing", len(todo), len(todo))
    panels = [
        (f"momentum at the {place}", [Curve(rule, [r.evaluations for r in results[place, rule]]) for rule in _RULES])
        for place in PLACES
    ]
    workers = TASKS["digits"].defaults.workers
    title = f'digits, {workers} workers, {_BYZANTINE} of them Byzantine: "A little is enough"'
    figure, *_ = save(accuracy_figure(panels, title), out / "demo")
    table = Table(title='Maximum accuracy on digits under "A little is enough"', title_justify="left")
    for heading in ("momentum at the", "rule"):
        table.add_column(heading)
    for heading in ("accuracy (%)", "lost to the attack (points)"):
        table.add_column(heading, justify="right")
    for (place, rule), runs in results.items():
        accuracies = [100 * run.max_accuracy for run in runs]
        if rule == _RULES[0]:
            unattacked, lost = statistics.fmean(accuracies), ""
        else:
            lost = f"{unattacked - statistics.fmean(accuracies):.1f}"
        table.add_row(place, rule, mean_text(accuracies), lost, end_section=rule == _RULES[-1])
    console = Console(highlight=False)
    console.print(table)
    seconds = time.monotonic() - started
    console.print(f"figure: {figure}   run directories: {options.out}/   {seconds:.0f} s", soft_wrap=True)
    return 0

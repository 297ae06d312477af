"""The demo's runs: an attack succeeds with momentum at the server and fails with momentum at the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gyroscope.runs.config import Config
from gyroscope.runs.result import Result
from gyroscope.runs.training import train

RULES = ("no attack", "krum", "median", "bulyan")
"""The unattacked average, then each rule under attack."""
PLACEMENTS = ("server", "workers")
BYZANTINE = 5


def run(
    out: Path, seeds: Sequence[int], advance: Callable[[str, int, int], None]
) -> dict[tuple[str, str], list[Result]]:
    """Train everything and return the results by (placement, rule), a result per seed.

    Args:
        out: The folder of the run directories; older runs of the same names are replaced.
        advance: Called before each run with its title, how many are done and how many there are.
    """
    todo = [(seed, placement, rule) for seed in seeds for placement in PLACEMENTS for rule in RULES]
    results: dict[tuple[str, str], list[Result]] = {(place, rule): [] for place in PLACEMENTS for rule in RULES}
    for number, (seed, placement, rule) in enumerate(todo):
        advance(f"{rule}, momentum at the {placement}, seed {seed}", number, len(todo))
        attacked = {"rule": rule, "attack": "little", "byzantine": BYZANTINE} if rule != RULES[0] else {}
        config = Config.from_mapping({"momentum": placement, "seed": seed, "threads": 1, **attacked})
        path = out / f"{rule.replace(' ', '-')}-{placement}-seed_{seed}"
        results[placement, rule].append(train(config, out=path, overwrite=True))
    advance("drawing", len(todo), len(todo))
    return results

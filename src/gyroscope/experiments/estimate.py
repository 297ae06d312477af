"""Estimate what a grid will take, from a few rounds of each kind of run measured here and now."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence

from gyroscope.experiments.pool import Job
from gyroscope.runs.config import ResolvedConfig
from gyroscope.simulation.data.sources import DataSetMissingError
from gyroscope.simulation.tasks import Task

ROUNDS = 3
_METRICS_BYTES, _WEIGHT_BYTES = 900, 20


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Seconds and megabytes of the runs whose data sets were found."""

    seconds: float
    megabytes: float
    kinds: int
    """How many kinds of run were timed."""
    missing: tuple[str, ...] = ()
    """The data sets that could not be found, each with the number of runs that need it and where it is published."""


def estimate(
    jobs: Sequence[Job], processes: int, advance: Callable[[str, int, int], None] = lambda *_: None
) -> Estimate:
    """Time a few rounds and one evaluation per kind of run; compute the disk from the sizes of tables and model.

    Kinds differ by task, rule and number of Byzantine workers; the rest hardly changes what a round costs.

    Args:
        advance: Called before each kind with what is timed, how many are done and how many there are.
    """
    configs = [job.config.resolve() for job in jobs]
    loaded, missing = _load(configs)
    configs = [config for config in configs if config.task in loaded]
    kinds = {_kind(config): config for config in configs}
    costs: dict[tuple[str, str, int], tuple[float, float, int]] = {}
    for kind, config in kinds.items():
        advance(f"timing {config.rule}", len(costs), len(kinds))
        costs[kind] = _measure(config, loaded[config.task])
    seconds = megabytes = 0.0
    for config in configs:
        per_round, per_evaluation, parameters = costs[_kind(config)]
        seconds += config.steps * per_round + config.steps / config.evaluate_every * per_evaluation
        megabytes += (config.steps * (_METRICS_BYTES + _WEIGHT_BYTES * config.workers) + 4 * parameters) / 1e6
    return Estimate(seconds / processes, megabytes, len(costs), missing)


def _load(configs: Sequence[ResolvedConfig]) -> tuple[dict[str, Task], tuple[str, ...]]:
    from gyroscope.runs import training

    loaded: dict[str, Task] = {}
    missing: Counter[tuple[str, str]] = Counter()
    for config in {config.task: config for config in configs}.values():
        try:
            loaded[config.task] = training.load_task(config)
        except DataSetMissingError as problem:
            missing[problem.title, problem.published] += sum(other.task == config.task for other in configs)
    return loaded, tuple(f"{title} ({n:,} run{'s' * (n != 1)}; {source})" for (title, source), n in missing.items())


def _kind(config: ResolvedConfig) -> tuple[str, str, int]:
    return config.task, config.rule, config.byzantine


def _measure(config: ResolvedConfig, task: Task) -> tuple[float, float, int]:
    """Return (seconds per round, seconds per evaluation, number of parameters)."""
    from gyroscope.runs.variants import run_class
    from gyroscope.simulation.evaluation import evaluate

    run = run_class(config)(config, task)
    run.play_round()  # the first one warms up
    started = time.perf_counter()
    for _ in range(ROUNDS):
        run.play_round()
    rounds = time.perf_counter()
    evaluate(run.model, run.test)
    return (rounds - started) / ROUNDS, time.perf_counter() - rounds, run.parameters.numel()


def duration(seconds: float) -> str:
    """Return `42 s`, `12 min` or `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

"""What a grid will take, from a few rounds of each kind of run measured here and now."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from gyroscope.experiments.pool import Job
from gyroscope.runs.config import ResolvedConfig
from gyroscope.simulation.tasks import Task

Kind = tuple[str, str, int]
Told = Callable[[str, int, int], None]

_ROUNDS = 3
_METRICS_BYTES, _WEIGHT_BYTES = 900, 20


@dataclasses.dataclass(frozen=True)
class Estimate:
    seconds: float
    megabytes: float
    measured: str


def estimate(jobs: Sequence[Job], processes: int, told: Told = lambda what, done, total: None) -> Estimate:
    """Time by running a few rounds and one evaluation per kind of run; disk from the sizes of the tables and the model.

    Kinds differ by task, rule and number of Byzantine workers; the rest hardly changes what a round costs.
    told: what is timed now, how many kinds are done, how many there are.
    """
    from gyroscope.runs import training

    configs = [job.config.resolve() for job in jobs]
    kinds: dict[Kind, ResolvedConfig] = {}
    for config in configs:
        kinds.setdefault(_kind(config), config)
    costs: dict[Kind, tuple[float, float, int]] = {}
    loaded: dict[str, Task] = {}
    for kind, config in kinds.items():
        told(f"timing {config.rule}", len(costs), len(kinds))
        if config.task not in loaded:
            loaded[config.task] = training.load_task(config)
        costs[kind] = _measure(config, loaded[config.task])
    seconds = megabytes = 0.0
    for config in configs:
        per_round, per_evaluation, parameters = costs[_kind(config)]
        seconds += config.steps * per_round + config.steps / config.evaluate_every * per_evaluation
        megabytes += (config.steps * (_METRICS_BYTES + _WEIGHT_BYTES * config.workers) + 4 * parameters) / 1e6
    measured = f"{_ROUNDS} rounds of each of {len(costs)} kinds of run, timed just now"
    return Estimate(seconds / processes, megabytes, measured)


def _kind(config: ResolvedConfig) -> Kind:
    return config.task, config.rule, config.byzantine


def _measure(config: ResolvedConfig, task: Task) -> tuple[float, float, int]:
    """(seconds per round, seconds per evaluation, number of parameters)."""
    from gyroscope.runs.variants import run_class
    from gyroscope.simulation.evaluation import evaluate

    run = run_class(config)(config, task)
    run.play_round()  # the first one warms up
    started = time.perf_counter()
    for _ in range(_ROUNDS):
        run.play_round()
    rounds = time.perf_counter()
    evaluate(run.model, run.test)
    return (rounds - started) / _ROUNDS, time.perf_counter() - rounds, run.parameters.numel()


def duration(seconds: float) -> str:
    """`42 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

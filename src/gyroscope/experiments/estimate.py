"""Estimate what a grid will take, from a few rounds of each kind of run measured here and now."""

from __future__ import annotations

import dataclasses
import heapq
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
    """Time a process's start, and a few rounds and one evaluation per kind of run; compute the disk from sizes.

    Kinds differ by task, rule, attack and number of Byzantine workers; the rest hardly changes what a round costs.

    Args:
        jobs: What is to be run.
        processes: How many run at a time. Each starts once, and makes many runs.
        advance: Called before each kind with what is timed, how many are done and how many there are.
    """
    configs = [job.config.resolve() for job in jobs]
    loaded, missing = _load(configs)
    configs = [config for config in configs if config.task in loaded]
    kinds = {_kind(config): config for config in configs}
    costs: dict[tuple[str, str, str, int], _Cost] = {}
    for kind, config in kinds.items():
        advance(f"timing {config.rule}, {config.attack}", len(costs), len(kinds))
        costs[kind] = _measure(config, loaded[config.task])
    if not configs:
        return Estimate(0.0, 0.0, 0, missing)
    seconds, megabytes = [], 0.0
    for config in configs:
        cost = costs[_kind(config)]
        evaluations = config.steps / config.evaluate_every + 1
        seconds.append(cost.start + config.steps * cost.round + evaluations * cost.evaluation)
        megabytes += (config.steps * (_METRICS_BYTES + _WEIGHT_BYTES * config.workers) + 4 * cost.parameters) / 1e6
    advance("timing the start of a process", len(costs), len(kinds))
    busy = [0.0] * max(1, processes)  # as the pool does it: who is ready takes the next run
    for each in seconds:
        heapq.heapreplace(busy, busy[0] + each)
    return Estimate(_start_of_a_process() + max(busy), megabytes, len(costs), missing)


class _Cost(NamedTuple):
    """Seconds of a run's start, of one round and of one evaluation; the number of parameters."""

    start: float
    round: float
    evaluation: float
    parameters: int


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


def _kind(config: ResolvedConfig) -> tuple[str, str, str, int]:
    return config.task, config.rule, config.attack, config.byzantine


def _measure(config: ResolvedConfig, task: Task) -> _Cost:
    from gyroscope.runs.variants import run_class
    from gyroscope.simulation.evaluation import evaluate

    before = time.perf_counter()
    run = run_class(config)(config, task)
    started = time.perf_counter()
    run.play_round()  # the first one warms up
    warm = time.perf_counter()
    for _ in range(ROUNDS):
        run.play_round()
    rounds = time.perf_counter()
    evaluate(run.model, run.test)
    evaluation = time.perf_counter() - rounds
    return _Cost(started - before, (rounds - warm) / ROUNDS, evaluation, run.parameters.numel())


def _start_of_a_process() -> float:
    """Return how long the pool's processes take until they can begin with a run."""
    before = time.perf_counter()
    # Of the current folder, which may hold a file such as random.py, the process imports nothing.
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    subprocess.run([sys.executable, "-c", "import gyroscope.runs.training"], env=environment, check=False)
    return time.perf_counter() - before


def duration(seconds: float) -> str:
    """Return `42 s`, `12 min` or `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

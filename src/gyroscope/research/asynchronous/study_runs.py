"""The runs of the study of docs/beyond/asynchronous.md. `study_tables` makes its tables and its figure of them.

The study asks what staleness does to filter and momentum and to their order; which filter and placement withstand which
attack, by slow and by fast Byzantine workers; and whether dampening stale gradients helps.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from gyroscope.research.asynchronous.async_config import AsyncConfig
from gyroscope.research.asynchronous.async_placement import PLACEMENTS
from gyroscope.research.asynchronous.async_run import train
from gyroscope.runs import run_dir
from gyroscope.runs.training import load_task
from gyroscope.simulation.tasks import Task

N, F = 10, 3
ROUNDS = 60
MU = 0.9
RATE = 0.05
STALE_RATES = (RATE, 2 * RATE)
IDLE_TIMES = (15.0, 4.0, 1.0, 0.0)
"""The workers' pauses, in computing times: with a long one hardly any gradient is stale."""
ATTACKS = ("little", "empire", "sign-flip")
BYZANTINE_SPEEDS = (1.0, 10.0)
DAMPENINGS = ("none", "exponential:alpha=0.02", "exponential", "inverse")
UNEVEN: dict[str, Any] = {"speeds": "lognormal:sigma=0.5", "stragglers": 0.1}


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """One run of the study."""

    part: str
    """`staleness`, `attacks` or `dampening`."""
    name: str
    config: AsyncConfig


def study_runs(task: str, seeds: Sequence[int], rounds: int = ROUNDS) -> list[StudyRun]:
    """Return all runs of the study, one seed after the other."""
    return [
        dataclasses.replace(
            entry, name=f"{entry.name}-seed_{seed}", config=dataclasses.replace(entry.config, seed=seed)
        )
        for seed in seeds
        for entry in (*_staleness(task, rounds), *_attacks(task, rounds), *_dampening(task, rounds))
    ]


def rate_of(placement: str, rate: float = RATE) -> str:
    """Return the learning rate of a placement: larger without momentum, so that a gradient moves the model as far."""
    return repr(rate / (1 - MU) if placement == "none" else rate)


def base(task: str, rounds: int, placement: str, rate: float = RATE) -> AsyncConfig:
    """Return the settings that all runs share."""
    return AsyncConfig(
        task=task,
        workers=N,
        declared_byzantine=F,
        batch=32,
        steps=rounds,
        evaluate_every=max(1, rounds // 6),
        momentum=placement,
        mu=MU,
        lr=rate_of(placement, rate),
        speeds="equal",
        threads=1,
    )


def _staleness(task: str, rounds: int) -> Iterator[StudyRun]:
    """All workers are honest. The Lipschitz filter judges them, in both orders of filter and momentum."""
    for rate, placement in itertools.product(STALE_RATES, PLACEMENTS):
        common = dataclasses.replace(base(task, rounds, placement, rate), filter="lipschitz", compare_orders=True)
        for idle in IDLE_TIMES:
            longer = round(rounds * (1 + idle))  # as many gradients, however long the pauses
            config = dataclasses.replace(common, idle=idle, steps=longer, evaluate_every=max(1, longer // 6))
            yield StudyRun("staleness", f"idle_{idle:g}-rate_{rate:g}-{placement}", config)
        yield StudyRun("staleness", f"uneven-rate_{rate:g}-{placement}", dataclasses.replace(common, **UNEVEN))


def _attacks(task: str, rounds: int) -> Iterator[StudyRun]:
    for placement in PLACEMENTS:
        common = base(task, rounds, placement)
        for filter in ("kardam", "none"):
            yield StudyRun("attacks", f"honest-{filter}-{placement}", dataclasses.replace(common, filter=filter))
        for attack in ATTACKS:
            for speed in BYZANTINE_SPEEDS:
                filtered = dataclasses.replace(common, attack=attack, byzantine=F, byzantine_speed=speed)
                yield StudyRun("attacks", f"{attack}-speed_{speed:g}-kardam-{placement}", filtered)
                if placement == "workers" or attack == "little":
                    unfiltered = dataclasses.replace(filtered, filter="none")
                    yield StudyRun("attacks", f"{attack}-speed_{speed:g}-none-{placement}", unfiltered)


def _dampening(task: str, rounds: int) -> Iterator[StudyRun]:
    """Stragglers and uneven speeds, no filter, all workers honest: does it help to dampen stale gradients?"""
    for placement in ("workers", "server", "none"):
        for dampening in DAMPENINGS:
            config = dataclasses.replace(base(task, rounds, placement), filter="none", dampening=dampening, **UNEVEN)
            label = dampening.replace(":alpha=", "_")
            yield StudyRun("dampening", f"dampening-{label}-{placement}", config)


def run(entry: StudyRun, out: Path) -> None:
    """Play one run, unless it is complete already."""
    folder = out / entry.name
    if not is_complete(entry, folder):
        train(entry.config, task=_task(entry.config.task), out=folder, overwrite=True)


@functools.lru_cache(maxsize=1)
def _task(spec: str) -> Task:
    return load_task(AsyncConfig(task=spec))


def run_all(todo: Sequence[StudyRun], out: Path, jobs: int = 1) -> Iterator[tuple[int, str]]:
    """Play all runs that are missing, in `jobs` processes; yield (how many are left, which one has ended)."""
    missing = [entry for entry in todo if not is_complete(entry, out / entry.name)]
    if jobs == 1:
        for number, entry in enumerate(missing, 1):
            run(entry, out)
            yield len(missing) - number, entry.name
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run, entry, out): entry for entry in missing}
        for number, ended in enumerate(as_completed(running), 1):
            ended.result()
            yield len(missing) - number, running[ended].name


def is_complete(entry: StudyRun, folder: Path) -> bool:
    """Return whether the folder holds this very run, ended."""
    try:
        status = json.loads((folder / run_dir.STATUS).read_text(encoding="utf-8"))["status"]
        recorded = AsyncConfig.load(folder / run_dir.CONFIG)
    except (OSError, ValueError, KeyError):
        return False
    same = recorded.experiment() == entry.config.resolve().experiment()
    return same and status in (run_dir.COMPLETE, run_dir.DIVERGED)

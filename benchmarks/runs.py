"""Compare whole runs with MNIST, in turn: the recommended defence and the average, `factor=auto` and its default."""

from __future__ import annotations

import dataclasses
import functools

import torch

from benchmarks.results import Line, ratio_line
from benchmarks.timing import OnStart, in_turn
from gyroscope.runs import training
from gyroscope.runs.config import Config
from gyroscope.runs.defences import defence
from gyroscope.simulation import tasks

_COMMON = Config(task="mnist", byzantine=12, attack="little", lr=0.5, evaluate_every=5, threads=1)
RUNS = {
    "average": dataclasses.replace(_COMMON, rule="average", momentum="workers", steps=60),
    "--defence best": dataclasses.replace(_COMMON, **defence("best"), steps=60),
    "krum, little": dataclasses.replace(_COMMON, rule="krum", momentum="workers", steps=60),
    "krum, little:factor=auto": dataclasses.replace(
        _COMMON, rule="krum", momentum="workers", attack="little:factor=auto", steps=60
    ),
}
LIMITS = {("--defence best", "average"): 1.3, ("krum, little:factor=auto", "krum, little"): 3.0}


def measure(task: tasks.Task, seconds: float, on_start: OnStart | None = None) -> list[Line]:
    """Return the ratios of whole runs of 60 steps on one thread, with all measures, evaluated every 5 steps."""
    things = {name: functools.partial(training.train, config, task=task) for name, config in RUNS.items()}
    threads = torch.get_num_threads()
    passes = in_turn(things, seconds, least=3, on_start=on_start)
    torch.set_num_threads(threads)  # a run's own number stays
    return [
        ratio_line(
            "training", f"MNIST run, {name} / {other}", passes.ratio(name, other),
            times=(passes.middle(name), passes.middle(other)), limit=limit,
        )
        for (name, other), limit in LIMITS.items()
    ]  # fmt: skip

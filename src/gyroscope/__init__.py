"""Gyroscope: distributed training that survives workers that lie.

Byzantine-resilient distributed SGD for PyTorch, with momentum where it protects: at the workers.

    import gyroscope as gy

    gy.rules.make("krum")(rows, f=12).vector          # aggregate (n, d) rows, 12 of them arbitrary
    gy.train(gy.Config(task="digits", rule="krum", attack="little", byzantine=5)).max_accuracy
"""

from __future__ import annotations

__version__ = "0.1.0"

from gyroscope import attacks, momentum, rules
from gyroscope._core import errors, theory
from gyroscope._core.errors import GyroscopeError
from gyroscope.runs.config import Config
from gyroscope.runs.defences import defence
from gyroscope.runs.result import Result
from gyroscope.runs.training import resume, train
from gyroscope.simulation import tasks
from gyroscope.simulation.data.splits import Split
from gyroscope.simulation.tasks import Task

__all__ = [
    "Config",
    "GyroscopeError",
    "Result",
    "Split",
    "Task",
    "__version__",
    "attacks",
    "defence",
    "errors",
    "momentum",
    "resume",
    "rules",
    "tasks",
    "theory",
    "train",
]

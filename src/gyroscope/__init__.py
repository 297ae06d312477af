"""Gyroscope: distributed training that survives workers that lie.

Byzantine-resilient distributed SGD for PyTorch, with momentum where it protects: at the workers.

    import gyroscope as gy

    gy.rules.make("krum")(rows, f=12).vector          # aggregate (n, d) rows, 12 of them arbitrary
    gy.train(gy.Config(task="digits", rule="krum", attack="little", byzantine=5)).max_accuracy
"""

from __future__ import annotations

__version__ = "0.1.0"

from gyroscope import attacks, errors, momentum, rules, tasks, theory
from gyroscope.config import Config
from gyroscope.data.splits import Split
from gyroscope.defences import defence
from gyroscope.errors import GyroscopeError
from gyroscope.result import Result
from gyroscope.tasks import Task
from gyroscope.training import resume, train

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

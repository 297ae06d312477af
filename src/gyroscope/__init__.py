"""Gyroscope: distributed training that survives workers that lie.

Byzantine-resilient distributed SGD for PyTorch, with momentum where it protects: at the workers.

    import gyroscope as gy

    gy.rules.make("krum")(rows, f=12).vector          # aggregate (n, d) rows, 12 of them arbitrary
    gy.aggregate(state_dicts, "nnm+median", f=2)      # the same for whole models or adapters
    gy.train(gy.Config(task="digits", rule="krum", attack="little", byzantine=5)).max_accuracy

`import gyroscope` loads nothing else, not even torch: each name loads its module when it is first used.
"""

import importlib as _importlib
import typing as _typing

__version__ = "0.2.0"

__all__ = [
    "Config",
    "GyroscopeError",
    "Result",
    "RobustAggregator",
    "RobustOptimizer",
    "RobustSGD",
    "Split",
    "Task",
    "TaskMetric",
    "WorkerMomentum",
    "__version__",
    "aggregate",
    "attacks",
    "ddp",
    "defence",
    "diloco",
    "errors",
    "fsdp",
    "momentum",
    "resume",
    "rules",
    "tasks",
    "theory",
    "train",
]

_PLACES = {
    "Config": "gyroscope.runs.config:Config",
    "GyroscopeError": "gyroscope._core.errors:GyroscopeError",
    "Result": "gyroscope.runs.result:Result",
    "RobustAggregator": "gyroscope.momentum:RobustAggregator",
    "RobustOptimizer": "gyroscope.distributed:RobustOptimizer",
    "RobustSGD": "gyroscope.distributed:RobustSGD",
    "Split": "gyroscope.simulation.data.batches:Split",
    "Task": "gyroscope.simulation.tasks:Task",
    "TaskMetric": "gyroscope.simulation.task_metric:TaskMetric",
    "WorkerMomentum": "gyroscope.momentum:WorkerMomentum",
    "aggregate": "gyroscope.rules.state_dicts:aggregate",
    "attacks": "gyroscope.attacks",
    "ddp": "gyroscope.distributed:ddp",
    "defence": "gyroscope.runs.defences:defence",
    "diloco": "gyroscope.distributed:diloco",
    "errors": "gyroscope._core.errors",
    "fsdp": "gyroscope.distributed:fsdp",
    "momentum": "gyroscope.momentum",
    "resume": "gyroscope.runs.training:resume",
    "rules": "gyroscope.rules",
    "tasks": "gyroscope.simulation.tasks",
    "theory": "gyroscope._core.theory",
    "train": "gyroscope.runs.training:train",
    # Packages that are public and not in __all__: `gy.distributed` works after `import gyroscope` alone.
    **{
        package: f"gyroscope.{package}"
        for package in ("distributed", "experiments", "integrations", "report", "research", "runs", "simulation")
    },
}
"""Where each public name comes from, in the form of an entry point: `module` or `module:attribute`."""

if _typing.TYPE_CHECKING:  # what a type checker and an editor see
    from gyroscope import attacks, momentum, rules
    from gyroscope import distributed as distributed
    from gyroscope import experiments as experiments
    from gyroscope import integrations as integrations
    from gyroscope import report as report
    from gyroscope import research as research
    from gyroscope import runs as runs
    from gyroscope import simulation as simulation
    from gyroscope._core import errors, theory
    from gyroscope._core.errors import GyroscopeError
    from gyroscope.distributed import RobustOptimizer, RobustSGD, ddp, diloco, fsdp
    from gyroscope.momentum import RobustAggregator, WorkerMomentum
    from gyroscope.rules.state_dicts import aggregate
    from gyroscope.runs.config import Config
    from gyroscope.runs.defences import defence
    from gyroscope.runs.result import Result
    from gyroscope.runs.training import resume, train
    from gyroscope.simulation import tasks
    from gyroscope.simulation.data.batches import Split
    from gyroscope.simulation.task_metric import TaskMetric
    from gyroscope.simulation.tasks import Task
else:

    def __getattr__(name):
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _PLACES[name].partition(":")
        value = _importlib.import_module(module)
        if attribute:
            value = getattr(value, attribute)
        globals()[name] = value  # so that the next use does not come here
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})

"""Compare a training run with its lower bound: the time of its matrix products at the measured sgemm rate."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.results import Line
from benchmarks.timing import spread
from gyroscope._core.clock import Stopwatch
from gyroscope._linalg import _kernels
from gyroscope.runs.callbacks import Callback, Row
from gyroscope.runs.config import Config
from gyroscope.runs.run_dir import RunDirectory
from gyroscope.runs.training import Run
from gyroscope.simulation import tasks
from gyroscope.simulation.evaluation import evaluate

SIDE = 1024
"""The size of the square product that measures the sgemm rate: large enough for the full rate, and quick."""
BESIDE = 10
"""Rounds between two measurements of the rate."""
LIMIT = 2.2

MNIST = Config(
    task="mnist", rule="krum", attack="little", byzantine=12, momentum="workers", lr=0.5, evaluate_every=5, threads=1
)
CIFAR10 = Config(task="cifar10", rule="krum", attack="little", byzantine=5, momentum="workers", lr=0.01)
OTHER_LIMIT = 0.10


def mnist_run(task: tasks.Task) -> tuple[list[Line], Stopwatch]:
    """Measure one run on one thread, with all metrics, evaluated every 5 steps and written to disk."""
    threads = torch.get_num_threads()
    run = Run(MNIST.resolve(task), task)
    in_round, in_evaluation = products(run)
    evaluations = 1 + -(-run.config.steps // run.config.evaluate_every)
    operations = in_round.operations * run.config.steps + in_evaluation.operations * evaluations
    clock = Stopwatch()
    beside = _Beside(clock, in_round, in_evaluation)
    with (
        tempfile.TemporaryDirectory() as folder,
        RunDirectory.create(Path(folder) / "run", run.config, run.columns(run.config)) as directory,
    ):
        begin = time.perf_counter()
        run.go(directory, [beside], lambda: False, clock)
        seconds = time.perf_counter() - begin - beside.aside
    torch.set_num_threads(threads)
    rate = spread([2.0 * SIDE**3 / value for value in beside.square])
    bound = operations / rate.middle
    alone = run.config.steps * spread(beside.round).middle + evaluations * spread(beside.evaluation).middle
    name = "MNIST run, krum, little, f = 12, one thread"
    return [
        Line("training", f"{name} / its {operations / 1e9:.0f} GFLOP at the sgemm rate", None, None, seconds / bound,
             ours_ms=1e3 * seconds, other_ms=1e3 * bound, limit=LIMIT),
        Line("training", f"{name} / its matrix products by themselves", None, None, seconds / alone,
             ours_ms=1e3 * seconds, other_ms=1e3 * alone),
        Line("training", f"sgemm of {SIDE} x {SIDE}, one thread", None, None, rate.middle / 1e9, "GFLOP/s",
             rate.low / 1e9, rate.high / 1e9),
    ], clock  # fmt: skip


def products(run: Run) -> tuple[_Products, _Products]:
    """Return all matrix products of a round's gradients, and of an evaluation, as torch would do them."""
    with _kernels.switched_off():
        with _Products() as in_round:
            run.round_config.workers.sample(0)
        with _Products() as in_evaluation:
            evaluate(run.model, run.test)
    return in_round, in_evaluation


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record matrix products and convolutions, and count their floating-point operations with torch's own formulas.

    torch's FlopCounterMode cannot be used: it follows modules with hooks, which torch.func does not allow.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self.calls: list[Callable[[], object]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = functools.partial(function, *args, **(kwargs or {}))
        if function._overloadpacket not in flop_registry and self._composite(function):
            with self:
                return function.decompose(*args, **(kwargs or {}))
        result = call()
        formula = flop_registry.get(function._overloadpacket)
        if formula is not None:
            self.operations += formula(*args, **(kwargs or {}), out_val=result)
            self.calls.append(call)
        return result

    @staticmethod
    def _composite(function: Any) -> bool:
        """Return whether torch can decompose the operation: without gradients it dispatches `linear` as a whole."""
        return torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd")

    @torch.inference_mode()
    def again(self) -> float:
        """Run the recorded operations once more, and return the seconds that they take."""
        begin = time.perf_counter()
        for call in self.calls:
            call()
        return time.perf_counter() - begin


def cifar10_rounds(task: tasks.Task, rounds: int = 2) -> tuple[list[Line], Stopwatch]:
    """Measure how much of a full-size round is not gradients. Evaluations are not part of a round."""
    run = Run(CIFAR10.resolve(task), task)
    run.play_round()  # warms up
    clock = Stopwatch()
    for _ in range(rounds):
        run.play_round(clock=clock)
    total, gradients = sum(clock.seconds.values()), clock.seconds["gradients"]
    other = total - gradients
    what = "everything but gradients in a full-size CIFAR-10 round / the round"
    per_round = 1e3 / rounds
    return [
        Line("training", what, None, None, other / total, "x", ours_ms=other * per_round, other_ms=total * per_round,
             limit=OTHER_LIMIT)
    ], clock  # fmt: skip


class _Beside(Callback):
    """Time the products between rounds, so that load on the machine slows run and lower bound alike.

    `aside` is the time that this takes in all.
    """

    def __init__(self, clock: Stopwatch, in_round: _Products, in_evaluation: _Products) -> None:
        self.clock, self.in_round, self.in_evaluation = clock, in_round, in_evaluation
        self.square: list[float] = []
        self.round: list[float] = []
        self.evaluation: list[float] = []
        self.aside = 0.0
        self.left, self.right, self.out = (torch.randn(SIDE, SIDE) for _ in range(3))

    def step(self, row: Row) -> None:
        if int(row["step"] or 0) % BESIDE:
            return
        begin = time.perf_counter()
        for _ in range(2):  # the first one brings the matrices back into the cache
            start = time.perf_counter()
            torch.mm(self.left, self.right, out=self.out)
            taken = time.perf_counter() - start
        self.square.append(taken)
        self.round.append(self.in_round.again())
        self.evaluation.append(self.in_evaluation.again())
        self.aside += time.perf_counter() - begin
        self.clock.start()

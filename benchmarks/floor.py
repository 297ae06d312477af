"""A whole training run against its floor: the time that its matrix products alone take at the measured sgemm rate."""

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
"""The square product that the sgemm rate is measured with: large enough to be fast, small enough to be quick."""
BESIDE = 10
"""Rounds between two measurements of the rate."""
LIMIT = 2.2

MNIST = Config(
    task="mnist", rule="krum", attack="little", byzantine=12, momentum="workers", lr=0.5, evaluate_every=5, threads=1
)
CIFAR10 = Config(task="cifar10", rule="krum", attack="little", byzantine=5, momentum="workers", lr=0.01)
OTHER_LIMIT = 0.10


def mnist_run(task: tasks.Task) -> tuple[list[Line], Stopwatch]:
    """One run on one thread, with all measures, evaluated every 5 steps and written to disk."""
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
    floor = operations / rate.middle
    alone = run.config.steps * spread(beside.round).middle + evaluations * spread(beside.evaluation).middle
    name = "MNIST run, krum, little, f = 12, one thread"
    return [
        Line("training", f"{name} / its {operations / 1e9:.0f} GFLOP at the sgemm rate", None, None, seconds / floor,
             ours_ms=1e3 * seconds, other_ms=1e3 * floor, limit=LIMIT),
        Line("training", f"{name} / its matrix products by themselves", None, None, seconds / alone,
             ours_ms=1e3 * seconds, other_ms=1e3 * alone),
        Line("training", f"sgemm of {SIDE} x {SIDE}, one thread", None, None, rate.middle / 1e9, "GFLOP/s",
             rate.low / 1e9, rate.high / 1e9),
    ], clock  # fmt: skip


def products(run: Run) -> tuple[_Products, _Products]:
    """All matrix products of a round's gradients, and of an evaluation, as torch would do them."""
    with _kernels.switched_off():
        with _Products() as in_round:
            run.round_config.workers.sample(0)
        with _Products() as in_evaluation:
            evaluate(run.model, run.test)
    return in_round, in_evaluation


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps matrix products and convolutions, and counts their floating-point operations with torch's own formulas.

    (torch's FlopCounterMode follows modules with hooks that the workers' way of differentiating does not allow.)
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
        """Without gradients torch hands over `linear` as a whole."""
        return torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd")

    @torch.inference_mode()
    def again(self) -> float:
        """Do them once more, and nothing else; the seconds that it takes."""
        begin = time.perf_counter()
        for call in self.calls:
            call()
        return time.perf_counter() - begin


def cifar10_rounds(task: tasks.Task, rounds: int = 2) -> tuple[list[Line], Stopwatch]:
    """How much of a full-size round is not gradients. Evaluations are not part of a round."""
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
    """Times products between rounds, and how long that took in all: a noisy machine slows run and yardstick alike."""

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

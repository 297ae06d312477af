"""Compare a step of RobustSGD with one of DistributedDataParallel, with real ranks over gloo on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import stub_workers
from benchmarks.results import Line, ratio_line
from benchmarks.timing import OnStart, Passes, Timed
from gyroscope._core.errors import ConfigError
from gyroscope.distributed.collectives import Exchange
from gyroscope.distributed.robust_sgd import RobustSGD
from gyroscope.simulation import models

RANKS = 4
RULES: tuple[tuple[str, int], ...] = (("average", 0), ("median", 1), ("krum", 0))
"""Rules, with as many Byzantine ranks as four ranks allow."""
ALL_REDUCE, DDP = "all_reduce", "DistributedDataParallel + SGD"
STEPS = 3
"""Steps that are timed together."""
_LEAST, _MOST = 10, 200


def measure(d: int, budget: float, on_start: OnStart | None = None) -> list[Line]:
    """Measure steps with the shapes of the paper's models, whose backward pass costs next to nothing."""
    if on_start is not None:
        on_start(f"{RANKS} ranks, d = {d:,}")
    passes = Passes(together(rank, RANKS, budget, shapes_of(d)))
    lines = [_line(passes, DDP, ALL_REDUCE, d)]
    for rule, _ in RULES:
        lines += [_line(passes, _named(rule), other, d) for other in (DDP, ALL_REDUCE)]
    return lines


def shapes_of(d: int) -> list[tuple[int, ...]]:
    """The shapes of that one of the paper's two models that has d parameters; one vector for any other number."""
    for model in (models.mlp(28 * 28), models.cnn()):
        shapes = [tuple(parameter.shape) for parameter in model.parameters()]
        if sum(parameter.numel() for parameter in model.parameters()) == d:
            return shapes
    return [(d,)]


def _named(rule: str) -> str:
    return f"RobustSGD, {rule}"


def _line(passes: Passes, name: str, other: str, d: int) -> Line:
    times = (passes.middle(name) / STEPS, passes.middle(other) / STEPS)
    return ratio_line("distributed", f"{name} / {other}", passes.ratio(name, other), n=RANKS, d=d, times=times)


def together(role: stub_workers.Role, count: int, budget: float, model: Any) -> dict[str, list[float]]:
    """Start so many ranks that play the role with this model; return what the first one has measured."""
    store = stub_workers.store()
    with stub_workers.started(role, count, count, store.port, budget, model) as pipes:
        try:
            seconds: dict[str, list[float]] = json.loads(pipes[0].recv_bytes())
        except EOFError:
            raise ConfigError("the ranks that were to be measured have failed: what they said is above") from None
    return seconds


# -- one rank ---------------------------------------------------------------------------------------------------------


class FreeBackward(nn.Module):
    """A module with parameters of these shapes, and a loss whose backward pass only copies constant gradients."""

    def __init__(self, shapes: Iterable[tuple[int, ...]], rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(rank)
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        self.gradients = [torch.randn(weight.shape, generator=generator) for weight in self.weights]

    def forward(self) -> Tensor:
        terms = [(weight * gradient).sum() for weight, gradient in zip(self.weights, self.gradients, strict=True)]
        return torch.stack(terms).sum()


def rank(number: int, pipe: Connection, ranks: int, port: int, budget: float, shapes: list[tuple[int, ...]]) -> None:
    """Run one rank, with one thread, as torchrun does; the first rank sends the measurements."""
    store = stub_workers.store(port)
    dist.init_process_group("gloo", store=store, rank=number, world_size=ranks, timeout=stub_workers.PATIENCE)
    seconds = in_turn(_things(shapes, number), budget)
    if number == 0:
        pipe.send_bytes(json.dumps(seconds).encode())
    dist.destroy_process_group()


def _things(shapes: list[tuple[int, ...]], rank: int) -> dict[str, Timed]:
    """Return what is measured, by name. All ranks must do it together."""
    plain = FreeBackward(shapes, rank)
    values = torch.cat([gradient.reshape(-1) for gradient in plain.gradients])
    parallel = DistributedDataParallel(plain)
    sgd = torch.optim.SGD(plain.parameters(), lr=1e-6, momentum=0.9)
    things: dict[str, Timed] = {ALL_REDUCE: lambda: dist.all_reduce(values.clone()), DDP: _steps(parallel, sgd)}
    for rule, f in RULES:
        model = FreeBackward(shapes, rank)
        things[_named(rule)] = _steps(model, RobustSGD(model.parameters(), lr=1e-6, rule=rule, f=f))
    return things


def _steps(model: Callable[[], Tensor], optimizer: Any) -> Timed:
    def step() -> None:
        optimizer.zero_grad()
        model().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def in_turn(things: dict[str, Timed], budget: float) -> dict[str, list[float]]:
    """Return the slowest rank's seconds of each function in each pass. The first rank chooses the number of passes."""
    exchange = Exchange()
    seconds: dict[str, list[float]] = {name: [] for name in things}
    passes, done, begin = torch.tensor(_LEAST), -2, time.perf_counter()  # two passes warm up
    while done < int(passes):
        for name, thing in things.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(STEPS):
                thing()
            if done >= 0:
                seconds[name].append(time.perf_counter() - start)
        done += 1
        if done == 0:
            begin = time.perf_counter()
        if done == 1:
            one = time.perf_counter() - begin
            passes = torch.tensor(max(_LEAST, min(_MOST, int(budget / one))))
            exchange.take_from_first(passes)
    for values in seconds.values():
        slowest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        values[:] = slowest.tolist()
    return seconds

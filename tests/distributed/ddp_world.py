"""Five real processes that train with gy.ddp in every way that a user may, and one process that does it all.

`python ddp_world.py FOLDER` forks N ranks and writes each rank's results to FOLDER/RANK.pt, by the case's name: numbers
and text only. `alone` trains the same case in one process, which has all rows in one matrix.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from robust_world import together
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from gyroscope import rules
from gyroscope._core.errors import GyroscopeError
from gyroscope._linalg import _kernels
from gyroscope.distributed import RobustOptimizer, collectives, ddp, diloco, fsdp
from gyroscope.distributed.collectives import Exchange
from gyroscope.momentum import RobustAggregator, WorkerMomentum

N = 5
STEPS = 5
FAULTY = 3
"""The rank whose gradients are wrong in some cases."""
MU = 0.8

Optimizers = Callable[[Any], torch.optim.Optimizer]


class Network(nn.Module):
    """Two hidden layers, of which the second may be computed again in the backward pass."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 40), nn.Linear(40, 40), nn.Linear(40, 3)
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = checkpoint(self._middle, x, use_reentrant=False) if self.again else self._middle(x)
        return self.last(x)

    def _middle(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(x))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, betas=(0.0, 0.99))


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to train."""

    rule: str = "median"
    scope: Any = "model"
    optimizer: Optimizers = adamw
    accumulate: int = 1
    clip: float | None = None
    schedule: bool = False
    autocast: bool = False
    again: bool = False
    compiled: bool = False
    wrong: float | None = None
    """By what the faulty rank multiplies its loss in steps 1 and 3."""
    faulty: int = FAULTY
    options: tuple[tuple[str, Any], ...] = ()
    """Further options of DistributedDataParallel."""


CASES = {
    "median": Case(),
    "krum": Case("krum"),
    "krum by buckets": Case("krum", scope="bucket"),
    "caf-history": Case("caf-history"),
    "nan": Case(wrong=float("nan")),
    "nan, krum": Case("krum", wrong=float("nan")),
    "garbage": Case(wrong=1e6),
    "sgd": Case(optimizer=lambda p: torch.optim.SGD(p, lr=0.1)),
    "fused": Case(optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.0, 0.99), fused=True)),
    "foreach": Case(optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.0, 0.99), foreach=True)),
    "schedule": Case(schedule=True),
    "clip": Case(clip=0.05, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)),
    "accumulate": Case(accumulate=3),
    "bfloat16": Case(autocast=True),
    "checkpointing": Case(again=True),
    "compiled": Case(compiled=True),
    "views": Case(options=(("gradient_as_bucket_view", True),)),
    "static": Case("krum", options=(("static_graph", True),)),
}


WITHOUT_DDP = ("median", "krum", "caf-history", "nan", "nan, krum", "sgd", "fused", "schedule")
"""The cases that `RobustOptimizer` runs, too."""


def loss_of(model: Callable[[Tensor], Tensor], case: Case, rank: int, step: int, part: int = 0) -> Tensor:
    """Return a rank's loss at the data of one step."""
    generator = torch.Generator().manual_seed(1000 * rank + 10 * step + part)
    x = torch.randn(8, 6, generator=generator)
    context = torch.autocast("cpu", torch.bfloat16) if case.autocast else contextlib.nullcontext()
    with context:
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(dim=1))
    if case.wrong is not None and rank == case.faulty and step in (1, 3):
        loss = loss * case.wrong
    return loss / case.accumulate


def network(case: Case) -> Network:
    torch.manual_seed(7)
    return Network(case.again)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def wrapped(case: Case) -> DistributedDataParallel:
    """Return the model in small buckets, so that there are several, and DDP rebuilds them. (Dynamo refuses these.)"""
    size = {} if case.compiled else {"bucket_cap_mb": 0.005}
    return DistributedDataParallel(network(case), **size, **dict(case.options))


def train(case: Case, rank: int, model: DistributedDataParallel, steps: range, optimizer: Any = None) -> Any:
    """Train some steps as a user would, and return the optimizer."""
    optimizer = optimizer or case.optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if case.schedule else None
    forward: Callable[[Tensor], Tensor] = torch.compile(model, backend="aot_eager") if case.compiled else model
    for step in steps:
        optimizer.zero_grad()
        for part in range(case.accumulate):
            waits = model.no_sync() if part < case.accumulate - 1 else contextlib.nullcontext()
            with waits:
                loss_of(forward, case, rank, step, part).backward()
        if case.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return optimizer


def alone(case: Case, n: int = N) -> Tensor:
    """Return the parameters that one process gets, which computes every worker's gradient by itself."""
    model = network(case)
    optimizer = case.optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if case.schedule else None
    momenta = [WorkerMomentum(MU, dampening=MU) for _ in range(n)]
    server = RobustAggregator(rules.parse(case.rule), 1)
    parameters = list(model.parameters())
    for step in range(STEPS):
        rows = []
        for rank in range(n):
            model.zero_grad()
            for part in range(case.accumulate):
                loss_of(model, case, rank, step, part).backward()
            rows.append(momenta[rank].update(torch.cat([p.grad.reshape(-1) for p in parameters])))  # type: ignore[union-attr]
        vector = server.step(rows).vector
        pieces = vector.split([p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter).clone()
        if case.clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, case.clip)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return flat(model)


# -- what ranks do ----------------------------------------------------------------------------------------------------


def resumed(rank: int, folder: Path, case: Case, through_dcp: bool) -> Tensor:
    """Train two steps, save, begin anew, load, and train the rest."""
    model = wrapped(case)
    job = ddp(model, case.rule, 1, mu=MU, scope=case.scope)
    optimizer = train(case, rank, model, range(2))
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "job": job.state_dict()}
    place = folder / f"saved-{case.rule}-{through_dcp}"
    if through_dcp:
        dcp.save({"job": state["job"]}, checkpoint_id=str(place))
    else:
        torch.save(state, f"{place}-{rank}.pt")
        state = torch.load(f"{place}-{rank}.pt", weights_only=True)
    model = wrapped(case)
    model.module.load_state_dict(state["model"])
    job = ddp(model, case.rule, 1, mu=MU, scope=case.scope)
    optimizer = case.optimizer(model.parameters())
    optimizer.load_state_dict(state["optimizer"])
    if through_dcp:
        empty = {"job": {key: _zeros(value) for key, value in state["job"].items()}}
        dcp.load(empty, checkpoint_id=str(place))
        state["job"] = empty["job"]
    job.load_state_dict(state["job"])
    train(case, rank, model, range(2, STEPS), optimizer)
    return flat(model.module)


def _zeros(value: Any) -> Any:
    return {key: _zeros(each) for key, each in value.items()} if isinstance(value, dict) else torch.zeros_like(value)


def with_robust_optimizer(rank: int, case: Case, folder: Path, resume: bool = False) -> Tensor:
    """Train without a DDP; after two steps perhaps from what was saved."""
    model = network(case)
    optimizer = RobustOptimizer(case.optimizer(model.parameters()), rule=case.rule, f=1, mu=MU)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if case.schedule else None
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, case, rank, step).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if resume and step == 1:
            place = folder / f"optimizer-{case.rule}-{rank}.pt"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, place)
            saved = torch.load(place, weights_only=True)
            model = network(case)
            model.load_state_dict(saved["model"])
            optimizer = RobustOptimizer(case.optimizer(model.parameters()), rule=case.rule, f=1, mu=MU)
            optimizer.load_state_dict(saved["optimizer"])
    return flat(model)


ROUNDS, LOCAL = 3, 4


def local_batches(rank: int, turn: int, case: Case, model: nn.Module, inner: Any, step: Callable[[], Any]) -> None:
    """Take the local steps of one round."""
    for number in range(LOCAL):
        inner.zero_grad()
        loss_of(model, case, rank, LOCAL * turn + number).backward()
        step()


def outer_optimizer(parameters: Any, momentum: str) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9 if momentum == "server" else 0.0)


def with_local_steps(rank: int, momentum: Any, case: Case, resume: bool = False) -> Tensor:
    """Train with gy.diloco."""

    def begin() -> tuple[Network, Any]:
        model = network(case)
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        outer = outer_optimizer(model.parameters(), momentum)
        return model, diloco(model, inner, outer, rule=case.rule, f=1, every=LOCAL, momentum=momentum, mu=MU)

    model, job = begin()
    for number in range(ROUNDS):
        local_batches(rank, number, case, model, job.inner, job.step)
        if resume and number == 1:
            saved, parameters = job.state_dict(), model.state_dict()
            model, job = begin()
            model.load_state_dict(parameters)
            job.load_state_dict(saved)
    return flat(model)


def alone_with_local_steps(momentum: str, case: Case) -> Tensor:
    """Return what one process gets that plays all ranks one after the other."""
    model = network(case)
    outer = outer_optimizer(model.parameters(), momentum)
    momenta = [WorkerMomentum(MU, dampening=MU) for _ in range(N)]
    parameters, server = list(model.parameters()), RobustAggregator(rules.parse(case.rule), 1)
    workers = [network(case) for _ in range(N)]
    inners = [torch.optim.AdamW(worker.parameters(), lr=0.01) for worker in workers]
    for number in range(ROUNDS):
        rows = []
        for rank, (worker, inner) in enumerate(zip(workers, inners, strict=True)):
            worker.load_state_dict(model.state_dict())
            local_batches(rank, number, case, worker, inner, inner.step)
            row = flat(model) - flat(worker)
            rows.append(momenta[rank].update(row) if momentum == "workers" else row)
        pieces = server.step(rows).vector.split([p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter).clone()
        outer.step()
    return flat(model)


def sharded(case: Case, rank: int, folder: Path, replicas: int | None = None, resume: bool = False) -> Tensor:
    """Train a fully sharded model; the workers are the ranks, or replicas of two ranks each."""

    def begin() -> tuple[Network, Any, Any]:
        model = network(case)
        mesh = init_device_mesh("cpu", (replicas, 2), mesh_dim_names=("replicate", "shard")) if replicas else None
        for module in (model.second, model):
            fully_shard(module, mesh=mesh["shard"] if mesh else None)
        job = fsdp(model, case.rule, 1, mu=MU, replicas=mesh["replicate"] if mesh else None)
        return model, job, case.optimizer(model.parameters())

    model, job, optimizer = begin()
    worker = rank // 2 if replicas else rank
    for step in range(STEPS):
        if resume and step == 2:
            saved = {"job": job.state_dict(), "optimizer": optimizer.state_dict(), "model": model.state_dict()}
            model, job, optimizer = begin()
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            job.load_state_dict(saved["job"])
        optimizer.zero_grad()
        loss_of(model, case, worker, step).backward()
        optimizer.step()
    return torch.cat([parameter.full_tensor().detach().reshape(-1) for parameter in model.parameters()])


SHARDED = ("median", "nan", "sgd", "garbage")
REPLICAS = 3


def live_in_replicas(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store-replicas"), 2 * REPLICAS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2 * REPLICAS, timeout=timedelta(seconds=30))
    found = {name: sharded(case, rank, folder, replicas=REPLICAS) for name, case in IN_REPLICAS.items()}
    torch.save(found, folder / f"replica-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


IN_REPLICAS = {"median": Case(), "caf": Case("caf"), "nan": Case(wrong=float("nan"), faulty=1)}


def too_many(rank: int, bad: tuple[int, ...] = (1, 4)) -> str:
    """Some ranks of five send NaN, and the rule tolerates one."""
    case = Case()
    model = wrapped(case)
    ddp(model, "median", 1, mu=MU)
    before = flat(model.module)
    try:
        loss = loss_of(model, case, rank, 0) * (float("nan") if rank in bad else 1.0)
        loss.backward()
    except Exception as error:
        assert torch.equal(before, flat(model.module))
        return str(error)
    return "nothing was raised"


def warned(rank: int, betas: tuple[float, float]) -> list[str]:
    """Return the warnings of two steps with an optimizer that has these betas."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        case = Case(optimizer=lambda p: torch.optim.AdamW(p, betas=betas))
        model = wrapped(case)
        ddp(model, "median", 1)
        train(case, rank, model, range(2))
    return [str(warning.message) for warning in caught if "momentum" in str(warning.message)]


def refused() -> list[str]:
    found = []
    for attempt in (
        lambda: ddp(network(Case()), "median", 1),  # type: ignore[arg-type]
        lambda: ddp(wrapped(Case()), "krum", 2),
        lambda: ddp(wrapped(Case()), "caf-history", 1, scope="bucket"),
        lambda: ddp(wrapped(Case()), "median", 1, scope="layer"),  # type: ignore[arg-type]
    ):
        try:
            attempt()
            found.append("accepted")
        except GyroscopeError as error:
            found.append(str(error))
    return found


def totals(rank: int) -> tuple[Tensor, Tensor]:
    """Return the sum of the ranks' tables, as of small ones and as of large ones."""
    table = torch.randn(7, 7, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    small, limit = Exchange().total(table), collectives._SMALL_BYTES
    collectives._SMALL_BYTES = 0
    large = Exchange().total(table)
    collectives._SMALL_BYTES = limit
    return small, large


def live(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), N)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=N, timeout=timedelta(seconds=30))
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        model = wrapped(case)
        job = ddp(model, case.rule, 1, mu=MU, scope=case.scope)
        train(case, rank, model, range(STEPS))
        found[name] = {"parameters": flat(model.module), "report": job.report(), "weight": job.last_weight}
    found["resumed"] = {
        f"{rule}, {through_dcp}": resumed(rank, folder, Case(rule), through_dcp)
        for rule in ("median", "caf-history")
        for through_dcp in (False, True)
    }
    found["sharded"] = {name: sharded(CASES[name], rank, folder) for name in SHARDED}
    found["sharded krum"] = sharded(CASES["krum"], rank, folder)
    found["sharded resumed"] = sharded(CASES["median"], rank, folder, resume=True)
    found["local steps"] = {
        f"{momentum}, {name}": with_local_steps(rank, momentum, CASES[name])
        for momentum in ("workers", "server")
        for name in ("median", "krum", "nan")
    }
    found["local steps resumed"] = with_local_steps(rank, "workers", CASES["median"], resume=True)
    found["optimizer"] = {name: with_robust_optimizer(rank, CASES[name], folder) for name in WITHOUT_DDP}
    found["optimizer resumed"] = with_robust_optimizer(rank, CASES["caf-history"], folder, resume=True)
    found["too many"] = too_many(rank)
    found["most"] = too_many(rank, (1, 2, 4))
    found["warned"] = [warned(rank, (0.9, 0.99)), warned(rank, (0.0, 0.99))]
    found["refused"] = refused()
    found["totals"] = totals(rank)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    _kernels.warm_up()
    torch.optim.SGD([nn.Parameter(torch.zeros(1))]).state_dict()
    together(N, live, folder)
    together(2 * REPLICAS, live_in_replicas, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Compare a step of `gy.ddp` with one of plain DistributedDataParallel: real ranks, real models, AdamW, over gloo."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import ranks, stub_workers
from benchmarks.results import Line, ratio_line
from benchmarks.timing import OnStart, Passes, Timed
from gyroscope.distributed import ddp
from gyroscope.simulation import models

RANKS = 4
RULES: tuple[tuple[str, int, float | None], ...] = (("median", 1, 1.15), ("meamed", 1, None), ("krum", 0, 1.3))
"""Rules, with as many bad ranks as four ranks allow, and how many times plain DDP's step on the GPT one may take."""
PLAIN = "DistributedDataParallel"
MODELS = ("GPT", "CNN")
_CONTEXT, _LETTERS = 32, 100


def measure(budget: float, on_start: OnStart | None = None) -> list[Line]:
    """Measure steps on the GPT of the task `text` and on the paper's convolutional network, with their batch sizes."""
    lines = []
    for model in MODELS:
        if on_start is not None:
            on_start(f"{RANKS} ranks, {model}")
        passes = Passes(ranks.together(rank, RANKS, budget, model))
        for rule, _, limit in RULES:
            name = _named(rule)
            times = (passes.middle(name) / ranks.STEPS, passes.middle(PLAIN) / ranks.STEPS)
            ratio = passes.ratio(name, PLAIN)
            promised = limit if model == "GPT" else None
            what = f"{model}: {name} / {PLAIN}"
            lines.append(ratio_line("ddp", what, ratio, n=RANKS, d=_size(model), times=times, limit=promised))
    return lines


def _named(rule: str) -> str:
    return f"gy.ddp, {rule}"


def _model(name: str) -> nn.Module:
    return models.GPT(_LETTERS, _CONTEXT, 64, 2) if name == "GPT" else models.cnn()


def _size(name: str) -> int:
    return sum(parameter.numel() for parameter in _model(name).parameters())


def _batch(name: str, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    if name == "GPT":
        text = torch.randint(_LETTERS, (16, _CONTEXT + 1), generator=generator)
        return text[:, :-1], text[:, 1:]
    return torch.randn(50, 3, 32, 32, generator=generator), torch.randint(10, (50,), generator=generator)


# -- one rank ---------------------------------------------------------------------------------------------------------


def rank(number: int, pipe: Connection, world: int, port: int, budget: float, model: str) -> None:
    """Run one rank, with one thread, as torchrun does; the first rank sends the measurements."""
    store = stub_workers.store(port)
    dist.init_process_group("gloo", store=store, rank=number, world_size=world, timeout=stub_workers.PATIENCE)
    things = {PLAIN: _steps(model, number, None, 0)}
    for rule, f, _ in RULES:
        things[_named(rule)] = _steps(model, number, rule, f)
    seconds = ranks.in_turn(things, budget)
    if number == 0:
        pipe.send_bytes(json.dumps(seconds).encode())
    dist.destroy_process_group()


def _steps(name: str, rank: int, rule: str | None, f: int) -> Timed:
    torch.manual_seed(0)
    parallel = DistributedDataParallel(_model(name))
    job: Any = None if rule is None else ddp(parallel, rule, f)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-6, betas=(0.9 if rule is None else 0.0, 0.999))
    loss = F.cross_entropy if name == "GPT" else F.nll_loss
    inputs, targets = _batch(name, rank)

    def step(job: Any = job) -> None:  # it keeps the job
        optimizer.zero_grad()
        loss(parallel(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step

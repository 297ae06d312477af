"""What a newcomer gets wrong in a torch.distributed script is a message that says what to pass instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gyroscope as gy


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sgd(params: Any) -> Any:
    return gy.RobustSGD(params, lr=0.1, rule="median", f=0)


def ddp(model: nn.Module | None = None, **settings: Any) -> Any:
    return gy.ddp(model or DistributedDataParallel(nn.Linear(2, 2)), **{"rule": "median", "f": 0, **settings})


def twice() -> None:
    model = DistributedDataParallel(nn.Linear(2, 2))
    ddp(model)
    ddp(model)


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda: sgd([]), "pass model.parameters(), got a list"),
        (lambda: sgd(nn.Linear(2, 2)), "pass model.parameters(), got a Linear"),
        (lambda: sgd(["weight"]), "pass model.parameters(), got a str"),
        (lambda: gy.RobustOptimizer(torch.optim.SGD, rule="median", f=0), "an optimizer of torch is needed"),  # type: ignore[arg-type]
        (lambda: ddp(mu="0.9"), "mu must be at least 0 and below 1, got '0.9'"),
        (lambda: ddp(patience=0), "patience must be a positive, finite number of seconds, got 0"),
        (lambda: ddp(rule=gy.rules.Median), "write Median()"),
        (twice, "a communication hook already"),
    ],
)
def test_a_mistake_says_what_to_pass(mistake: Callable[[], Any], says: str) -> None:
    with pytest.raises(gy.errors.ConfigError) as problem:
        mistake()
    assert says in str(problem.value)

"""A small task, and asynchronous runs of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import gyroscope as gy
from gyroscope._linalg.flat_parameters import flatten
from gyroscope.research.asynchronous import AsyncConfig, AsyncResult, train

_stream = torch.Generator().manual_seed(0)
_inputs = torch.randn(120, 6, generator=_stream)
_targets = (_inputs[:, 0] + 0.5 * _inputs[:, 1] > 0).long()
TASK = gy.Task(
    model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 2)),
    train=(_inputs[:90], _targets[:90]),
    test=(_inputs[90:], _targets[90:]),
    loss=F.cross_entropy,
)
BASE = AsyncConfig(workers=7, batch=8, steps=12, lr=0.5, mu=0.9, evaluate_every=4, threads=1, clip=5.0)


def run(task: gy.Task = TASK, **changes: Any) -> AsyncResult:
    return train(dataclasses.replace(BASE, **changes), task=task)


def final(result: AsyncResult) -> Tensor:
    return flatten(result.model.parameters())

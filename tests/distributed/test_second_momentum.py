"""The warning of gy.ddp where the optimizer has a momentum, too."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from gyroscope.distributed.second_momentum import warn_of_second_momentum


def test_several_jobs_in_one_process_are_looked_at_once_each() -> None:
    models = [nn.Linear(2, 1) for _ in range(3)]
    optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    for model in models:
        warn_of_second_momentum(set(model.parameters()))
        model(torch.ones(1, 2)).sum().backward()
    for optimizer in optimizers:
        with pytest.warns(UserWarning, match=r"AdamW has a momentum of its own \(0.9\) .* may learn worse"):
            optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for optimizer in optimizers:
            optimizer.step()

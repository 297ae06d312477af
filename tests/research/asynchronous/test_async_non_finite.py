"""One honest gradient that is not finite: the run goes on as if its worker had been silent in that turn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from async_runs import BASE, TASK
from torch import Tensor

import gyroscope as gy
from gyroscope.research.asynchronous import AsyncConfig
from gyroscope.research.asynchronous.async_placement import PLACEMENTS, VersionedMomentum
from gyroscope.research.asynchronous.async_run import AsyncRun
from gyroscope.research.asynchronous.timing import TimedEvent
from gyroscope.runs import run_dir
from gyroscope.simulation.byzantine_gradients import unchanged_buffers

WORKER, COUNT = 1, 3
"""Whose gradient is not finite, and which one."""
NORMED = dataclasses.replace(
    TASK, model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2))
)


class SilentRun(AsyncRun):
    """A run in which that worker, in that turn, neither accumulates its gradient nor sends anything."""

    def __init__(self, config: Any, task: gy.Task) -> None:
        super().__init__(config, task)
        accumulate = self.placement.sent

        def sent(worker: int, gradient: Tensor, version: int) -> Tensor:
            silent = worker == WORKER and self.computed[worker] == COUNT + 1
            return gradient if silent else accumulate(worker, gradient, version)

        self.placement.sent = sent  # type: ignore[method-assign]

    def _fetch(self, event: TimedEvent) -> None:
        if event.worker == WORKER and self.computed[event.worker] == COUNT:
            with unchanged_buffers(self.model):
                super()._fetch(event)
        else:
            super()._fetch(event)

    def _send_honest(self, worker: int, fetched: Any) -> tuple[Tensor | None, Tensor | None]:
        if worker == WORKER and self.computed[worker] == COUNT + 1:
            return None, None
        return super()._send_honest(worker, fetched)


def play(kind: type[AsyncRun], config: AsyncConfig, task: gy.Task) -> AsyncRun:
    run = kind(config.resolve(task), task)
    for _ in range(run.config.steps):
        run.play_round()
    return run


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACEMENTS)
@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"filter": "lipschitz", "declared_byzantine": 2, "dampening": "inverse"}, math.nan),
        ({"filter": "lipschitz", "declared_byzantine": 2, "nesterov": True}, -math.inf),
        ({"attack": "little", "byzantine": 2, "compare_orders": True, "byzantine_speed": 3.0}, math.nan),
        ({"filter": "lipschitz", "attack": "stale:delay=2,source=own", "byzantine": 2, "steps": 20}, math.inf),
    ],
    ids=["dampened", "nesterov", "little", "stale"],
)
def test_the_run_is_that_of_a_worker_that_was_silent_in_that_turn(
    place: str, changes: dict[str, Any], value: float, sampled: Callable[..., object]
) -> None:
    """To the bit: models, verdicts, coefficients, ages, and what the adversary sends."""
    config = dataclasses.replace(BASE, momentum=place, **changes)
    if place == "none":  # it has no look-ahead
        config = dataclasses.replace(config, nesterov=False)
    sampled()
    silent = play(SilentRun, config, NORMED)
    sampled((WORKER, COUNT), value=value)
    run = play(AsyncRun, config, NORMED)
    arrivals = run.tables[run_dir.ARRIVALS]
    (poisoned,) = (row for row in arrivals if row["loss"] is not None and not math.isfinite(row["loss"]))
    assert poisoned["worker"] == WORKER and not poisoned["accepted"] and poisoned["refused_lipschitz"]
    assert [row for row in arrivals if row is not poisoned] == silent.tables[run_dir.ARRIVALS]
    counted = {"received", "refused_lipschitz"}
    for got, expected in zip(run.tables[run_dir.METRICS], silent.tables[run_dir.METRICS], strict=True):
        assert {**got, **dict.fromkeys(counted)} == {**expected, **dict.fromkeys(counted)}
    assert run.tables[run_dir.WEIGHTS] == silent.tables[run_dir.WEIGHTS]
    for name, tensor in silent.model.state_dict().items():
        assert torch.equal(tensor, run.model.state_dict()[name]), name
    later = [row for row in arrivals if row["worker"] == WORKER and row["time"] > poisoned["time"]]  # type: ignore[operator]
    assert any(row["accepted"] for row in later), "else nothing of this worker would be tested"


def test_the_momentum_of_a_gradient_that_is_not_finite_knows_neither_it_nor_its_version() -> None:
    momentum, undisturbed = VersionedMomentum(0.9, gain=0.5), VersionedMomentum(0.9, gain=0.5)
    for version in range(4):
        gradient = torch.full((3,), 1.0 + version)
        assert torch.equal(momentum.add(gradient, version), undisturbed.add(gradient, version))
        sent = momentum.add(torch.tensor([1.0, math.nan, 0.0]), 1000)
        assert bool(sent.isnan().any())
        assert momentum.version == undisturbed.version


def test_the_loss_of_a_round_is_the_mean_of_the_finite_ones(sampled: Callable[..., object]) -> None:
    sampled((WORKER, COUNT))
    run = play(AsyncRun, dataclasses.replace(BASE, filter="lipschitz"), TASK)
    assert all(row["loss"] is not None and math.isfinite(row["loss"]) for row in run.tables[run_dir.METRICS][2:])

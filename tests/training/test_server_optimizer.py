"""The server's optimizer, and workers that take local steps."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

import gyroscope as gy
from gyroscope._core.errors import ConfigError, GyroscopeError
from gyroscope.research.replicated import ReplicatedConfig
from gyroscope.runs.training import Run
from gyroscope.simulation import server_optimizer

SMALL = gy.Config(task="digits", workers=5, batch=8, steps=6, rule="median", l2=0.0, evaluate_every=3)


def parameters_of(config: gy.Config) -> torch.Tensor:
    task = gy.tasks.parse(config.task).load()
    run = Run(config.resolve(), task)
    for _ in range(config.steps or 0):
        run.play_round()
    return run.parameters.clone()


def naive_adamw(
    start: list[float], gradients: list[list[float]], lr: float, beta1: float, beta2: float, decay: float
) -> list[float]:
    """Loshchilov and Hutter's algorithm 2, value by value."""
    found = []
    for place, value in enumerate(start):
        m = v = 0.0
        for t, gradient in enumerate((row[place] for row in gradients), start=1):
            m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
            value -= lr * decay * value
            value -= lr * (m / (1 - beta1**t)) / (math.sqrt(v / (1 - beta2**t)) + 1e-8)
        found.append(value)
    return found


@pytest.mark.parametrize("spec", ["adamw", "adamw:beta1=0.9,beta2=0.99,weight_decay=0.1", "adam:beta2=0.9,scale=0.5"])
def test_equals_its_formula(spec: str) -> None:
    optimizer = server_optimizer.parse(spec)
    assert isinstance(optimizer, server_optimizer.Adam)
    rows = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    start = torch.linspace(-1, 1, 7, dtype=torch.float64)
    parameters = start.clone()
    steps = optimizer.begin(parameters)
    for row in rows:
        steps.step(row, 0.1)
    decay = optimizer.weight_decay
    right = naive_adamw(start.tolist(), rows.tolist(), 0.1 * optimizer.scale, optimizer.beta1, optimizer.beta2, decay)
    assert parameters.tolist() == pytest.approx(right)
    assert parameters.grad is None


def test_sgd_is_what_it_was() -> None:
    assert torch.equal(parameters_of(SMALL), parameters_of(dataclasses.replace(SMALL, optimizer="sgd")))


def test_a_run_with_adamw_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, optimizer="adamw", lr=0.003, checkpoint_every=2)
    whole = gy.train(config, out=tmp_path / "whole")
    rounds = iter(range(99))
    gy.train(config, out=tmp_path / "part", stop=lambda: next(rounds) == 2)
    resumed = gy.resume(tmp_path / "part")
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert whole.evaluations.equals(resumed.evaluations)


def test_local_steps_of_one_worker_are_rounds_of_it() -> None:
    """Alone and without momentum, a worker that takes three steps in a round is one that takes three rounds."""
    alone = dataclasses.replace(SMALL, workers=1, rule="average", momentum="none")
    rounds = parameters_of(dataclasses.replace(alone, steps=6))
    local = parameters_of(dataclasses.replace(alone, steps=2, local_steps=3))
    assert torch.allclose(rounds, local, rtol=1e-5, atol=1e-6)


def test_local_steps_average_what_workers_have_learned() -> None:
    """The average of two workers' local steps is the mean of their parameters, as in FedAvg."""
    both = dataclasses.replace(SMALL, workers=2, rule="average", momentum="none", steps=1, local_steps=4)
    task = gy.tasks.parse("digits").load()
    run = Run(both.resolve(), task)
    start = run.parameters.clone()
    run.play_round()
    ends = []
    for worker in range(2):
        fresh = Run(both.resolve(), task)
        honest = fresh.round_config.workers
        one = honest.alone(worker)  # type: ignore[attr-defined]
        one.local_steps = 1
        for step in range(4):
            _, (gradient,) = one.sample(step)
            fresh.parameters.sub_(gradient, alpha=fresh.schedule.at(0))
        ends.append(fresh.parameters.clone())
    assert not torch.equal(ends[0], start)
    assert torch.allclose(run.parameters, (ends[0] + ends[1]) / 2, rtol=1e-5, atol=1e-6)


def test_an_attack_meets_local_steps_and_adamw() -> None:
    config = dataclasses.replace(
        SMALL, workers=7, byzantine=2, attack="label-flip", optimizer="adamw", lr=0.003, local_steps=2, steps=20
    )
    result = gy.train(config)
    assert result.status == "complete" and result.max_accuracy > 0.3


def test_what_cannot_be_is_one_message() -> None:
    with pytest.raises(GyroscopeError, match="did you mean 'adam'"):
        dataclasses.replace(SMALL, optimizer="adamv").resolve()
    with pytest.raises(ConfigError, match="local_steps must be at least 1"):
        gy.Config(local_steps=0)
    with pytest.raises(ConfigError, match=r"several servers .* sgd"):
        ReplicatedConfig(servers=4, optimizer="adamw").resolve()
    with pytest.raises(ConfigError, match="simulated workers only"):
        gy.train(dataclasses.replace(SMALL, local_steps=2), worker_factory=lambda config, honest: honest)
    with pytest.raises(GyroscopeError, match="beta2"):
        server_optimizer.parse("adamw:beta2=1")

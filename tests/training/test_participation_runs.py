"""Runs whose rounds ask some of the workers, against a slow loop that follows each worker by itself."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gyroscope as gy
from gyroscope._core import random_streams
from gyroscope._core.clock import UNTIMED
from gyroscope.runs.config import ResolvedConfig
from gyroscope.runs.training import Run
from gyroscope.simulation.round import Round
from gyroscope.simulation.workers import SimulatedWorkers

SMALL = gy.Config(workers=9, batch=8, steps=12, rule="median", declared_byzantine=2, sample=4, threads=1, l2=1e-3)
ATTACKED = dataclasses.replace(SMALL, byzantine=2, attack="empire")
LEFT_OUT = dataclasses.replace(ATTACKED, sample=6, absent="left-out")


class Faulty:
    """The simulated workers, of which one sends NaN in one step."""

    def __init__(self, honest: SimulatedWorkers, worker: int, step: int) -> None:
        self.honest, self.worker, self.step = honest, worker, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)

    def sample(self, step: int, **options: Any) -> tuple[Tensor, Tensor]:
        losses, rows = self.honest.sample(step, **options)
        if step == self.step:
            assert self.honest.present is not None and self.worker in self.honest.present
            rows[self.worker] = math.nan
            self.honest.present = self.honest.present[self.honest.present != self.worker]
        return losses, rows


def played(config: gy.Config, fault: tuple[int, int] | None = None) -> tuple[Run, list[Round], list[Tensor]]:
    """Play a run; return its rounds, with copies of what the rule was given in each."""
    factory = None if fault is None else (lambda _, honest: Faulty(honest, *fault))
    run = Run(config.resolve(), gy.tasks.parse(config.task).load(), factory)  # type: ignore[arg-type]
    rounds, given = [], []
    compute = run.compute_round

    def recorded(clock: Any) -> Round:
        rounds.append(compute(clock))
        given.append(rounds[-1].update.rows.clone())
        return rounds[-1]

    run.compute_round = recorded  # type: ignore[method-assign]
    for _ in range(run.config.steps):
        run.play_round()
    return run, rounds, given


def naive(config: ResolvedConfig, fault: tuple[int, int] | None = None) -> tuple[Tensor, list[Tensor]]:
    """Return the parameters after all rounds, and what the rule was given: one worker, one row at a time."""
    run = Run(config, gy.tasks.parse(config.task).load())  # for its model, its data and its first parameters
    (workers, h), parameters = (run.round_config.workers, config.workers - config.byzantine), run.parameters
    assert isinstance(workers, SimulatedWorkers) and run.participation is not None and config.sample is not None
    momentum: list[Any] = [0.0] * config.workers
    last = [torch.full_like(parameters, math.nan) for _ in range(config.workers)]
    velocity: Any = 0.0
    lr, record = run.schedule.at(0), []
    for step in range(config.steps):
        asked = list(range(config.workers))
        if step > 0 or config.absent == "left-out":
            stream = random_streams.generator(config.seed, "participation", step)
            asked = torch.randperm(config.workers, generator=stream).tolist()[: config.sample]
        now = [row.clone() if config.absent == "momentum" else torch.full_like(row, math.nan) for row in last]
        for worker in (worker for worker in range(h) if worker in asked):
            gradient = workers.alone(worker).sample(step)[1][0]
            if (worker, step) == fault:
                now[worker] = torch.full_like(gradient, math.nan)
                continue
            if config.momentum == "workers":
                momentum[worker] = config.mu * momentum[worker] + gradient
            now[worker] = last[worker] = momentum[worker] if config.momentum == "workers" else gradient
        shown = torch.stack([row for row in now[:h] if bool(row.isfinite().all())])
        for worker in (worker for worker in range(h, config.workers) if worker in asked):
            now[worker] = last[worker] = -0.1 * shown.mean(dim=0)  # empire
        rows = torch.stack(now)
        record.append(rows)
        given = rows if config.absent == "momentum" else rows[sorted(asked)]
        result = gy.rules.make(config.rule)(given, f=run.participation.f).vector
        velocity = config.mu * velocity + result if config.momentum == "server" else result
        parameters -= lr * velocity
    return parameters.clone(), record


@pytest.mark.parametrize("momentum", ["workers", "server", "none"])
@pytest.mark.parametrize("config", [SMALL, ATTACKED, LEFT_OUT], ids=["honest", "attacked", "left-out"])
def test_a_run_is_that_of_the_slow_loop(config: gy.Config, momentum: str) -> None:
    config = dataclasses.replace(config, momentum=momentum)
    run, _, given = played(config)
    parameters, record = naive(config.resolve())
    for mine, right in zip(given, record, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(run.parameters, parameters, rtol=1e-4, atol=1e-6)


def test_everybody_asked_is_a_run_without_a_sample() -> None:
    all_asked = dataclasses.replace(ATTACKED, sample=9)
    for absent in ("momentum", "left-out"):
        run, _, _ = played(dataclasses.replace(all_asked, absent=absent))
        plain, _, _ = played(dataclasses.replace(all_asked, sample=None))
        assert torch.equal(run.parameters, plain.parameters)


@pytest.mark.parametrize("config", [SMALL, ATTACKED, LEFT_OUT], ids=["honest", "attacked", "left-out"])
def test_a_row_of_nan_costs_its_worker_one_round(config: gy.Config) -> None:
    resolved = config.resolve()
    taking = resolved.participation()
    assert taking is not None
    worker, step = next((w, s) for s in range(3, 9) for w in taking.asked(s) if w < 7 and w not in taking.asked(s + 1))
    run, rounds, given = played(config, (worker, step))
    parameters, record = naive(resolved, (worker, step))
    assert bool(given[step][worker].isnan().all())
    if taking.keeps:
        assert bool(given[step + 1][worker].isfinite().all()), "its last finite row"
        assert rounds[step].sent.rows.shape[0] == 6 + (config.byzantine == 0) * 2
    for mine, right in zip(given, record, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(run.parameters, parameters, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "attack", ["label-flip", "little:factor=auto", "foresight", "mimic", "nan", "searched", "persistent"]
)
@pytest.mark.parametrize("config", [ATTACKED, LEFT_OUT], ids=["momentum", "left-out"])
def test_byzantine_workers_send_rows_only_where_they_are_asked(config: gy.Config, attack: str) -> None:
    run, rounds, given = played(dataclasses.replace(config, attack=attack, steps=8))
    assert run.participation is not None
    for step, (each, rows) in enumerate(zip(rounds, given, strict=True)):
        asked = [worker for worker in (7, 8) if worker in run.participation.asked(step)]
        assert len(each.attack) == len(asked)
        torch.testing.assert_close(rows[asked], each.attack, rtol=0, atol=0, equal_nan=True)
        for absent in {7, 8} - set(asked):
            if not run.participation.keeps:
                assert bool(rows[absent].isnan().all())
            elif step:
                torch.testing.assert_close(rows[absent], given[step - 1][absent], rtol=0, atol=0, equal_nan=True)
    assert bool(run.parameters.isfinite().all())


def test_the_adversary_foresees_what_the_rule_is_given() -> None:
    """What it computes of its rows is what the server makes of them, old rows of its own included."""
    seen: list[Tensor] = []

    @dataclasses.dataclass(frozen=True)
    class Foreseeing(gy.attacks.Attack):
        name = "foreseeing"

        def rows(self, honest: Tensor, f: int, context: Any) -> Tensor:
            rows = torch.arange(1.0, f + 1)[:, None] * honest.mean(dim=0)
            seen.append(context.outcome(torch.cat([honest, rows])))
            return rows

    for config in (ATTACKED, LEFT_OUT):
        run = Run(config.resolve(), gy.tasks.parse(config.task).load())
        run.round_config = dataclasses.replace(run.round_config, attack=Foreseeing())
        for _ in range(12):
            seen.clear()
            each = run.compute_round(UNTIMED)
            run.step += 1
            assert not seen or torch.equal(seen[0], each.update.vector)


@pytest.mark.parametrize("config", [ATTACKED, LEFT_OUT], ids=["momentum", "left-out"])
def test_a_run_is_resumed_to_the_same_bits(config: gy.Config, tmp_path: Path) -> None:
    config = dataclasses.replace(config, attack="label-flip", checkpoint_every=2)
    whole = gy.train(config, out=tmp_path / "whole")
    rounds = iter(range(99))
    gy.train(config, out=tmp_path / "part", stop=lambda: next(rounds) == 4)
    resumed = gy.resume(tmp_path / "part")
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert whole.metrics.equals(resumed.metrics)


def test_local_steps_and_a_sample_go_together() -> None:
    run, rounds, _ = played(dataclasses.replace(ATTACKED, local_steps=2, steps=6))
    assert [len(each.losses) for each in rounds] == [
        sum(worker < 7 for worker in run.participation.asked(step))
        for step in range(6)  # type: ignore[union-attr]
    ]


def test_a_round_may_ask_byzantine_workers_only() -> None:
    config = dataclasses.replace(ATTACKED, workers=7, byzantine=3, declared_byzantine=3, sample=1, steps=12)
    run, rounds, _ = played(config)
    alone = [each for each in rounds if not len(each.losses)]
    assert alone and all(each.sampled is None and len(each.sent.rows) == 4 for each in alone)
    assert bool(run.parameters.isfinite().all())


def test_each_byzantine_worker_flips_its_own_labels() -> None:
    config = dataclasses.replace(LEFT_OUT, attack="label-flip", momentum="none", steps=12)
    run = Run(config.resolve(), gy.tasks.parse(config.task).load())
    alone = 0
    for step in range(12):
        assert run.participation is not None and run.round_config.byzantine_gradients is not None
        asked = [worker - 7 for worker in run.participation.asked(step) if worker >= 7]
        right = run.round_config.byzantine_gradients.at(step)(True)[asked]
        each = run.compute_round(UNTIMED)
        run.step += 1
        assert torch.equal(each.attack, right)
        alone += asked == [1]
    assert alone, "the second of them is asked without the first"

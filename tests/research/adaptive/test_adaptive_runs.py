"""Whole runs with adaptive momentum: every row, direction and switch against sums written out; faults; resuming."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gyroscope as gy
from gyroscope._core import random_streams
from gyroscope._core.clock import Clock
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import flat_parameters
from gyroscope.research.adaptive import AdaptiveConfig, AdaptiveRun
from gyroscope.research.adaptive.adaptive_config import ResolvedAdaptiveConfig
from gyroscope.research.adaptive.feedback import FeedbackMomentum, LastAggregate
from gyroscope.rules import Krum
from gyroscope.runs.training import load_task
from gyroscope.simulation.byzantine_gradients import ByzantineGradients
from gyroscope.simulation.metrics import COLUMNS
from gyroscope.simulation.round import Round
from gyroscope.simulation.workers import SimulatedWorkers

HONEST, BYZANTINE, STEPS = 7, 2, 9
PLACES = AdaptiveConfig.placements


def tiny_task() -> gy.Task:
    stream = torch.Generator().manual_seed(1)
    inputs = torch.randn(60, 4, generator=stream)
    targets = torch.randint(3, (60,), generator=stream)
    return gy.Task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.LogSoftmax(dim=1)),
        train=(inputs, targets),
        test=(inputs, targets),
    )


TASK = tiny_task()


def config(**changes: Any) -> AdaptiveConfig:
    settings: dict[str, Any] = {
        "rule": "median", "attack": "empire", "byzantine": BYZANTINE, "workers": HONEST + BYZANTINE, "batch": 3,
        "steps": STEPS, "lr": "9", "threads": 1,
    }  # fmt: skip
    return AdaptiveConfig(**{**settings, **changes})


class RecordingRun(AdaptiveRun):
    """A run that keeps copies of its rounds: the memory of a round is used again in the next."""

    def __init__(self, settings: AdaptiveConfig, task: gy.Task = TASK) -> None:
        super().__init__(settings.resolve(task), task)
        self.rounds: list[Round] = []
        self.sent: list[Tensor] = []
        """What the honest workers sent."""

    def compute_round(self, clock: Clock) -> Round:
        played = super().compute_round(clock)
        self.sent.append(self.round_state.honest.clone())
        update = dataclasses.replace(played.update, rows=played.update.rows.clone())
        self.rounds.append(dataclasses.replace(played, update=update, attack=played.attack.clone()))
        return played


# -- what is sent, what the rule is given, and where the model goes ----------------------------------------------------

POISONED = 2, 4
"""The worker whose gradient is not finite, and the step at which it is not."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("adapt", ["none", "mu+safe-lr"])
@pytest.mark.parametrize("value", [None, math.nan, math.inf], ids=["finite", "nan", "inf"])
def test_every_row_and_every_direction_are_the_sums_of_what_was_sampled_and_finite(
    place: str, adapt: str, value: float | None, sampled: Callable[..., dict[tuple[int, int], Tensor]]
) -> None:
    """To the bit, in all rounds: a gradient that is not finite is sent as it is, and no sum ever holds it."""
    seen = sampled() if value is None else sampled(POISONED, value=value)
    run = RecordingRun(config(momentum=place, adapt=adapt))
    sums = torch.zeros(HONEST, run.parameters.numel())
    last = direction = torch.zeros_like(run.parameters)
    before = run.parameters.clone()
    for step in range(STEPS):
        row = run.play_round()
        played, mu = run.rounds[-1], row["mu"]
        gradients = torch.stack([seen[worker, step] for worker in range(HONEST)])
        assert bool(gradients.isfinite().all()) == (value is None or step != POISONED[1])
        finite = gradients.isfinite().all(dim=1, keepdim=True)
        sums = torch.where(finite, torch.add(gradients, sums, alpha=mu), sums)
        accumulated = torch.where(finite, sums, gradients)
        sent = {"workers": accumulated, "feedback": torch.add(gradients, last, alpha=mu)}.get(place, gradients)
        shown = accumulated if place == "server-kept" or row["at_workers"] else sent
        assert same(run.sent[-1], sent) and same(played.update.rows[:HONEST], shown)
        last = played.update.aggregate.vector.clone()
        after_rule = place == "server" or row["at_workers"] is False
        direction = torch.add(last, direction, alpha=mu) if after_rule else last
        assert torch.equal(played.update.vector, direction)
        assert torch.equal(run.parameters, torch.sub(before, direction, alpha=row["lr"]))
        assert bool(direction.isfinite().all()) and math.isfinite(row["loss"])
        before = run.parameters.clone()
    assert (adapt == "none") == ({played.mu for played in run.rounds} == {0.9}), "else nothing has adapted"
    if place.startswith("adaptive") and adapt == "none":
        assert {played.extra["at_workers"] for played in run.rounds} == {True, False}


def same(got: Tensor, expected: Tensor) -> bool:
    """Equal, also where both are NaN."""
    return bool(((got == expected) | (got.isnan() & expected.isnan())).all())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stopped", [POISONED[1], POISONED[1] + 1, POISONED[1] + 2])
def test_a_run_resumes_to_the_same_bits_around_a_gradient_that_is_not_finite(
    place: str, stopped: int, sampled: Callable[..., object], tmp_path: Path
) -> None:
    sampled(POISONED)
    settings = config(momentum=place, adapt="mu+safe-lr", attack="stale:delay=2")
    gy.train(settings, task=TASK, out=tmp_path / "whole")
    rounds = itertools.count(1)
    part = gy.train(settings, task=TASK, out=tmp_path / "parts", stop=lambda: next(rounds) == stopped)
    assert part.status == "interrupted" and part.step == stopped
    assert gy.resume(tmp_path / "parts", task=TASK).status == "complete"
    for name in ("metrics.csv", "evaluations.csv", "workers.csv", "model.pt"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


# -- where momentum was ------------------------------------------------------------------------------------------------


def norm2(vector: numpy.ndarray) -> float:
    return sum(float(value) ** 2 for value in vector)


def decreases(means: list[numpy.ndarray], sigmas: list[float], mu: float) -> bool:
    """The paper's decrease condition at the last step, by its sums over all of them."""
    t = len(means) - 1
    if t == 0:
        return True  # the ratios of both placements are the same there
    momentum = sum(mu ** (t - 1 - u) * means[u] for u in range(t))
    omega2 = sum(mu ** (2 * (t - 1 - u)) * sigmas[u] ** 2 for u in range(t))
    straightness = 2 * sum(mu ** (t - v) * float(means[t] @ means[v]) for v in range(t))
    ratio = sigmas[t] ** 2 / norm2(means[t])
    return straightness >= mu**2 * norm2(momentum) * (omega2 / norm2(momentum) / ratio - 1)


def from_honest(rows: numpy.ndarray) -> tuple[numpy.ndarray, float]:
    """(mean, deviation) of the honest rows that are finite: what `adaptive-oracle` knows."""
    honest = rows[:HONEST][numpy.isfinite(rows[:HONEST]).all(axis=1)]
    return honest.mean(axis=0), math.sqrt(honest.var(axis=0, ddof=1).sum())


def from_all(rows: numpy.ndarray) -> tuple[numpy.ndarray, float]:
    """(median, deviation) of all rows, the lower of two middles; a row of NaN is above and far from all others."""
    rows = numpy.nan_to_num(rows, nan=math.inf)
    far = [not numpy.isfinite(row).all() for row in rows]
    others = [
        [math.inf if far[i] or far[j] else norm2(a - b) for j, b in enumerate(rows) if j != i]
        for i, a in enumerate(rows)
    ]
    middles = sorted(sorted(distances)[(len(distances) - 1) // 2] for distances in others)
    return numpy.sort(rows, axis=0)[(len(rows) - 1) // 2], math.sqrt(middles[(len(rows) - 1) // 2] / 2)


@pytest.mark.parametrize(
    ("place", "estimates"), [("adaptive", from_all), ("adaptive-oracle", from_honest)], ids=["adaptive", "oracle"]
)
@pytest.mark.parametrize(("rule", "attack"), [("krum", "gaussian"), ("median", "empire")])
@pytest.mark.parametrize("poisoned", [(), (POISONED,)], ids=["finite", "nan"])
def test_the_switch_is_the_decrease_condition(
    place: str, estimates: Any, rule: str, attack: str, poisoned: Any, sampled: Callable[..., Any]
) -> None:
    """By its sums over the whole past, of what the server estimates or of the honest rows; also after a NaN."""
    seen = sampled(*poisoned)
    run = RecordingRun(config(momentum=place, rule=rule, attack=attack))
    means, sigmas, switches = [], [], []
    for step in range(STEPS):
        row = run.play_round()
        rows = torch.stack([seen[worker, step] for worker in range(HONEST)] + list(run.rounds[-1].attack))
        mean, sigma = estimates(rows.double().numpy())
        means.append(mean)
        sigmas.append(sigma)
        assert row["at_workers"] == decreases(means, sigmas, 0.9)
        assert place == "adaptive" or row["at_workers"] == row["decrease_holds"]
        switches.append(row["at_workers"])
    assert set(switches) == {True, False}


@pytest.mark.parametrize("placement", ["adaptive", "adaptive-oracle"])
def test_where_momentum_was_is_on_record_and_stays_so_after_an_interruption(placement: str, tmp_path: Path) -> None:
    settings = AdaptiveConfig(rule="krum", attack="little", byzantine=5, steps=40, momentum=placement, lr="4")
    whole = gy.train(settings).tables["metrics.csv"]
    assert {row["at_workers"] for row in whole} == {True, False}
    rounds = iter(range(17))
    gy.train(settings, out=tmp_path / "run", stop=lambda: next(rounds, None) is None)
    assert gy.resume(tmp_path / "run").tables["metrics.csv"] == whole
    assert [row["at_workers"] for row in whole] == list(pandas.read_csv(tmp_path / "run" / "metrics.csv")["at_workers"])


@pytest.mark.parametrize("place", ["adaptive", "adaptive-oracle"])
@pytest.mark.parametrize("every", [2, 3, 100])
def test_steps_that_are_measured_say_the_same_when_others_are_not(place: str, every: int) -> None:
    settings = config(momentum=place, rule="krum", attack="gaussian")
    whole = gy.train(settings, task=TASK)
    some = gy.train(dataclasses.replace(settings, measure_every=every), task=TASK)
    for table in ("metrics.csv", "workers.csv"):
        assert some.tables[table] == [row for row in whole.tables[table] if row["step"] % every == 0]
    assert some.tables["evaluations.csv"] == whole.tables["evaluations.csv"]


def test_a_run_begun_before_a_column_existed_goes_on_with_the_column_empty_until_then(tmp_path: Path) -> None:
    settings, rounds = AdaptiveConfig(rule="krum", workers=7, steps=9, momentum="adaptive"), iter(range(4))
    gy.train(settings, out=tmp_path / "run", stop=lambda: next(rounds, None) is None)
    path = tmp_path / "run" / "metrics.csv"
    pandas.read_csv(path, dtype=str).drop(columns="at_workers").to_csv(path, index=False)
    rows = gy.resume(tmp_path / "run").tables["metrics.csv"]
    whole = gy.train(settings).tables["metrics.csv"]
    assert rows == [{**row, "at_workers": None} if number < 5 else row for number, row in enumerate(whole)]
    assert tuple(pandas.read_csv(path).columns) == COLUMNS


# -- the server's own samples, and the Byzantine workers' own gradients ------------------------------------------------


@pytest.mark.parametrize("clip", [0.5, math.inf], ids=["clipped", "whole"])
def test_with_feedback_the_trusted_gradient_is_what_an_honest_worker_with_those_samples_would_send(
    clip: float,
) -> None:
    settings = AdaptiveConfig(
        rule="fltrust", attack="little", byzantine=2, workers=13, clip=clip, l2=0.1, momentum="feedback", mu=0.5,
        trusted=30, threads=1,
    ).resolve()  # fmt: skip
    task = load_task(settings)
    run = AdaptiveRun(settings, task)
    chosen = torch.randperm(len(task.train), generator=random_streams.generator(1, "trusted"))[:30]
    inputs, targets = task.train.inputs[chosen], task.train.targets[chosen]
    trusted = run.round_config.trusted
    assert trusted is not None
    for step in range(3):
        gradients = torch.autograd.grad(F.nll_loss(run.model(inputs), targets), list(run.model.parameters()))
        gradient = torch.cat([one.reshape(-1) for one in gradients]) + 0.1 * run.parameters
        gradient *= min(1.0, clip / float(gradient.norm()))
        expected = gradient if run.last.vector is None else gradient + 0.5 * run.last.vector
        torch.testing.assert_close(trusted.gradient(step), expected, rtol=1e-4, atol=1e-6)
        run.last.vector = torch.full_like(gradient, 0.01 * (step + 1))
        run.parameters.sub_(0.1 * expected)


@pytest.mark.parametrize("rule", ["zeno", "fltrust"])
def test_a_placement_that_switches_is_refused_with_samples_of_the_servers_own(rule: str, tmp_path: Path) -> None:
    for place in ("adaptive", "adaptive-oracle"):
        with pytest.raises(ConfigError, match=f"'{place}' shows the rule now gradients, now accumulated ones"):
            gy.train(config(rule=rule, trusted=20, momentum=place), task=TASK, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("batches", ["independent", "pass"])
def test_with_feedback_byzantine_workers_of_their_own_add_the_last_aggregate(flipped: bool, batches: str) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.LogSoftmax(dim=1))
    honest = SimulatedWorkers(
        model, F.nll_loss, gy.Split.of(TASK.train), flat_parameters.attach(model), count=4, batch=6, seed=5,
        clip=1.0, l2=1e-3, batches=batches,
    )  # fmt: skip
    last = LastAggregate()
    own = ByzantineGradients(honest, 2, lambda: FeedbackMomentum(0.9, last))
    plain = ByzantineGradients(honest, 2, None)
    for step in range(3):
        last.vector = torch.full_like(honest.parameters, 2.0 + step)
        expected = plain.at(step)(flipped) + 0.9 * last.vector
        assert torch.allclose(own.at(step)(flipped), expected, atol=1e-6)
        honest.parameters.sub_(0.1 * expected[0])


def test_byzantine_workers_who_begin_late_use_the_factor_of_the_round() -> None:
    """The attack asks for their gradients first at step 4, when the factor has fallen: it is not that of step 0."""
    run = RecordingRun(config(momentum="feedback", adapt="mu", attack=f"{__name__}:Late", lr="30"))
    for _ in range(5):
        run.play_round()
    played = run.rounds[-1]
    assert played.mu < 0.9 and Late.asked == [4]
    last, plain = run.rounds[-2].update.vector, ByzantineGradients(run.round_config.workers, BYZANTINE, None)  # type: ignore[arg-type]
    run.parameters.copy_(Late.parameters[-1])
    torch.testing.assert_close(played.attack, torch.add(plain.at(4)(False), last, alpha=played.mu))


@dataclasses.dataclass(frozen=True)
class Late(gy.attacks.Attack):
    """Zeros, and from step 4 on what an honest worker would send."""

    asked = []  # type: ignore[var-annotated]  # noqa: RUF012
    parameters = []  # type: ignore[var-annotated]  # noqa: RUF012

    def rows(self, honest: Tensor, f: int, context: gy.attacks.AttackContext) -> Tensor:
        if context.step < 4:
            return torch.zeros(f, honest.shape[1])
        self.asked.append(context.step)
        self.parameters.append(context.parameters.clone())
        return context.own_gradients()


# -- an adversary that reckons with the switch -------------------------------------------------------------------------


def test_against_the_adaptive_placement_the_rule_is_shown_the_attack_whichever_way_it_switches() -> None:
    """In a whole run: Byzantine rows, as shown, are mean - 1.5 std of the honest rows as shown."""
    settings = AdaptiveConfig(rule="krum", attack="foresight:attack=little", byzantine=5, momentum="adaptive", lr="1")
    run = RecordingRun(settings, load_task(settings))
    switches = [run.play_round()["at_workers"] for _ in range(30)]
    assert {True, False} == set(switches)
    aimed = 0
    for played in run.rounds:
        rows = played.update.rows
        honest = rows[: len(rows) - 5].double()
        wanted = (honest.mean(dim=0) - 1.5 * honest.std(dim=0)).float()
        aimed += all(torch.allclose(row, wanted, rtol=1e-3, atol=1e-4) for row in rows[-5:])
    assert aimed >= 24, "it misses only where the row that suits the one placement leads to the other"


# -- a rule of somebody else's -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FirstRow(Krum):
    """Return the first row itself, not a copy of it."""

    def step(self, rows: Tensor, f: int, context: Any) -> Any:
        aggregate, state = super().step(rows, f, context)
        return aggregate._replace(vector=rows[0]), state


def test_feedback_survives_a_rule_that_returns_one_of_its_rows(sampled: Callable[..., Any]) -> None:
    """The next round overwrites the row's memory."""
    seen = sampled()
    run = RecordingRun(config(momentum="feedback", rule=f"{__name__}:FirstRow"))
    last = torch.zeros_like(run.parameters)
    for step in range(3):
        run.play_round()
        for worker, row in enumerate(run.sent[-1]):
            assert torch.equal(row, torch.add(seen[worker, step], last, alpha=0.9))
        last = run.sent[-1][0]


def test_worker_processes_that_accumulate_cannot_adapt_their_factor() -> None:
    def accumulating(resolved: ResolvedAdaptiveConfig, honest: SimulatedWorkers) -> SimulatedWorkers:
        honest.accumulates = True
        return honest

    with pytest.raises(ConfigError, match=r"adapt = 'mu' changes .* use momentum server-kept, or adapt the learning"):
        gy.train(config(adapt="mu"), task=TASK, worker_factory=accumulating)
    assert gy.train(config(adapt="lr"), task=TASK, worker_factory=accumulating).status == "complete"

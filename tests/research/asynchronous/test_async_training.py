"""Asynchronous runs: what they equal, what they repeat, what they record, and what they survive."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from async_runs import BASE, TASK, final, run

import gyroscope as gy
from gyroscope._core.errors import ConfigError, InfeasibleError, RunDirectoryError, UnknownNameError
from gyroscope._linalg.flat_parameters import attach, flatten
from gyroscope.cli import main
from gyroscope.research.asynchronous import AsyncConfig, train
from gyroscope.research.asynchronous.async_placement import VersionedMomentum
from gyroscope.research.asynchronous.async_tables import ARRIVAL_COLUMNS, METRIC_COLUMNS
from gyroscope.runs import run_dir, setup
from gyroscope.simulation.data.batches import Split
from gyroscope.simulation.workers import SimulatedWorkers


def test_one_worker_is_never_stale_and_equals_plain_sgd() -> None:
    result = run(workers=1, momentum="none", filter="none", speeds="equal", jitter=0)
    assert set(result.arrivals["staleness"]) == {0}
    again = gy.train(gy.Config(workers=1, batch=8, steps=11, lr=0.5, mu=0.9, momentum="none", clip=5.0), task=TASK)
    assert len(result.arrivals) == 11  # the first arrives at time 1
    assert torch.equal(final(result), flatten(again.model.parameters()))


def test_equal_speeds_without_a_filter_are_sequential_sgd_on_stale_gradients() -> None:
    """Everyone in turn; from the second round on, each gradient has missed the n - 1 others."""
    n, steps = 3, 6
    result = run(workers=n, momentum="none", filter="none", speeds="equal", jitter=0, steps=steps)
    config = dataclasses.replace(BASE, workers=n).resolve(TASK)
    model = setup.first_model(TASK, config.seed)
    parameters = attach(model)
    crew = [
        SimulatedWorkers(model, TASK.loss, Split.of(TASK.train), parameters, count=1, first=worker, batch=8, seed=1,
                      clip=5.0, l2=0.0)
        for worker in range(n)
    ]  # fmt: skip
    pending = [crew[worker].sample(0)[1][0].clone() for worker in range(n)]
    for number in range(n * (steps - 1)):
        worker = number % n
        parameters.sub_(pending[worker], alpha=0.5 / n)
        pending[worker] = crew[worker].sample(number // n + 1)[1][0].clone()
    assert torch.equal(final(result), parameters)
    assert list(result.arrivals["worker"]) == [number % n for number in range(n * (steps - 1))]
    assert list(result.arrivals["staleness"]) == [0, 1] + [2] * (n * (steps - 1) - 2)


@pytest.mark.parametrize("place", ["none", "workers", "server-each"])
def test_with_small_steps_it_is_synchronous_training(place: str) -> None:
    """As many gradients on the same batches: what is left is staleness, whose effect shrinks with the learning rate."""
    apart = []
    for lr in (0.1, 0.01):
        result = run(momentum=place, filter="none", speeds="equal", jitter=0, lr=lr, workers=5, steps=13)
        beside = "none" if place == "none" else "workers"
        config = gy.Config(workers=5, batch=8, steps=12, lr=lr, mu=0.9, momentum=beside, clip=5.0, threads=1)
        together = flatten(gy.train(config, task=TASK).model.parameters())
        start = flatten(setup.first_model(TASK, 1).parameters())
        apart.append(float((final(result) - together).norm() / (together - start).norm()))
    assert apart[0] < 0.3 and 5 < apart[0] / apart[1] < 20


def test_a_long_rest_makes_every_gradient_fresh_and_a_short_one_some() -> None:
    quiet = {"momentum": "none", "filter": "none", "speeds": "equal", "jitter": 0.0, "steps": 30}
    assert set(run(idle=20.0, **quiet).arrivals["staleness"]) == {0}
    busy, half = run(**quiet).arrivals["staleness"].mean(), run(idle=1.0, **quiet).arrivals["staleness"].mean()
    assert 0 < half < 0.7 * busy < 6


def test_filter_and_momentum_commute_to_the_bit_where_everything_is_accepted() -> None:
    parts = [run(momentum=place, filter="none", stragglers=0.2) for place in ("workers", "server-each")]
    assert torch.equal(*map(final, parts))
    assert parts[0].arrivals["age"].equals(parts[1].arrivals["age"])
    judged = [run(momentum=place, filter="lipschitz", declared_byzantine=2) for place in ("workers", "server-each")]
    assert not torch.equal(*map(final, judged))


def test_mu_zero_makes_all_placements_one() -> None:
    ends = [
        final(run(momentum=place, mu=0.0, declared_byzantine=2))
        for place in ("none", "workers", "server", "server-each", "server-rounds")
    ]
    for end in ends[1:]:
        assert torch.equal(ends[0], end)


def test_the_momentum_is_the_sum_and_knows_its_age() -> None:
    gradients = [torch.tensor([1.0, 2.0]), torch.tensor([0.0, -1.0]), torch.tensor([4.0, 0.0])]
    summed = VersionedMomentum(0.5, gain=2.0)
    for number, gradient in enumerate(gradients):
        direction = summed.add(gradient, version=10 * number, weight=1.0 if number else 0.5)
    assert direction.tolist() == [0.25 * 1 + 2 * 4, 0.25 * 2 + 0.5 * 2 * -1]
    assert summed.version == pytest.approx((0.25 * 1 * 0 + 0.5 * 2 * 10 + 2 * 20) / (0.25 + 1 + 2))


def test_a_servers_slow_memory_has_the_same_weight_in_total() -> None:
    """The same constant gradient for ever: both memories end at g / (1 - mu), the slow one n times later."""
    slow = 0.9 ** (1 / 7)
    summed = VersionedMomentum(slow, gain=(1 - slow) / (1 - 0.9))
    for number in range(7 * 200):
        direction = summed.add(torch.ones(1), version=number)
    assert float(direction) == pytest.approx(10.0, rel=1e-4)


def test_dampening_weighs_what_is_applied() -> None:
    result = run(filter="none", momentum="none", dampening="inverse", stragglers=0.2)
    for row in result.arrivals.itertuples():
        assert row.weight == 1 / (1 + row.staleness)
    assert not torch.equal(final(result), final(run(filter="none", momentum="none", stragglers=0.2)))


def test_the_same_seed_gives_the_same_bits_and_another_other_ones() -> None:
    attacked = {"attack": "gaussian", "byzantine": 2, "byzantine_speed": 3.0, "stragglers": 0.1}
    first, second, third = run(**attacked), run(**attacked), run(**attacked, seed=2)
    assert torch.equal(final(first), final(second)) and not torch.equal(final(first), final(third))
    assert first.arrivals.equals(second.arrivals) and not first.arrivals["time"].equals(third.arrivals["time"])


@pytest.mark.parametrize(
    "attack", ["nan", "inf", "gaussian:std=1e30", "hidden:gamma=1e30", "little", "empire", "sign-flip"]
)
@pytest.mark.parametrize("speed", [1.0, 20.0])
def test_kardam_keeps_the_model_finite_and_the_liars_share_bounded(attack: str, speed: float) -> None:
    f = 2
    result = run(attack=attack, byzantine=f, byzantine_speed=speed, steps=40)
    assert result.status == run_dir.COMPLETE and bool(final(result).isfinite().all())
    accepted = list(result.arrivals.query("accepted")["byzantine"])
    for start in range(len(accepted) - 2 * f):
        assert sum(accepted[start : start + 2 * f + 1]) <= f
    if attack in ("nan", "inf", "gaussian:std=1e30", "hidden:gamma=1e30"):  # the last is the same vector all along
        assert not any(accepted)
        assert result.max_accuracy > 0.8


def test_without_a_filter_one_nan_is_the_end() -> None:
    result = run(attack="nan", byzantine=1, filter="none")
    assert result.status == run_dir.DIVERGED


def test_attacks_are_made_of_what_honest_workers_last_sent() -> None:
    """With sign-flip and one honest worker, every lie is minus its last gradient: the two undo each other."""
    result = run(workers=2, attack="sign-flip", byzantine=1, filter="none", momentum="none", declared_byzantine=0,
                 speeds="equal", jitter=0, steps=9)  # fmt: skip
    model = setup.first_model(TASK, 1)
    assert list(result.arrivals["byzantine"])[:2] == [False, True]
    assert torch.allclose(final(result), flatten(model.parameters()), atol=1e-6)


def test_the_other_order_is_judged_beside_the_run_and_changes_nothing() -> None:
    for place in ("workers", "server-each"):
        plain = run(momentum=place, declared_byzantine=2)
        compared = run(momentum=place, declared_byzantine=2, compare_orders=True)
        assert torch.equal(final(plain), final(compared))
        assert plain.arrivals["other_accepted"].isna().all()
        assert set(compared.arrivals["other_accepted"]) == {True, False}
        assert (compared.arrivals["other_accepted"] != compared.arrivals["accepted"]).any()
    same = run(momentum="server-each", mu=0.0, declared_byzantine=2, compare_orders=True).arrivals
    assert (same["other_accepted"] == same["accepted"]).all()
    lied = run(attack="little", byzantine=2, compare_orders=True).arrivals
    assert lied["other_accepted"].notna().all()


def test_a_run_directory_is_one_like_any_other(tmp_path: Path) -> None:
    config = dataclasses.replace(BASE, attack="empire", byzantine=2, byzantine_speed=4.0)
    result = train(config, task=TASK, out=tmp_path / "run")
    assert result.directory == tmp_path / "run"
    loaded = AsyncConfig.load(tmp_path / "run" / run_dir.CONFIG)
    assert dataclasses.asdict(loaded) == dataclasses.asdict(result.config) and loaded.resolve(TASK) == result.config
    metrics, arrivals = (pandas.read_csv(tmp_path / "run" / name) for name in (run_dir.METRICS, run_dir.ARRIVALS))
    assert list(metrics["step"]) == list(range(12))
    by_step = arrivals.groupby("step")
    assert list(metrics["received"]) == [len(by_step.get_group(s)) if s in by_step.groups else 0 for s in range(12)]
    assert metrics["accepted"].sum() == arrivals["accepted"].sum() == metrics["version"].iloc[-1]
    refused = metrics["refused_lipschitz"] + metrics["refused_frequency"]
    assert (metrics["received"] - refused == metrics["accepted"]).all()
    shares = pandas.read_csv(tmp_path / "run" / run_dir.WEIGHTS)
    assert shares.filter(like="worker_").sum(axis=1).sub(1).abs().max() < 1e-12
    assert list(pandas.read_csv(tmp_path / "run" / run_dir.EVALUATIONS)["step"]) == [0, 4, 8, 12]
    with pytest.raises(RunDirectoryError, match="--overwrite"):
        train(config, task=TASK, out=tmp_path / "run")
    train(config, task=TASK, out=tmp_path / "run", overwrite=True)
    assert len(pandas.read_csv(tmp_path / "run" / run_dir.ARRIVALS)) == len(arrivals)


def test_every_recorded_column_is_explained() -> None:
    text = (Path(__file__).parents[3] / "docs" / "beyond" / "asynchronous.md").read_text(encoding="utf-8")
    for column in (*ARRIVAL_COLUMNS, *METRIC_COLUMNS):
        assert f"`{column}`" in text, column


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    result = train(BASE, task=TASK, out=tmp_path / "run", stop=lambda: True)
    assert (result.status, result.step) == (run_dir.INTERRUPTED, 1)
    with pytest.raises(RunDirectoryError, match="asynchronous run, which cannot be resumed"):
        gy.resume(tmp_path / "run", task=TASK)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"rule": "krum"}, UnknownNameError, "unknown configuration key 'rule'"),
        ({"byzantine_speed": 0.0}, ConfigError, "positive"),
        ({"stragglers": 2.0}, ConfigError, "probability"),
        ({"idle": -1.0}, ConfigError, "at least 0"),
        ({"attack": "little:factor=auto", "byzantine": 2}, ConfigError, "give it a number"),
        ({"attack": "little"}, ConfigError, "nobody to carry it out"),
        ({"declared_byzantine": 3}, InfeasibleError, r"3f \+ 1 = 10"),
        ({"momentum": "adaptive"}, UnknownNameError, "asynchronous"),
        ({"momentum": "none", "nesterov": True}, ConfigError, "nesterov"),
        ({"mu": 1.0}, ConfigError, "below 1"),
        ({"speeds": "1,2"}, ConfigError, "2 speeds"),
        ({"dampening": "invers"}, UnknownNameError, "inverse"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_mistakes_are_told_before_anything_runs(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        run(**changes)


def test_the_command_line_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    options = "--workers 7 --steps 3 --attack empire --byzantine 2 --byzantine-speed 5 --threads 1 --quiet"
    assert main(["async", *options.split(), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "gradients arrived" in said and "maximum accuracy" in said
    assert main(["async", "--config", str(out / run_dir.CONFIG), "--quiet", "--out", str(tmp_path / "again")]) == 0
    assert (out / run_dir.ARRIVALS).read_text() == (tmp_path / "again" / run_dir.ARRIVALS).read_text()
    assert main(["async", "--filter", "kardan", "--out", str(tmp_path / "no")]) == 2
    assert "did you mean 'kardam'" in capsys.readouterr().err

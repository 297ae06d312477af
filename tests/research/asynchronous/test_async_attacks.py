"""Every attack of the table in an asynchronous run: it works, or is refused with a reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from async_runs import TASK, final, run

from gyroscope import attacks
from gyroscope._core.errors import ConfigError, GyroscopeError
from gyroscope._linalg import flat_parameters
from gyroscope.attacks import ATTACKS, nested
from gyroscope.research.asynchronous import AsyncConfig
from gyroscope.research.asynchronous.adversary import NoRule
from gyroscope.research.asynchronous.timing import WorkerTiming
from gyroscope.runs import run_dir, setup
from gyroscope.runs.config import Config
from gyroscope.runs.variants import variants
from gyroscope.simulation.workers import SimulatedWorkers


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack != "searched"])
def test_every_attack_runs_repeats_itself_and_leaves_the_model_finite(attack: str) -> None:
    """From the first lie on, when a single honest row is known; the other order beside it changes nothing."""
    config: dict[str, Any] = {"attack": attack, "byzantine": 2, "byzantine_speed": 3.0, "steps": 8}
    first, second = run(**config, compare_orders=True), run(**config)
    assert first.status == run_dir.COMPLETE and bool(final(first).isfinite().all())
    assert first.arrivals["byzantine"].any() == (attack != "drop")
    assert torch.equal(final(first), final(second))
    assert first.arrivals["accepted"].equals(second.arrivals["accepted"])


@pytest.mark.parametrize(
    "attack",
    [
        "little:factor=auto",
        "empire:sign=auto",
        "hidden:gamma=auto",
        "empire-strict:epsilon=auto",
        "rare:attack=(empire:factor=auto)",
        "stranger:attacks=(nan/alternate:attack=(little:factor=auto))",
        "coupled:z=auto",
        "split:attacks=(little/searched)",
    ],
)
def test_attacks_that_search_against_a_rule_are_refused(attack: str) -> None:
    with pytest.raises(ConfigError, match=r"asynchronous training has none: (give it a number|choose another attack)"):
        run(attack=attack, byzantine=2)


def test_somebody_elses_attack_that_asks_for_the_rule_is_told_that_there_is_none() -> None:
    with pytest.raises(ConfigError, match="has no rule"):
        NoRule()(torch.ones(3, 2), 1)


def test_parts_are_the_attack_and_all_inside() -> None:
    parsed = attacks.parse("rare:attack=(stranger:attacks=(drop/byzmean:attack=empire))")
    assert [part.name for part in nested.parts(parsed)] == ["rare", "stranger", "drop", "byzmean", "empire"]


# -- workers that follow the protocol at data of their own -------------------------------------------------------------


def in_one_cycle(self: WorkerTiming, worker: int) -> float:
    """Liars begin after the honest, as if they were some of them."""
    return worker / len(self.speeds) / self.speeds[worker]


@pytest.mark.parametrize("place", ["none", "workers", "server-each"])
@pytest.mark.parametrize("shards", ["common", "sorted"])
def test_liars_who_never_lie_are_honest_workers(place: str, shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same models fetched, same batches, same momentum: the run of seven honest workers, to the bit."""
    monkeypatch.setattr(WorkerTiming, "start", in_one_cycle)
    common: dict[str, Any] = {
        "momentum": place,
        "speeds": "equal",
        "shards": shards,
        "declared_byzantine": 2,
        "jitter": 0.3,
    }
    pretended = run(attack="alternate:period=1000", byzantine=2, **common)
    honest = run(**common)
    assert pretended.arrivals["accepted"].equals(honest.arrivals["accepted"])
    assert not honest.arrivals["accepted"].all() and pretended.arrivals["byzantine"].any()
    assert torch.equal(final(pretended), final(honest))


def test_flipped_labels_are_learned_at_the_model_that_was_fetched() -> None:
    """By hand: two honest workers and a liar in turn, each on the model as it was when it fetched."""
    steps = 6
    result = run(workers=3, attack="label-flip", byzantine=1, momentum="none", filter="none", declared_byzantine=0,
                 speeds="equal", jitter=0, steps=steps)  # fmt: skip
    model = setup.first_model(TASK, 1)
    parameters = flat_parameters.attach(model)
    crew = [
        SimulatedWorkers(model, TASK.loss, dataclasses.replace(split), parameters, count=1, first=worker, batch=8,
                         seed=1, clip=5.0, l2=0.0)
        for worker, split in enumerate([split_of(flipped=False)] * 2 + [split_of(flipped=True)])
    ]  # fmt: skip
    # The honest two begin at 0 and 1/2, the liar at 0: so worker 0 and the liar arrive together, and then fetch, both.
    pending = {worker: crew[worker].sample(0)[1][0].clone() for worker in range(3)}
    for count in range(1, steps):
        for arriving in ((0, 2), (1,)):
            for worker in arriving:
                parameters.sub_(pending[worker], alpha=0.5 / 3)
            for worker in arriving:
                pending[worker] = crew[worker].sample(count)[1][0].clone()
    assert list(result.arrivals["worker"])[:6] == [0, 2, 1, 0, 2, 1]
    assert torch.equal(final(result), parameters)


def split_of(flipped: bool) -> Any:
    from gyroscope.simulation.data.batches import Split

    inputs, targets = TASK.train  # type: ignore[misc]
    return Split.of((inputs, 1 - targets if flipped else targets))


def test_own_work_leaves_no_trace_in_batch_norm() -> None:
    """A liar that computes and never sends: the run is that of the honest workers alone."""
    normed = dataclasses.replace(
        TASK, model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2))
    )
    common: dict[str, Any] = {"filter": "none", "momentum": "workers", "byzantine": 2}
    asked = run(normed, attack="rare:attack=drop,chance=1", **common)
    silent = run(normed, attack="drop", **common)
    assert all(
        torch.equal(a, b)
        for a, b in zip(asked.model.state_dict().values(), silent.model.state_dict().values(), strict=True)
    )


def test_who_drops_out_sends_nothing_and_nan_is_something() -> None:
    dropped = run(attack="drop", byzantine=2, filter="none", declared_byzantine=0)
    assert dropped.status == run_dir.COMPLETE and not dropped.arrivals["byzantine"].any()
    half = run(attack="drop:chance=0.5", byzantine=2, byzantine_speed=4.0, steps=30).arrivals
    assert 0.3 < half["byzantine"].sum() / (2 * 4 * 30) < 0.7
    assert run(attack="nan", byzantine=2, filter="none").status == run_dir.DIVERGED


@pytest.mark.parametrize("attack", ["drop", "zero", "mimic"])
def test_honest_workers_alone_keep_it_going_and_none_of_them_starves(attack: str) -> None:
    """n = 3f + 1 with f that are silent, or have the smallest coefficients of all."""
    arrivals = run(attack=attack, byzantine=2, byzantine_speed=10.0, speeds="equal", steps=60).arrivals
    accepted = arrivals[arrivals["accepted"] & ~arrivals["byzantine"]].groupby("worker").size()
    assert len(accepted) == 5 and accepted.min() >= 4


# -- settings ----------------------------------------------------------------------------------------------------------

_OTHER: dict[str, Any] = {
    "rule": "krum", "trusted": 5, "adapt": "mu", "measure_every": 2, "checkpoint_every": 2, "servers": 6,
    "byzantine_servers": 1, "declared_byzantine_servers": 1, "server_attack": "nan", "server_quorum": 5,
    "worker_quorum": 5, "exchange_every": 2, "optimizer": "adam", "local_steps": 2, "sample": 5,
    "absent": "left-out", "worker_weights": "sizes",
}  # fmt: skip
_MEANINGFUL = {
    "task", "steps", "batch", "shards", "seed", "attack", "workers", "byzantine", "declared_byzantine", "momentum",
    "mu", "horizon", "nesterov", "lr", "clip", "l2", "l2_form", "batches", "evaluate_every", "device", "threads",
    "data_dir",
}  # fmt: skip


@pytest.mark.parametrize("name", _OTHER)
def test_settings_that_mean_nothing_here_are_refused(name: str) -> None:
    with pytest.raises(
        GyroscopeError, match=rf"unknown configuration key '{name}'.*Known: |^{name} (is a key of|belongs to) \w+Config"
    ):
        run(**{name: _OTHER[name]})


def test_every_setting_of_a_synchronous_run_either_means_something_or_is_refused() -> None:
    """Whoever adds one decides which."""
    known = {field.name for field in dataclasses.fields(AsyncConfig)}
    assert known >= _MEANINGFUL and known.isdisjoint(_OTHER)
    kinds = (Config, *(variant.config for variant in variants()))
    assert {field.name for kind in kinds for field in dataclasses.fields(kind)} == _MEANINGFUL | set(_OTHER)


def test_shards_are_each_workers_own_data() -> None:
    """With sorted labels a worker learns from its own only: another run than with common data, and a repeatable one."""
    first, second, common = (run(shards=shards) for shards in ("sorted", "sorted", "common"))
    assert torch.equal(final(first), final(second)) and not torch.equal(final(first), final(common))

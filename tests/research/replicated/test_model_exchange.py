"""What is heard of the servers' models, its median, and how far it is apart."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from replicas import BAD, TwoFaced, Vandal
from torch import Tensor

from gyroscope import attacks
from gyroscope.attacks import Attack
from gyroscope.research.replicated import drift, quorums
from gyroscope.research.replicated.model_exchange import ModelExchange, Replication, median


def post(
    models: Tensor, attack: Attack | None = None, *, f: int = 1, quorum: int | None = None, phase: str = "servers",
    before: Tensor | None = None, step: int = 3,
) -> ModelExchange:  # fmt: skip
    byzantine = f if attack else 0
    n = len(models) + byzantine
    replication = Replication(n, byzantine, f, n - f if quorum is None else quorum, 1, attack)
    return ModelExchange(phase, step, 5, models, models.mean(dim=0) if before is None else before, replication, {})


def plain_median(models: list[list[float]]) -> list[float]:
    """By loops: NaN counts as larger than everything; of an even number the mean of both middles."""
    result = []
    for column in zip(*models, strict=True):
        ordered = sorted(column, key=lambda value: (math.isnan(value), value))
        middle = len(ordered) // 2
        odd = len(ordered) % 2
        result.append(ordered[middle] if odd else ordered[middle - 1] / 2 + ordered[middle] / 2)
    return result


PHASES = st.sampled_from(["servers", "workers"])


@given(st.integers(0, 2), st.integers(0, 4), st.integers(1, 9), st.integers(0, 10_000), PHASES)
def test_everyone_takes_the_median_of_those_it_hears(f: int, spare: int, d: int, seed: int, phase: str) -> None:
    models = torch.randn(2 * f + 3 + spare, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    quorum = max(1, 2 * f + 3 + spare // 2)
    attack = Vandal() if f else None
    sent = post(models, attack, f=f, quorum=quorum, phase=phase)
    receivers = len(models) if phase == "servers" else 4
    medians = sent.medians(receivers)
    lies = [] if attack is None else sent._byzantine_models(0, 1).tolist()
    for receiver in range(receivers):
        own = receiver if phase == "servers" else None
        heard = quorums.draw(5, f"models to {phase}", receiver, 3, len(models), quorum - f, own).tolist()
        assert len(heard) + len(lies) == quorum
        expected = plain_median([models[number].tolist() for number in heard] + lies)
        assert medians[receiver].tolist() == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("value", [*BAD, "mixed"])
@pytest.mark.parametrize("f", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_lie_leaves_the_range_of_the_honest_models(value: str, f: int, dtype: torch.dtype) -> None:
    models = torch.randn(2 * f + 3, 17, dtype=dtype, generator=torch.Generator().manual_seed(f))
    for quorum in (2 * f + 3, 2 * f + 3 - f % 2):
        for phase in ("servers", "workers"):
            medians = post(models, Vandal(value), f=f, quorum=quorum, phase=phase).medians(len(models))
            assert bool((medians >= models.min(dim=0).values).all() and (medians <= models.max(dim=0).values).all())


@pytest.mark.parametrize("attack", [None, "nan", "little", "sign-flip:scale=100"])
def test_exchanges_alone_bring_the_servers_together(attack: str | None) -> None:
    """With nothing learned in between: the widest coordinate never widens, and the drift goes to nothing."""
    models = torch.randn(9, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    began = drift.largest_distance(models)
    before = models.mean(dim=0)
    for step in range(40):
        byzantine = None if attack is None else attacks.parse(attack)
        moved = post(models, byzantine, f=2, before=before, step=step).medians(len(models))
        assert bool((moved.amax(dim=0) <= models.amax(dim=0)).all() and (moved.amin(dim=0) >= models.amin(dim=0)).all())
        before, models = models.mean(dim=0), moved
    assert drift.largest_distance(models) < 1e-3 * began


def test_complete_quorums_agree_at_once() -> None:
    models = torch.randn(6, 8)
    medians = post(models, f=0).medians(6)
    assert bool((medians == median(models)).all())
    assert torch.equal(median(models[:1]), models[0])


def test_a_byzantine_server_may_reverse_the_update_or_stand_still() -> None:
    models, before = torch.randn(5, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    mean = models.mean(dim=0)
    reversed_ = post(models, attacks.parse("sign-flip"), before=before).received_by(0, 5)[-1]
    assert torch.allclose(reversed_ - before, before - mean)
    assert torch.equal(post(models, attacks.parse("zero"), before=before).received_by(0, 5)[-1], before)
    little = post(models, attacks.parse("little"), before=before).received_by(0, 5)[-1]
    assert torch.allclose(little, mean - 1.5 * models.std(dim=0))


def test_who_looks_at_the_receiver_tells_each_another_story_and_the_others_do_not() -> None:
    models = torch.randn(5, 8)
    two_faced, random = post(models, TwoFaced(2.0)), post(models, attacks.parse("gaussian"))
    lies = [two_faced.received_by(receiver, 5)[-1] for receiver in range(5)]
    assert torch.equal(lies[0], lies[2]) and torch.allclose(lies[0] - lies[1], torch.full((8,), 4.0))
    noise = [random.received_by(receiver, 5)[-1] for receiver in range(5)]
    assert all(torch.equal(noise[0], other) for other in noise)
    later = post(models, attacks.parse("gaussian"), step=4).received_by(0, 5)[-1]
    to_workers = post(models, attacks.parse("gaussian"), phase="workers").received_by(0, 5)[-1]
    assert not torch.equal(noise[0], later) and not torch.equal(noise[0], to_workers)


def test_the_drift_by_hand() -> None:
    start = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    directions = [torch.tensor([3.0, 4.0]), torch.tensor([0.0, 0.0])]
    updated = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    row = drift.measure(7, 0.5, directions, start, updated, torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    assert set(row) == set(drift.COLUMNS)
    assert row["step"] == 7 and row["drift_before"] == 5 and row["drift_after"] == 1 and row["contraction"] == 0.2
    assert row["step_length"] == 1.25  # half of the mean of 5 and 0
    assert row["relative_before"] == 4 and row["relative_after"] == 0.8
    assert row["disagreement"] == 2.5
    # server 1 stands 1 above server 0, and server 0 steps down by 4 more than server 1: the gap widens, at cosine 4/5
    assert row["alignment"] == pytest.approx(0.8)
    still = drift.measure(0, 0.5, [torch.zeros(2)] * 2, start * 0, start * 0, None)
    assert still["relative_before"] is None and still["contraction"] is None and still["alignment"] is None
    assert drift.largest_distance(torch.zeros(1, 4)) == 0

"""Placements beyond the paper's: kept by the server, fed back, and chosen anew in each round."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import normal, seeds
from torch import Tensor

from gyroscope import Config
from gyroscope.momentum import (
    PLACEMENTS,
    AtWorkers,
    Placement,
    ServerKept,
)
from gyroscope.rules import Krum, Rule
from gyroscope.runs import training

factors = st.floats(0.01, 0.99)
QUICK = Config(task="digits", rule="krum", workers=7, declared_byzantine=2, steps=12, lr="0.1", evaluate_every=4)


def directions(placement: Placement, gradients: list[Tensor], rule: Rule, f: int = 0) -> list[Tensor]:
    state = placement.init(gradients[0])
    result = []
    for rows in gradients:
        sent, state = placement.before(rows, state)
        shown, state = placement.received(sent, state, f, len(rows) - f)
        direction, state = placement.after(rule(shown, f).vector, state)
        result.append(direction)
    return result


@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
@given(seed=seeds, mu=factors)
def test_kept_by_the_server_is_the_same_as_at_the_workers(seed: int, mu: float, nesterov: bool) -> None:
    gradients = [normal(7, 3, seed + step) for step in range(6)]
    kept, at_workers = (
        directions(kind(mu=mu, nesterov=nesterov), gradients, Krum(), 2) for kind in (ServerKept, AtWorkers)
    )
    assert all(torch.equal(a, b) for a, b in zip(kept, at_workers, strict=True))


def test_a_run_with_momentum_kept_by_the_server_is_the_same_to_the_bit() -> None:
    kept, at_workers = (
        training.train(dataclasses.replace(QUICK, momentum=name)) for name in ("server-kept", "workers")
    )
    for name, tensor in kept.model.state_dict().items():
        assert torch.equal(tensor, at_workers.model.state_dict()[name])
    assert kept.metrics.equals(at_workers.metrics)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_a_bad_row_counts_for_its_round_only(bad: float) -> None:
    placement = ServerKept(mu=0.5)
    rows = torch.ones(3, 2)
    _, state = placement.received(rows, placement.init(rows), 1, 3)
    broken = rows.clone()
    broken[1] = bad
    shown, state = placement.received(broken, state, 1, 3)
    assert not bool((shown[1].abs() < 1e38).any()), "the rule must see what was sent"
    shown, state = placement.received(rows, state, 1, 3)
    assert shown[[0, 2]].tolist() == [[1.75, 1.75]] * 2
    if bad != 3e38:  # a finite row is a row: whoever sent it has it in its sum
        assert shown[1].tolist() == [1.5, 1.5]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_run_goes_on_after_an_interruption_as_if_there_was_none(name: str, tmp_path: Path) -> None:
    config = dataclasses.replace(QUICK, momentum=name, byzantine=2, attack="little")
    whole = training.train(config).model.state_dict()
    rounds = iter(range(5))
    training.train(config, out=tmp_path / "run", stop=lambda: next(rounds, None) is None)
    resumed = training.resume(tmp_path / "run")
    assert resumed.status == "complete"
    assert all(torch.equal(tensor, resumed.model.state_dict()[name]) for name, tensor in whole.items())

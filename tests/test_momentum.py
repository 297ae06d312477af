"""Momentum at the server, at the workers and nowhere: against explicit sums and against torch's own optimiser."""

from __future__ import annotations

import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import DTYPES, normal, seeds
from torch import Tensor

from gyroscope import momentum
from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope.momentum import PLACEMENTS, AtServer, AtWorkers, NoMomentum, Placement
from gyroscope.rules import Average, Krum, Rule

by_placement = pytest.mark.parametrize("name", PLACEMENTS)
factors = st.floats(0, 0.999)


def directions(placement: Placement, gradients: list[Tensor], rule: Rule, f: int = 0) -> list[Tensor]:
    """The updates' directions over several steps, as in a round without attack."""
    state = placement.init(gradients[0])
    result = []
    for rows in gradients:
        sent, state = placement.before(rows, state)
        shown, state = placement.received(sent, state, f, len(rows))
        direction, state = placement.after(rule(shown, f).vector, state)
        result.append(direction)
    return result


def steps(seed: int, count: int = 8, n: int = 5, d: int = 3) -> list[Tensor]:
    return [normal(n, d, seed + step) for step in range(count)]


@given(seed=seeds, mu=factors)
def test_at_the_server_the_rules_outputs_are_summed(seed: int, mu: float) -> None:
    gradients = steps(seed)
    outputs = [Krum()(rows, 1).vector.tolist() for rows in gradients]
    for t, direction in enumerate(directions(AtServer(mu=mu), gradients, Krum(), 1)):
        assert direction.tolist() == pytest.approx(oracles.discounted(outputs[: t + 1], mu), abs=1e-12)


@given(seed=seeds, mu=factors)
def test_at_the_workers_each_sums_its_own_gradients(seed: int, mu: float) -> None:
    gradients = steps(seed)
    placement = AtWorkers(mu=mu)
    state = placement.init(gradients[0])
    for t, rows in enumerate(gradients):
        sent, state = placement.before(rows, state)
        for worker, row in enumerate(sent.tolist()):
            own = [past[worker].tolist() for past in gradients[: t + 1]]
            assert row == pytest.approx(oracles.discounted(own, mu), abs=1e-12)
        vector = torch.ones(3)
        assert placement.after(vector, state)[0] is vector


@given(seed=seeds)
def test_without_momentum_nothing_happens(seed: int) -> None:
    gradients = steps(seed)
    got = directions(NoMomentum(mu=0.9), gradients, Krum(), 1)
    assert all(torch.equal(a, Krum()(rows, 1).vector) for a, rows in zip(got, gradients, strict=True))
    assert NoMomentum().init(gradients[0]) == {}


@given(seed=seeds, mu=factors, nesterov=st.booleans())
def test_for_a_linear_rule_server_and_workers_are_the_same(seed: int, mu: float, nesterov: bool) -> None:
    gradients = steps(seed)
    pairs = zip(
        directions(AtServer(mu=mu, nesterov=nesterov), gradients, Average()),
        directions(AtWorkers(mu=mu, nesterov=nesterov), gradients, Average()),
        strict=True,
    )
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in pairs)


def test_for_krum_server_and_workers_differ() -> None:
    gradients = steps(1)
    at_server, at_workers = (directions(kind(mu=0.9), gradients, Krum(), 1)[-1] for kind in (AtServer, AtWorkers))
    assert not torch.allclose(at_server, at_workers)


@pytest.mark.parametrize("kind", [AtServer, AtWorkers], ids=["server", "workers"])
@given(seed=seeds, mu=st.floats(0.01, 0.99), nesterov=st.booleans())
def test_with_the_average_training_is_torchs_sgd(kind: type[Placement], seed: int, mu: float, nesterov: bool) -> None:
    """Five workers with quadratic losses, so that each gradient depends on the steps before."""
    targets, lr = normal(5, 4, seed), 0.07
    theirs = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theirs], lr=lr, momentum=mu, nesterov=nesterov)
    ours = torch.zeros(4, dtype=torch.float64)
    placement = kind(mu=mu, nesterov=nesterov)
    state = placement.init(targets)
    for _ in range(6):
        optimizer.zero_grad()
        (0.5 * (theirs - targets).square().sum(dim=1).mean()).backward()
        optimizer.step()
        sent, state = placement.before(ours - targets, state)
        direction, state = placement.after(Average()(sent, 0).vector, state)
        ours = ours - lr * direction
        assert torch.allclose(ours, theirs.detach(), rtol=0, atol=1e-12)


@by_placement
@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
def test_neither_rows_nor_state_are_changed_in_place(name: str, nesterov: bool) -> None:
    if nesterov and name not in ("workers", "server", "server-kept"):
        return
    placement = momentum.make(name, 0.9, nesterov)
    state = placement.init(normal(4, 3, seed=0))
    for step in range(3):
        rows, vector = normal(4, 3, seed=step), normal(1, 3, seed=step + 10)[0]
        kept = (rows.clone(), vector.clone(), {key: value.clone() for key, value in state.items()})
        after_before = placement.received(rows, placement.before(rows, state)[1], 1, 3)[1]
        between = {key: value.clone() for key, value in after_before.items()}
        after = placement.after(vector, after_before)[1]
        assert torch.equal(rows, kept[0]) and torch.equal(vector, kept[1])
        assert all(torch.equal(state[key], kept[2][key]) for key in state)
        assert all(torch.equal(after_before[key], between[key]) for key in between)
        state = after


@by_placement
@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
def test_the_dtype_is_kept(name: str, dtype: torch.dtype) -> None:
    placement = PLACEMENTS[name]()
    rows = normal(4, 3, seed=0, dtype=dtype)
    state = placement.init(rows)
    sent, state = placement.before(rows, state)
    shown, state = placement.received(sent, state, 1, 3)
    direction, state = placement.after(shown[0], state)
    assert sent.dtype == shown.dtype == direction.dtype == dtype
    vectors = [value for value in state.values() if value.shape[-1:] == (3,)]
    assert all(value.dtype == dtype for value in vectors) and (vectors or name == "none")


@by_placement
def test_a_state_that_is_kept_can_be_replayed(name: str) -> None:
    placement = PLACEMENTS[name](mu=0.8)
    rows = normal(4, 3, seed=0)
    _, state = placement.before(rows, placement.init(rows))
    _, state = placement.received(rows, state, 1, 3)
    _, state = placement.after(rows[0], state)
    assert torch.equal(placement.received(rows, state, 1, 3)[0], placement.received(rows, state, 1, 3)[0])
    assert torch.equal(placement.before(rows, state)[0], placement.before(rows, state)[0])
    assert torch.equal(placement.after(rows[1], state)[0], placement.after(rows[1], state)[0])


def test_momentum_is_not_dampened() -> None:
    placement = AtServer(mu=0.5)
    state = placement.init(torch.zeros(1, 1))
    seen = []
    for _ in range(3):
        direction, state = placement.after(torch.ones(1), state)
        seen.append(direction.item())
    assert seen == [1.0, 1.5, 1.75]


@by_placement
@pytest.mark.parametrize("mu", [1, 1.5, -0.1, math.nan, math.inf, True, "0.9", None], ids=repr)
def test_mu_is_at_least_zero_and_below_one(name: str, mu: object) -> None:
    with pytest.raises(ConfigError, match="mu must be at least 0 and below 1"):
        momentum.make(name, mu)  # type: ignore[arg-type]


def test_wrong_placements_are_refused() -> None:
    with pytest.raises(ConfigError, match="nesterov needs a momentum"):
        momentum.make("none", nesterov=True)
    with pytest.raises(UnknownNameError, match="did you mean 'workers'"):
        momentum.make("worker")


def test_make_builds_the_named_placement() -> None:
    assert momentum.make("workers", 0.5) == AtWorkers(mu=0.5)
    assert momentum.make("server", 0.99, True) == AtServer(mu=0.99, nesterov=True)
    assert all(kind.name == name and kind.summary and kind.paper for name, kind in PLACEMENTS.items())

"""Placements beyond the paper's: kept by the server, fed back, and chosen anew in each round."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import normal, seeds
from torch import Tensor

from gyroscope import Config
from gyroscope._core import theory
from gyroscope._core.errors import ConfigError
from gyroscope._linalg.order_statistics import median
from gyroscope.momentum import (
    PLACEMENTS,
    Adaptive,
    AdaptiveOracle,
    AtServer,
    AtWorkers,
    Feedback,
    Placement,
    ServerKept,
)
from gyroscope.research.adaptive.placements import robust_deviation
from gyroscope.rules import Average, Krum, Median, Rule
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


def straight(count: int = 8, n: int = 5) -> list[Tensor]:
    """Much the same mean at every step: past and present point the same way, and momentum lowers the ratio."""
    return [normal(n, 30, seed=step) * 0.1 + 2.0 for step in range(count)]


def to_and_fro(count: int = 8, n: int = 5) -> list[Tensor]:
    """Gradients that turn about at every step: what momentum has gathered points against the next."""
    return [rows * (-1) ** step for step, rows in enumerate(straight(count, n))]


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


@given(seed=seeds, mu=factors)
def test_feedback_is_momentum_at_the_server_where_the_rule_moves_along(seed: int, mu: float) -> None:
    gradients = [normal(5, 3, seed + step) for step in range(6)]
    for rule in (Average(), Median(), Krum()):
        f = 0 if isinstance(rule, Average) else 1
        pairs = zip(
            directions(Feedback(mu=mu), gradients, rule, f),
            directions(AtServer(mu=mu), gradients, rule, f),
            strict=True,
        )
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in pairs)


@pytest.mark.parametrize("kind", [Adaptive, AdaptiveOracle])
def test_adaptive_is_workers_where_the_condition_holds_and_server_where_it_does_not(kind: type[Placement]) -> None:
    for gradients, same, other in ((straight(), AtWorkers, AtServer), (to_and_fro(), AtServer, AtWorkers)):
        got = directions(kind(mu=0.9), gradients, Krum(), 1)
        expected, different = (directions(each(mu=0.9), gradients, Krum(), 1) for each in (same, other))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        assert not torch.allclose(got[-1], different[-1], rtol=1e-3), "else the test would not see the switch"


def test_adaptive_goes_back_and_forth() -> None:
    """The direction carries over: at the server D = mu D + F(g), whichever way the last D was found."""
    gradients = [*straight(3), *to_and_fro(3), *straight(3)]
    placement, mu = Adaptive(mu=0.5), 0.5
    state, kept = placement.init(gradients[0]), torch.zeros_like(gradients[0])
    last, seen = torch.zeros_like(gradients[0][0]), []
    for rows in gradients:
        kept = rows + mu * kept
        shown, state = placement.received(rows, state, 1, 4)
        at_workers = bool(state["at_workers"])
        direction, state = placement.after(Krum()(shown, 1).vector, state)
        last = Krum()(kept, 1).vector if at_workers else mu * last + Krum()(rows, 1).vector
        assert torch.allclose(direction, last)
        seen.append(at_workers)
    assert True in seen and False in seen


ANYTHING = st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38, 0.0, 1.0, -1.0, 1e3, -1e3])


def lies(f: int, times: int = 1) -> st.SearchStrategy[Tensor]:
    """f rows of three values each, written as many times one after the other."""
    rows = st.lists(st.lists(ANYTHING, min_size=3, max_size=3), min_size=f, max_size=f)
    return rows.map(lambda values: torch.tensor(values).view(f, 3).repeat(1, times))


@given(seed=seeds, f=st.integers(0, 4), data=st.data())
def test_what_the_switch_is_judged_by_stays_among_honest_values(seed: int, f: int, data: st.DataObject) -> None:
    n = 2 * f + data.draw(st.integers(2, 5))
    honest = normal(n - f, 3, seed, dtype=torch.float32)
    rows = torch.cat([honest, data.draw(lies(f))])
    middle = median(rows)
    assert bool((middle >= honest.min(dim=0).values).all()) and bool((middle <= honest.max(dim=0).values).all())
    gaps = torch.pdist(honest.double()).square() / 2
    sigma2 = robust_deviation(rows) ** 2
    assert float(gaps.min()) * (1 - 1e-6) <= sigma2 <= float(gaps.max()) * (1 + 1e-6)


@given(f=st.integers(1, 5), data=st.data())
def test_f_rows_of_anything_do_not_steer_the_switch(f: int, data: st.DataObject) -> None:
    """Honest workers that clearly go straight, then clearly turn about: the server sees it, whatever others send."""
    n, d = 2 * f + 3, 60  # with so many coordinates all honest rows are about as far from each other
    placement, oracle = Adaptive(mu=0.9), AdaptiveOracle(mu=0.9)
    states = [placement.init(torch.zeros(n, d)), oracle.init(torch.zeros(n, d))]
    for step in range(4):
        sign = 1.0 if step < 3 else -3.0
        honest = (normal(n - f, d, seed=step, dtype=torch.float32) * 0.01 + 1.0) * sign
        rows = torch.cat([honest, data.draw(lies(f, d // 3))])
        states = [
            each.received(rows, state, f, n - f)[1] for each, state in zip((placement, oracle), states, strict=True)
        ]
        assert [bool(state["at_workers"]) for state in states] == [step < 3] * 2


@given(seed=seeds)
def test_the_robust_deviation_is_about_the_deviation_of_honest_rows(seed: int) -> None:
    rows = normal(25, 400, seed)
    assume(bool(rows.isfinite().all()))
    assert robust_deviation(rows) == pytest.approx(theory.deviation(rows, rows.mean(dim=0)), rel=0.1)
    assert robust_deviation(rows[:1]) == 0.0


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_run_goes_on_after_an_interruption_as_if_there_was_none(name: str, tmp_path: Path) -> None:
    config = dataclasses.replace(QUICK, momentum=name, byzantine=2, attack="little")
    whole = training.train(config).model.state_dict()
    rounds = iter(range(5))
    training.train(config, out=tmp_path / "run", stop=lambda: next(rounds, None) is None)
    resumed = training.resume(tmp_path / "run")
    assert resumed.status == "complete"
    assert all(torch.equal(tensor, resumed.model.state_dict()[name]) for name, tensor in whole.items())


def test_what_only_a_simulation_can_do_is_refused_elsewhere() -> None:
    for name in ("feedback", "adaptive-oracle"):
        with pytest.raises(ConfigError, match="exists in the simulation only"):
            training.train(dataclasses.replace(QUICK, momentum=name), hire=lambda config, honest: honest)

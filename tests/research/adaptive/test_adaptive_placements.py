"""Placements that feed the aggregate back, or switch from round to round: against the placements that they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import DTYPES, normal, seeds
from torch import Tensor

from gyroscope._core import theory
from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope._linalg.order_statistics import median
from gyroscope.momentum import RobustAggregator, WorkerMomentum
from gyroscope.research.adaptive import PLACEMENTS, AdaptiveConfig
from gyroscope.research.adaptive.feedback import FeedbackMomentum, LastAggregate
from gyroscope.research.adaptive.switching import SwitchingAggregator, robust_deviation
from gyroscope.rules import Average, Krum, Median, Rule
from gyroscope.runs import training

factors = st.floats(0.01, 0.99)
QUICK = AdaptiveConfig(
    task="digits", rule="krum", workers=7, declared_byzantine=2, steps=12, lr="0.1", evaluate_every=4
)
Step = Callable[[Tensor], Tensor]
"""From the round's gradients to the direction of the update."""


def at_server(rule: Rule, f: int, n: int, mu: float) -> Step:
    server = RobustAggregator(rule, f, momentum="server", mu=mu)
    return lambda rows: server.step(rows).vector


def at_workers(rule: Rule, f: int, n: int, mu: float) -> Step:
    workers, server = WorkerMomentum(mu), RobustAggregator(rule, f)
    return lambda rows: server.step(workers.update(rows)).vector


def feedback(rule: Rule, f: int, n: int, mu: float) -> Step:
    last = LastAggregate()
    workers, server = FeedbackMomentum(mu, last), RobustAggregator(rule, f, momentum="none")

    def step(rows: Tensor) -> Tensor:
        last.vector = server.step(workers.update(rows)).vector
        return last.vector

    return step


def adaptive(rule: Rule, f: int, n: int, mu: float) -> Step:
    server = SwitchingAggregator(rule, f, mu=mu, seed=0)
    return lambda rows: server.step(rows).vector


def adaptive_oracle(rule: Rule, f: int, n: int, mu: float) -> Step:
    server = SwitchingAggregator(rule, f, mu=mu, seed=0, honest=n - f)
    return lambda rows: server.step(rows).vector


def directions(
    place: Callable[..., Step], gradients: list[Tensor], rule: Rule, f: int = 0, mu: float = 0.9
) -> list[Tensor]:
    """The updates' directions over several steps, as in a round without attack."""
    step = place(rule, f, len(gradients[0]), mu)
    return [step(rows) for rows in gradients]


def straight(count: int = 8, n: int = 5) -> list[Tensor]:
    """Much the same mean at every step: past and present point the same way, and momentum lowers the ratio."""
    return [normal(n, 30, seed=step) * 0.1 + 2.0 for step in range(count)]


def to_and_fro(count: int = 8, n: int = 5) -> list[Tensor]:
    """Gradients that reverse at every step: accumulated momentum points against the next gradient."""
    return [rows * (-1) ** step for step, rows in enumerate(straight(count, n))]


@given(seed=seeds, mu=factors)
def test_feedback_is_momentum_at_the_server_where_the_rule_moves_along(seed: int, mu: float) -> None:
    gradients = [normal(5, 3, seed + step) for step in range(6)]
    for rule in (Average(), Median(), Krum()):
        f = 0 if isinstance(rule, Average) else 1
        pairs = zip(*(directions(place, gradients, rule, f, mu) for place in (feedback, at_server)), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in pairs)


@pytest.mark.parametrize("place", [adaptive, adaptive_oracle])
def test_adaptive_is_workers_where_the_condition_holds_and_server_where_it_does_not(place: Callable[..., Step]) -> None:
    for gradients, same, other in ((straight(), at_workers, at_server), (to_and_fro(), at_server, at_workers)):
        got = directions(place, gradients, Krum(), 1)
        expected, different = (directions(each, gradients, Krum(), 1) for each in (same, other))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        assert not torch.allclose(got[-1], different[-1], rtol=1e-3), "else the test would not see the switch"


def test_adaptive_goes_back_and_forth() -> None:
    """The direction carries over: at the server D = mu D + F(g), however the last D was computed."""
    gradients, mu = [*straight(3), *to_and_fro(3), *straight(3)], 0.5
    server = SwitchingAggregator(Krum(), 1, mu=mu, seed=0)
    kept, last, seen = torch.zeros_like(gradients[0]), torch.zeros_like(gradients[0][0]), []
    for rows in gradients:
        kept = rows + mu * kept
        foreseen = server.preview(rows)
        update = server.step(rows)
        assert torch.equal(update.rows, foreseen), "an attack foresees what the rule is given"
        last = Krum()(kept, 1).vector if server.at_workers else mu * last + Krum()(rows, 1).vector
        assert torch.allclose(update.vector, last)
        seen.append(server.at_workers)
    assert True in seen and False in seen


ANYTHING = st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38, 0.0, 1.0, -1.0, 1e3, -1e3])


def byzantine_rows(f: int, times: int = 1) -> st.SearchStrategy[Tensor]:
    """f rows of three values each, repeated as many times along the row."""
    rows = st.lists(st.lists(ANYTHING, min_size=3, max_size=3), min_size=f, max_size=f)
    return rows.map(lambda values: torch.tensor(values).view(f, 3).repeat(1, times))


@given(seed=seeds, f=st.integers(0, 4), data=st.data())
def test_what_the_switch_is_judged_by_stays_among_honest_values(seed: int, f: int, data: st.DataObject) -> None:
    n = 2 * f + data.draw(st.integers(2, 5))
    honest = normal(n - f, 3, seed, dtype=torch.float32)
    rows = torch.cat([honest, data.draw(byzantine_rows(f))])
    middle = median(rows)
    assert bool((middle >= honest.min(dim=0).values).all()) and bool((middle <= honest.max(dim=0).values).all())
    gaps = torch.pdist(honest.double()).square() / 2
    sigma2 = robust_deviation(rows) ** 2
    assert float(gaps.min()) * (1 - 1e-6) <= sigma2 <= float(gaps.max()) * (1 + 1e-6)


@given(f=st.integers(1, 5), data=st.data())
def test_f_rows_of_anything_do_not_steer_the_switch(f: int, data: st.DataObject) -> None:
    """Honest workers that clearly go straight, then clearly reverse: the server sees it, whatever others send."""
    n, d = 2 * f + 3, 60  # with so many coordinates all honest rows are about as far from each other
    servers = [SwitchingAggregator(Krum(), f, mu=0.9, seed=0, honest=honest) for honest in (None, n - f)]
    for step in range(4):
        sign = 1.0 if step < 3 else -3.0
        honest = (normal(n - f, d, seed=step, dtype=torch.float32) * 0.01 + 1.0) * sign
        rows = torch.cat([honest, data.draw(byzantine_rows(f, d // 3))])
        for server in servers:
            server.step(rows)
        assert [server.at_workers for server in servers] == [step < 3] * 2


@pytest.mark.parametrize("honest", [None, 5], ids=["estimated", "oracle"])
def test_a_round_with_too_few_finite_rows_leaves_the_trajectory_as_it_was(honest: int | None) -> None:
    gradients = straight(6)
    server, undisturbed = (SwitchingAggregator(Median(), 0, mu=0.9, seed=0, honest=honest) for _ in range(2))
    for step, rows in enumerate(gradients):
        if step == 3:
            before = server.state_dict()["trajectory"]
            server.step(torch.full_like(rows, math.nan))
            assert not server.at_workers, "where there is no estimate, the rule is given gradients"
            after = server.state_dict()["trajectory"]
            assert all(torch.equal(torch.as_tensor(before[key]), torch.as_tensor(after[key])) for key in before)
        server.step(rows)
        undisturbed.step(rows)
        assert server.at_workers == undisturbed.at_workers
    assert torch.equal(server.state_dict()["momentum"]["momentum"], undisturbed.state_dict()["momentum"]["momentum"])


@given(seed=seeds)
def test_the_robust_deviation_is_about_the_deviation_of_honest_rows(seed: int) -> None:
    rows = normal(25, 400, seed)
    assume(bool(rows.isfinite().all()))
    assert robust_deviation(rows) == pytest.approx(theory.deviation(rows, rows.mean(dim=0)), rel=0.1)
    assert robust_deviation(rows[:1]) == 0.0


@pytest.mark.parametrize("honest", [None, 4], ids=["estimated", "oracle"])
def test_neither_rows_nor_earlier_results_nor_a_saved_state_change(honest: int | None) -> None:
    server = SwitchingAggregator(Krum(), 1, mu=0.9, seed=0, honest=honest)
    for rows in [*straight(3), *to_and_fro(3)]:
        given_rows, state = rows.clone(), server.state_dict()
        copies = {name: tensor.clone() for name, tensor in flat(state).items()}
        update = server.step(rows)
        results = update.vector.clone(), update.rows.clone()
        server.preview(-rows)
        server.step(-rows)
        assert torch.equal(rows, given_rows)
        assert torch.equal(update.vector, results[0]) and torch.equal(update.rows, results[1])
        assert all(torch.equal(tensor, copies[name]) for name, tensor in flat(state).items())
        server.load_state_dict(state)
        again = server.step(rows)
        assert torch.equal(again.vector, results[0]) and torch.equal(again.rows, results[1])


def flat(state: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": torch.as_tensor(value)
        for name in ("momentum", "direction", "trajectory")
        for key, value in state[name].items()
    }


@pytest.mark.parametrize("place", [feedback, adaptive, adaptive_oracle])
@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
def test_the_dtype_is_kept(place: Callable[..., Step], dtype: torch.dtype) -> None:
    got = directions(place, [normal(5, 3, seed=step, dtype=dtype) for step in range(3)], Krum(), 1)
    assert {direction.dtype for direction in got} == {dtype}


@pytest.mark.parametrize("name", AdaptiveConfig.placements)
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
            training.train(dataclasses.replace(QUICK, momentum=name), worker_factory=lambda config, honest: honest)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_wrong_placements_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no look-ahead form"):
        AdaptiveConfig(momentum=name, nesterov=True)
    with pytest.raises(ConfigError, match="mu must be at least 0 and below 1"):
        AdaptiveConfig(momentum=name, mu=1.0).resolve()
    with pytest.raises(UnknownNameError, match=f"did you mean '{name}'"):
        AdaptiveConfig(momentum=name[:-1]).resolve()
    assert PLACEMENTS[name].name == name and PLACEMENTS[name].summary and PLACEMENTS[name].paper

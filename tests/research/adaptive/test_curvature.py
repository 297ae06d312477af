"""Momentum factors and learning rates that follow the trajectory: against sums over the whole past, written out."""

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

from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope.research.adaptive import AdaptiveConfig
from gyroscope.research.adaptive.curvature import ADAPTATIONS, CurvatureSchedule
from gyroscope.runs import training

QUICK = AdaptiveConfig(
    task="digits", rule="median", workers=7, declared_byzantine=2, steps=12, lr="0.1", evaluate_every=4
)


def walk(
    gradients: list[Tensor], places: list[Tensor], mu: float, accumulated: bool = False, adapts: str = "mu+lr"
) -> list[tuple[float, float]]:
    """(mu, rate) chosen for each step from the second on. All workers send the same row, so that it is the median."""
    schedule, state = CurvatureSchedule(adapts, mu), {}
    sent, chosen = torch.zeros_like(gradients[0]), []
    for gradient, place in zip(gradients, places, strict=True):
        sent = gradient + mu * sent if accumulated else gradient
        state = dict(schedule.observe(state, sent.repeat(3, 1), place, mu, accumulated))
        hyperparameters = schedule.hyperparameters(state)
        chosen.append((hyperparameters.mu, hyperparameters.rate))
    return chosen


def naive(gradients: list[Tensor], places: list[Tensor], mu: float, safe: bool) -> list[tuple[float, float]]:
    """The docstring's words with explicit sums over the past."""
    chosen = [(mu, 1.0)]
    rate, lipschitz = 1.0, math.nan
    for t in range(1, len(gradients)):
        past = sum(mu ** (t - u) * gradients[u] for u in range(t))
        assert isinstance(past, Tensor)
        straightness = 2 * float(gradients[t] @ past)
        bound = sum(
            mu ** (t - u)
            * float(
                gradients[t].square().sum()
                + gradients[u].square().sum()
                - lipschitz**2 * (places[t] - places[u]).square().sum()
            )
            for u in range(t)
        )
        lengths = sum(
            mu ** (t - u) * float(gradients[t] @ gradients[t] + gradients[u] @ gradients[u]) for u in range(t)
        )
        below = bound - 1e-6 * lengths < 0 if safe else straightness < bound - 1e-6 * lengths
        rate = max(0.01, rate * 0.7) if below else min(1.0, rate * 1.02)
        quotient = float((gradients[t] - gradients[t - 1]).norm() / (places[t] - places[t - 1]).norm())
        lipschitz = quotient if math.isnan(lipschitz) else 0.9 * lipschitz + 0.1 * quotient
        cosine = float(gradients[t] @ past) / float(gradients[t].norm() * past.norm())
        chosen.append((mu * min(1.0, 1.0 + cosine), rate))
    return chosen


@pytest.mark.parametrize("accumulated", [False, True], ids=["gradients", "momentum"])
@given(seed=seeds, mu=st.floats(0.1, 0.95), safe=st.booleans())
def test_it_is_the_sums_over_the_whole_past(seed: int, mu: float, safe: bool, accumulated: bool) -> None:
    gradients = list(normal(9, 4, seed))
    places = list(normal(9, 4, seed + 1).cumsum(dim=0))
    adapts = "mu+safe-lr" if safe else "mu+lr"
    got, expected = walk(gradients, places, mu, accumulated, adapts), naive(gradients, places, mu, safe)
    for (mu_, rate), (mu_expected, rate_expected) in zip(got, expected, strict=True):
        assert mu_ == pytest.approx(mu_expected, abs=1e-9)
        assert rate == pytest.approx(rate_expected, abs=1e-12)


def test_noise_is_taken_off_the_first_gradient_as_off_every_other() -> None:
    """Two steps by hand in one dimension, mu = 0.9, whose outcome hangs on the first squared norm.

    Rows 1 - a, 1, 1 + a have the robust variance a^2 / 2, so that a = 2 is more noise than the gradient is long. Later
    rows are equal: 0.5 and 0, at the places 1 and 1.5. l is 0.5 after the first step; then the bound is
    0.9 * 0.25 + 0.81 * 0 - 0.25 * (0.9 * 0.25 + 0.81 * 2.25) < 0; with 0.81 * 1 in place of 0.81 * 0 it is above.
    """
    schedule, state = CurvatureSchedule("safe-lr", 0.9), {}
    for rows, place in (([-1.0, 1.0, 3.0], 0.0), ([0.5] * 3, 1.0), ([0.0] * 3, 1.5)):
        state = dict(schedule.observe(state, torch.tensor(rows).unsqueeze(1), torch.tensor([place]), 0.9, False))
    assert schedule.hyperparameters(state).rate == pytest.approx(0.7)


@pytest.mark.parametrize("rule", ["median", "krum"])
def test_with_feedback_it_sees_the_trajectory_of_momentum_at_the_server(rule: str) -> None:
    """They are the same but for rounding where the rule moves along with its rows, and so must the choices be."""
    config = dataclasses.replace(QUICK, adapt="mu+safe-lr", lr="4", rule=rule)
    fed, served = (training.train(dataclasses.replace(config, momentum=place)) for place in ("feedback", "server"))
    assert served.metrics["mu"].min() < 0.9 and served.metrics["lr"].min() < 4
    for column in ("mu", "lr"):
        assert list(fed.metrics[column][:6]) == pytest.approx(list(served.metrics[column][:6]), rel=1e-3)


def test_straight_on_nothing_changes_and_turning_about_momentum_vanishes() -> None:
    ahead, places = torch.tensor([1.0, 2.0]), [torch.tensor([float(step), 0.0]) for step in range(6)]
    assert walk([ahead] * 6, places, 0.9) == [(0.9, 1.0)] * 6
    turned = walk([ahead] * 5 + [-ahead], places, 0.9)
    assert turned[-2] == (0.9, 1.0) and turned[-1][0] == pytest.approx(0.0, abs=1e-6)
    assert turned[-1][1] == pytest.approx(0.7)


@pytest.mark.slow
@pytest.mark.parametrize("adapt", ADAPTATIONS[1:])
@pytest.mark.parametrize("placement", ["workers", "server", "server-kept", "feedback", "adaptive", "none"])
def test_any_placement_can_use_it_and_resume(adapt: str, placement: str, tmp_path: Path) -> None:
    config = dataclasses.replace(QUICK, adapt=adapt, momentum=placement, lr="4", byzantine=2, attack="empire")
    whole = training.train(config)
    assert whole.metrics["mu"].between(0, 0.9).all() and whole.metrics["lr"].between(0.04, 4).all()
    assert ("mu" in adapt) == (whole.metrics["mu"].min() < 0.9)  # so large a rate makes it turn
    if adapt not in ("lr", "mu+lr"):  # here their bound is too low to be crossed
        assert ("safe-lr" in adapt) == (whole.metrics["lr"].min() < 4)
    rounds = iter(range(5))
    training.train(config, out=tmp_path / "run", stop=lambda: next(rounds, None) is None)
    resumed = training.resume(tmp_path / "run").model.state_dict()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.model.state_dict().items())


@pytest.mark.parametrize("accumulated", [False, True], ids=["gradients", "momentum"])
def test_a_round_without_a_finite_median_changes_nothing(accumulated: bool) -> None:
    """Half of the rows or more are NaN. Fewer of them leave the median among the others' values."""
    schedule, gradients = CurvatureSchedule("mu+lr", 0.9), list(normal(4, 3, seed=5))
    state: dict[str, Tensor] = {}
    for number, gradient in enumerate(gradients):
        rows, place = gradient.repeat(5, 1), torch.full((3,), float(number))
        state = dict(schedule.observe(state, rows, place, 0.9, accumulated))
        rows[:3] = math.nan
        assert schedule.observe(state, rows, place + 1, 0.9, accumulated) is state
        rows = torch.cat([rows[2:], rows[3:]])
        after = schedule.observe(state, rows, place + 1, 0.9, accumulated)
        assert after is not state and all(bool(after[name].isfinite().all()) for name in after if name != "sums")
    first = gradients[0].repeat(5, 1)
    first[:3] = math.inf
    assert schedule.observe({}, first, torch.zeros(3), 0.9, accumulated) == {}


def test_without_it_the_factor_is_constant() -> None:
    metrics = training.train(QUICK).metrics
    assert set(metrics["mu"]) == {0.9} and set(metrics["lr"]) == {0.1}


@pytest.mark.parametrize(("adapt", "near"), [("my", "mu"), ("lx", "lr")])
def test_an_unknown_adaptation_gets_the_nearest_one_suggested(adapt: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean '{near}'"):
        AdaptiveConfig(adapt=adapt)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="adaptation"):
        AdaptiveConfig(adapt="momentum")
    with pytest.raises(UnknownNameError, match="adaptation"):
        CurvatureSchedule("mi", 0.9)
    with pytest.raises(ConfigError, match="look-ahead"):
        AdaptiveConfig(adapt="mu", nesterov=True)

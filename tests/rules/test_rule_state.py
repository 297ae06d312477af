"""Rules with state, and rules with a trusted gradient: several rounds against the oracles, and by hand."""

from __future__ import annotations

import math

import context_oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import normal, seeds
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope.attacks import Little
from gyroscope.rules import CenteredClipping, FLTrust, Rule, RuleContext, RuleState, SafeGuard, Zeno, parse

nan, inf = math.nan, math.inf
BAD = [nan, inf, -inf, 3e38]


def rounds(rule: Rule, every: list[Tensor], f: int) -> list[Tensor]:
    """The rule's vector in each round."""
    state: RuleState = {}
    vectors = []
    for step, rows in enumerate(every):
        (vector, _), state = rule.step(rows, f, RuleContext(step, 0, state))
        vectors.append(vector)
    return vectors


@st.composite
def histories(draw: st.DrawFn, count: int = 6) -> tuple[list[Tensor], int]:
    """Draw the rows of some rounds around a mean that moves, up to f of them bad in each."""
    f = draw(st.integers(0, 2))
    n, d = 2 * f + 1 + draw(st.integers(0, 4)), draw(st.sampled_from([1, 3, 20]))
    every = []
    for step in range(count):
        rows = 5 * normal(1, d, seed=step) + normal(n, d, draw(seeds))
        for place in draw(st.permutations(range(n)))[: draw(st.integers(0, f))]:
            rows[place] = draw(st.sampled_from([*BAD, 7.0]))
        every.append(rows)
    return every, f


# --------------------------------------------------------------------------------------- centered clipping


@pytest.mark.parametrize(
    "spec", ["centered-clipping", "centered-clipping:tau=1.5,iterations=3", "centered-clipping:start=zero,tau=0.5"]
)
@given(history=histories())
@settings(max_examples=30)
def test_centered_clipping_goes_on_from_its_last_result(spec: str, history: tuple[list[Tensor], int]) -> None:
    rule = parse(spec)
    assert isinstance(rule, CenteredClipping)
    every, f = history
    centre = None
    for rows, vector in zip(every, rounds(rule, every, f), strict=True):
        centre = context_oracles.centered_clipping(rows.tolist(), rule.tau, rule.iterations, rule.start, centre)
        assert vector.tolist() == pytest.approx(centre, rel=1e-9, abs=1e-9)


def test_centered_clipping_by_hand() -> None:
    rows = torch.tensor([[0.0], [2.0], [4.0], [100.0], [nan]])
    # From the median 4 with the median distance 4 as radius: -4, -2, 0, +4, and nothing for NaN.
    assert CenteredClipping()(rows, 2).vector.item() == pytest.approx(4 + (-4 - 2 + 0 + 4) / 5)
    assert CenteredClipping(tau=1.0, start="zero")(rows, 2).vector.item() == pytest.approx((0 + 1 + 1 + 1) / 5)


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_f_rows_move_centered_clipping_by_f_over_n_of_the_radius(bad: float) -> None:
    honest = 3 + normal(9, 6, seed=3)
    state = {"centre": honest.mean(dim=0)}
    rule = CenteredClipping(tau=2.0)
    clean = rule(honest, 2, RuleContext(state=state)).vector
    rows = honest.clone()
    rows[:2] = bad
    assert (rule(rows, 2, RuleContext(state=state)).vector - clean).norm() <= 2 * 2 * 2.0 / 9 + 1e-12


def test_centered_clipping_from_zero_takes_rounds_to_arrive_and_from_the_median_none() -> None:
    every = [10 + normal(9, 4, seed=step) for step in range(20)]
    slow = rounds(CenteredClipping(tau=2.0, start="zero"), every, 2)
    quick = rounds(CenteredClipping(tau=2.0), every, 2)
    assert (slow[0] - 10).norm() > 17 and (slow[-1] - 10).norm() < 2 and (quick[0] - 10).norm() < 2


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"tau": 0.0}, "positive, finite number or 'median', got 0"),
        ({"tau": "mean"}, "got 'mean'"),
        ({"tau": inf}, "got inf"),
        ({"tau": True}, "got True"),
        ({"iterations": 0}, "at least 1, got 0"),
        ({"iterations": 1.0}, "got 1.0"),
        ({"start": "mean"}, "'median' or 'zero', got 'mean'"),
    ],
)
def test_centered_clipping_refuses_wrong_parameters(parameters: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CenteredClipping(**parameters)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ safeguard


@pytest.mark.parametrize("spec", ["safeguard", "safeguard:short=2,long=5", "safeguard:short=3,long=4,factor=1.1"])
@given(history=histories(count=12))
@settings(max_examples=30)
def test_safeguard_follows_the_sums(spec: str, history: tuple[list[Tensor], int]) -> None:
    rule = parse(spec)
    assert isinstance(rule, SafeGuard)
    every, f = history
    guard = context_oracles.Guard(rule.short, rule.long, rule.factor)
    state: RuleState = {}
    for step, rows in enumerate(every):
        (vector, weight), state = rule.step(rows, f, RuleContext(step, 0, state))
        expected, kept = guard.play(rows.tolist())
        assert weight is not None
        assert set(weight.nonzero().flatten().tolist()) == kept
        assert vector.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_safeguard_detects_a_small_and_steady_deviation_that_one_round_does_not_show() -> None:
    rule = SafeGuard(short=40, long=400)
    state: RuleState = {}
    shares = []
    for step in range(40):
        rows = normal(9, 200, seed=step)
        rows[7:] = Little(factor=0.7)(rows[:7], 2)
        (_, weight), state = rule.step(rows, 2, RuleContext(step, 0, state))
        assert weight is not None
        shares.append(float(weight[7:].sum()))
        assert (weight[:7] > 0).all(), "an honest worker was left out"
    assert shares[0] > 0 and shares[-1] == 0


def test_safeguard_forgives_at_the_end_of_the_long_window_and_an_absence_at_once() -> None:
    rule = SafeGuard(short=2, long=4)
    state: RuleState = {}
    taken = []
    for step in range(9):
        rows = normal(7, 50, seed=step)
        if step == 0:
            rows[6] = 3e38
        if step in (1, 2):
            rows[5] = nan
        (_, weight), state = rule.step(rows, 3, RuleContext(step, 0, state))
        assert weight is not None
        taken.append([float(weight[6]) > 0, float(weight[5]) > 0])
    assert [seventh for seventh, _ in taken] == [False] * 4 + [True] * 5
    assert [sixth for _, sixth in taken] == [True, False, False] + [True] * 6


@pytest.mark.parametrize(
    ("parameters", "says"),
    [({"short": 0}, "the short of"), ({"long": 1.5}, "the long of"), ({"factor": 0.5}, "the factor of"),
     ({"factor": nan}, "the factor of"), ({"short": True}, "the short of")],
)  # fmt: skip
def test_safeguard_refuses_wrong_parameters(parameters: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SafeGuard(**parameters)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------- with a trusted gradient


def trusting(rule: Rule, rows: Tensor, f: int, trusted: Tensor) -> tuple[Tensor, Tensor]:
    vector, weight = rule(rows, f, RuleContext(trusted=trusted))
    assert weight is not None
    return vector, weight


@pytest.mark.parametrize("rho", [0.005, 0.5])
@given(history=histories(count=1), seed=seeds)
def test_zeno_takes_the_n_f_of_highest_score(rho: float, history: tuple[list[Tensor], int], seed: int) -> None:
    (rows,), f = history
    trusted = normal(1, rows.shape[1], seed)[0]
    vector, weight = trusting(Zeno(rho=rho), rows, f, trusted)
    expected, chosen, _ = context_oracles.zeno(rows.tolist(), f, trusted.tolist(), rho)
    assert sorted(chosen) == weight.nonzero().flatten().tolist()
    assert vector.isfinite().all()
    assert vector.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(history=histories(count=1), seed=seeds)
def test_fltrust_weighs_by_the_cosine(history: tuple[list[Tensor], int], seed: int) -> None:
    (rows,), f = history
    trusted = normal(1, rows.shape[1], seed)[0]
    vector, weight = trusting(FLTrust(), rows, f, trusted)
    expected, scores = context_oracles.fltrust(rows.tolist(), trusted.tolist())
    total = sum(scores) or 1.0
    assert weight.tolist() == pytest.approx([score / total for score in scores], abs=1e-12)
    assert vector.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert vector.norm() <= trusted.norm() * (1 + 1e-12) and vector @ trusted >= 0


@pytest.mark.parametrize("rule", [Zeno(), FLTrust()], ids=str)
@pytest.mark.parametrize("bad", [nan, inf, -inf, -3e38, 0.0], ids=str)
def test_one_honest_worker_is_enough_with_a_trusted_gradient(rule: Rule, bad: float) -> None:
    trusted = 1 + 0.1 * normal(1, 6, seed=0)[0]
    rows = torch.full((7, 6), bad, dtype=torch.float64)
    rows[1::2] = -trusted if math.isfinite(bad) else bad
    rows[3] = trusted
    vector, weight = trusting(rule, rows, 6, trusted)
    assert weight[3] == 1
    torch.testing.assert_close(vector, trusted)


def test_fltrust_with_nobody_to_trust_is_the_trusted_gradient() -> None:
    trusted = torch.tensor([1.0, 2.0])
    for rows in (-trusted.repeat(3, 1), torch.zeros(3, 2), torch.full((3, 2), nan)):
        vector, weight = trusting(FLTrust(), rows, 1, trusted)
        assert torch.equal(vector, trusted) and not weight.any()
        assert vector.data_ptr() != trusted.data_ptr()


@pytest.mark.parametrize("rule", [Zeno(), FLTrust(), parse("nnm+zeno"), parse("round-robin:fltrust/krum")], ids=str)
def test_without_a_trusted_gradient_the_error_names_the_remedy(rule: Rule) -> None:
    rows = normal(7, 3, seed=0)
    with pytest.raises(ConfigError, match="trusted = 100"):
        rule(rows, 1)
    with pytest.raises(ConfigError, match="must have the rows' d = 3 values"):
        rule(rows, 1, RuleContext(trusted=torch.ones(4)))


@pytest.mark.parametrize("rho", [0.0, -1.0, nan, inf, "x", True], ids=repr)
def test_zeno_refuses_a_wrong_rho(rho: object) -> None:
    with pytest.raises(ConfigError, match="the rho of 'zeno' must be a positive"):
        Zeno(rho=rho)  # type: ignore[arg-type]

"""What a rule guarantees if at most f rows hold arbitrary values: NaN, inf, 3e38, copies of others, agreed rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import BAD, DTYPES, NON_FINITE, RESILIENT_SPECS, Problem, collusions, normal, problems, seeds
from torch import Tensor

from gyroscope._linalg.distances import squared_distances
from gyroscope.attacks import ATTACKS
from gyroscope.rules import RULES, Rule, parse, smea

by_name = pytest.mark.parametrize("name", RULES)
SEARCHES_CUT_SHORT = ["mda:limit=1", "smea:limit=1"]
by_resilient_spec = pytest.mark.parametrize("spec", [*RESILIENT_SPECS, *SEARCHES_CUT_SHORT])
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])


def assert_guarantee(rule: Rule, problem: Problem, vector: Tensor) -> None:
    """Assert that the vector is where the rule guarantees it to be, whichever rows are bad."""
    assert vector.isfinite().all()
    result, honest = vector.double(), problem.honest.double()
    factor, rounding = rule.bound_factor(problem.n, problem.f), problem.tolerance(rule)
    if rule.guarantee == "range":
        low, high = honest.amin(dim=0), honest.amax(dim=0)
        widened = factor * (high - low) + rounding
        assert (result >= low - widened).all() and (result <= high + widened).all()
    elif rule.guarantee == "distance":
        center = honest.mean(dim=0)
        farthest = (honest - center).norm(dim=1).max()
        assert (result - center).norm() <= factor * farthest + rounding * len(result) ** 0.5
    elif rule.guarantee == "norm":
        assert result.norm() <= factor * honest.norm(dim=1).max() + rounding * len(result) ** 0.5


@by_name
def test_a_rule_has_a_bound_factor_if_its_guarantee_needs_one(name: str) -> None:
    kind = RULES[name]
    assert kind.resilient == (kind.guarantee != "none")
    rule = kind()
    factors = [rule.bound_factor(rule.min_workers(f) + extra, f) for f in range(6) for extra in range(6)]
    if kind.guarantee in ("finite", "none"):
        assert set(factors) == {0.0}, "a factor, but no guarantee that uses it"
    else:
        assert all(0 <= factor < float("inf") for factor in factors)
        assert kind.guarantee == "range" or min(factors[6:]) > 0  # with f = 0 the result may be exactly the mean


@by_resilient_spec
@given(data=st.data())
@settings(max_examples=30)
def test_keeps_its_guarantee_whatever_f_rows_hold(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, bad=BAD))
    assert_guarantee(rule, problem, problem.apply(rule).vector)


@by_resilient_spec
@given(data=st.data())
@settings(max_examples=60)
def test_keeps_its_guarantee_against_f_colluding_rows(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(collusions(rule))
    assert_guarantee(rule, problem, problem.apply(rule).vector)


@by_resilient_spec
@pytest.mark.parametrize("attack", ["chain", "decoy"])
@given(seed=seeds, f=st.integers(1, 6), extra=st.integers(0, 4), offset=st.sampled_from([0.0, 0.3, 3.0]))
@settings(max_examples=10)
def test_keeps_its_guarantee_against_attacks_on_how_rules_find_outliers(
    spec: str, attack: str, seed: int, f: int, extra: int, offset: float
) -> None:
    rule = parse(spec)
    n = rule.min_workers(f) + extra
    rows = normal(n, 20, seed) + offset
    rows[-f:] = ATTACKS[attack]()(rows[:-f], f)
    problem = Problem(rows, f, tuple(range(n - f, n)))
    assert_guarantee(rule, problem, problem.apply(rule).vector)


def hard_rows(kind: str, n: int, f: int) -> Tensor:
    """Return rows among which a search has much to decide: all alike, or in groups."""
    if kind == "orthogonal":
        return torch.eye(n, dtype=torch.float64)
    if kind == "opposite":
        half = torch.eye(n // 2 + 1, dtype=torch.float64)
        return torch.cat([half, -half])[:n]
    if kind == "sphere":
        return torch.nn.functional.normalize(normal(n, 40, seed=n))
    if kind == "clusters":
        return 10 * normal(5, 20, seed=f).repeat(n // 5 + 1, 1)[:n] + 0.1 * normal(n, 20, seed=n)
    if kind == "orthogonal liars":
        return torch.cat([normal(n - f, n, seed=f), n**0.5 * torch.eye(n, dtype=torch.float64)[:f]])
    assert kind == "grid", kind
    return normal(n, 3, seed=f).round()


@pytest.mark.parametrize("kind", ["orthogonal", "opposite", "sphere", "clusters", "orthogonal liars", "grid"])
@pytest.mark.parametrize(
    "spec",
    [pytest.param(spec, marks=[pytest.mark.slow] if spec == "smea" else []) for spec in RESILIENT_SPECS]
    + SEARCHES_CUT_SHORT,
)
def test_no_rows_stop_a_rule(spec: str, kind: str) -> None:
    rule = parse(spec)
    for n, f in [(30, 10), (51, 12), (51, 24)]:
        if n >= rule.min_workers(f):
            problem = Problem(hard_rows(kind, n, f), f, tuple(range(n - f, n)))
            assert_guarantee(rule, problem, problem.apply(rule).vector)


@pytest.mark.parametrize(("n", "f"), [(30, 10), (51, 12)])
def test_the_search_of_smea_takes_the_steps_that_it_says(n: int, f: int) -> None:
    for kind, limit in itertools.product(["orthogonal", "sphere"], [1, 100, 20_000]):
        search = smea._Search(squared_distances(hard_rows(kind, n, f)).numpy(), np.arange(n - f))
        search.run(limit)
        assert limit <= search.steps <= limit + smea._BATCH * (1 + smea._steps(n - f))  # a batch is not split


@by_resilient_spec
@by_dtype
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3e38, -3e38, 1e10], ids=str)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_f_rows_of_one_bad_value_are_survived(spec: str, dtype: torch.dtype, value: float, first: bool) -> None:
    rule = parse(spec)
    for f in (1, 3):
        n = rule.min_workers(f)
        rows = normal(n, 5, seed=f, dtype=dtype)
        suspects = [i for i in range(n) if i not in rule.trusts(n)]
        bad = suspects[:f] if first else suspects[-f:]
        rows[bad] = value
        problem = Problem(rows, f, tuple(bad))
        assert_guarantee(rule, problem, problem.apply(rule).vector)


@by_resilient_spec
@given(data=st.data())
def test_non_finite_rows_have_no_share(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, bad=NON_FINITE))
    vector, weight = problem.apply(rule)
    assert vector.isfinite().all()
    if weight is not None:
        assert (weight[list(problem.bad)] == 0).all()

"""Symmetries and special cases: each rule has them all except the unsupported ones, and those it really lacks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import RULE_PRECISION
from strategies import RULE_SPECS, Problem, assume_clear, matrices, normal, problems, seeds, with_property

from gyroscope.rules import RULES, Rule, parse
from gyroscope.rules.base import Property

UNSUPPORTED = [(name, wanted) for name, kind in RULES.items() for wanted in kind.unsupported]


@pytest.mark.parametrize("spec", with_property("permutation"))
@given(data=st.data())
def test_the_order_of_the_rows_does_not_matter(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, kind="normal", dtype=torch.float64))
    assume_clear(rule, problem)
    order = torch.randperm(problem.n, generator=torch.Generator().manual_seed(data.draw(seeds)))
    vector, weight = problem.apply(rule)
    permuted, permuted_weight = Problem(problem.rows[order], problem.f).apply(rule)
    assert (vector - permuted).abs().max() <= problem.tolerance(rule)
    if weight is not None:
        assert permuted_weight is not None
        assert torch.allclose(weight[order], permuted_weight, rtol=0, atol=max(1e-12, RULE_PRECISION.get(rule.name, 0)))


@pytest.mark.parametrize("spec", with_property("scale"))
@given(data=st.data())
def test_scaling_the_rows_scales_the_result(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, kind="normal", dtype=torch.float64))
    vector = problem.apply(rule).vector
    for power in (-20, 1, 30):  # a power of two changes no digit of the input
        scaled = Problem(problem.rows * 2.0**power, problem.f).apply(rule).vector / 2.0**power
        assert (scaled - vector).abs().max() <= problem.tolerance(rule)
    assume_clear(rule, problem)
    factor = data.draw(st.floats(0.01, 100))
    scaled = Problem(problem.rows * factor, problem.f).apply(rule).vector
    assert (scaled - vector * factor).abs().max() <= problem.tolerance(rule) * factor


@pytest.mark.parametrize("spec", with_property("translation"))
@given(data=st.data())
def test_moving_the_rows_moves_the_result(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    f = data.draw(st.integers(0, 2))
    rows = data.draw(matrices(rule.min_workers(f) + 1, kind="offset", dtype=torch.float64)) - 1e4
    problem = Problem(rows, f)
    assume_clear(rule, problem)
    shift = normal(1, rows.shape[1], data.draw(seeds))[0]
    moved = Problem(rows + shift, f).apply(rule).vector
    assert (moved - (problem.apply(rule).vector + shift)).abs().max() < max(1e-12, problem.tolerance(rule))


@pytest.mark.parametrize("spec", with_property("mean at f = 0"))
@given(data=st.data())
def test_with_nobody_to_be_tolerated_it_is_the_mean(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, max_f=0))
    error = problem.apply(rule).vector.double() - problem.rows.double().mean(dim=0)
    assert error.abs().max() <= problem.rounding


@pytest.mark.parametrize("spec", with_property("ties"))
def test_rows_that_are_one_expanded_row_give_that_row(spec: str) -> None:
    rule = parse(spec)
    row = torch.tensor([1.0, -2.0, 4.0])
    for f in (0, 2):
        problem = Problem(row.expand(rule.min_workers(f), 3), f)
        assert (problem.apply(rule).vector - row).abs().max() <= problem.rounding


@pytest.mark.parametrize("spec", RULE_SPECS)
def test_all_zero_rows_give_zero(spec: str) -> None:
    rule = parse(spec)
    for f in (0, 2):
        assert not Problem(torch.zeros(rule.min_workers(f), 4), f).apply(rule).vector.any()


def on_nothing(rule: Rule) -> None:
    """Run the rule on a device without values: reading one, as waiting for a GPU does, is an error."""
    n = max(19, rule.min_workers(3))
    aggregate = Problem(torch.empty(n, 40, device="meta"), 3).apply(rule)
    assert aggregate.vector.device.type == "meta" and aggregate.vector.shape == (40,)
    assert aggregate.weight is None or aggregate.weight.shape == (n,)


@pytest.mark.parametrize("spec", with_property("asynchronous"))
def test_never_waits_for_a_device_inside(spec: str) -> None:
    on_nothing(parse(spec))


# ------------------------------------------------------------------------------------------ unsupported


def violates(rule: Rule, wanted: Property, seed: int) -> bool:
    """Return whether the rule clearly lacks the property on the rows of that seed."""
    f = 0 if wanted == "mean at f = 0" else seed % 3
    rows = 3 + normal(rule.min_workers(f) + 2, 4, seed)
    vector = Problem(rows, f).apply(rule).vector
    if wanted == "permutation":
        other, expected = Problem(rows.flip(0), f).apply(rule).vector, vector
    elif wanted == "translation":
        other, expected = Problem(rows - 5, f).apply(rule).vector, vector - 5
    elif wanted == "scale":
        other, expected = Problem(rows * 64, f).apply(rule).vector, vector * 64
    elif wanted == "mean at f = 0":
        other, expected = vector, rows.mean(dim=0)
    elif wanted == "ties":
        other, expected = Problem(rows[:1].repeat(len(rows), 1), f).apply(rule).vector, rows[0]
    else:
        try:
            on_nothing(rule)
        except (NotImplementedError, RuntimeError):
            return True
        return False
    return not torch.allclose(other, expected, rtol=1e-3)


@pytest.mark.parametrize(("name", "wanted"), UNSUPPORTED)
def test_a_property_listed_as_unsupported_is_lacking(name: str, wanted: Property) -> None:
    assert any(violates(RULES[name](), wanted, seed) for seed in range(30)), "it is supported"
    assert RULES[name].unsupported[wanted], "give the reason"

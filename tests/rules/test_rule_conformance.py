"""What every rule in the table must do: give its oracle's answer, and never change its input."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import (
    BAD,
    DTYPES,
    RESILIENT_SPECS,
    RULE_SPECS,
    Problem,
    acceptable,
    assert_answers,
    normal,
    problems,
    strided,
)

from gyroscope.rules import RULES, parse

by_spec = pytest.mark.parametrize("spec", RULE_SPECS)
by_resilient_spec = pytest.mark.parametrize("spec", RESILIENT_SPECS)
AVERAGES = ("average", "krum", "geometric-median", "mda", "monna", "cge", "aksel")
"""Rules whose result is the mean of the rows with the returned weights."""
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])


# ---------------------------------------------------------------------------------------------- oracles


@by_spec
@given(data=st.data())
def test_equals_its_oracle(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule))
    answers = acceptable(rule, problem)
    assume(answers is not None)
    assert_answers(problem.apply(rule).vector, answers, problem.tolerance(rule))


@by_resilient_spec
@given(data=st.data())
def test_equals_its_oracle_whatever_f_rows_hold(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, bad=BAD))
    vector = problem.apply(rule).vector
    assert vector.isfinite().all()
    answers = acceptable(rule, problem)
    assume(answers is not None)
    assert_answers(vector, answers, problem.tolerance(rule))


@by_spec
def test_equals_its_oracle_in_many_dimensions(spec: str) -> None:
    rule = parse(spec)
    problem = Problem(normal(rule.min_workers(1) + 1, 8193, seed=1, dtype=torch.float32), 1)
    assert_answers(problem.apply(rule).vector, acceptable(rule, problem), problem.tolerance(rule))


# -------------------------------------------------------------------------------- shape, dtype, memory


@by_spec
@by_dtype
@pytest.mark.parametrize("d", [1, 2, 33])
def test_shape_dtype_device_and_weight(spec: str, dtype: torch.dtype, d: int) -> None:
    rule = parse(spec)
    for f in (0, 2):
        rows = normal(rule.min_workers(f) + 1, d, seed=d, dtype=dtype)
        vector, weight = Problem(rows, f).apply(rule)
        assert vector.shape == (d,) and vector.dtype == dtype and vector.device == rows.device
        if weight is not None:
            assert weight.shape == (len(rows),) and weight.dtype == torch.float64
            assert (weight >= 0).all()
            assert float(weight.sum()) == pytest.approx(1, abs=1e-12)


@by_spec
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
def test_half_precision_keeps_its_dtype(spec: str, dtype: torch.dtype) -> None:
    rule = parse(spec)
    vector = Problem(normal(rule.min_workers(1), 5, seed=1, dtype=dtype), 1).apply(rule).vector
    assert vector.dtype == dtype and vector.isfinite().all()


@by_spec
@given(data=st.data())
def test_the_rows_are_neither_changed_nor_aliased(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, bad=BAD if rule.resilient else None))
    before = problem.rows.clone()
    vector, weight = problem.apply(rule)
    assert torch.equal(problem.rows.nan_to_num(nan=7), before.nan_to_num(nan=7))
    vector.fill_(42)
    if weight is not None:
        weight.fill_(42)
    assert torch.equal(problem.rows.nan_to_num(nan=7), before.nan_to_num(nan=7))


@by_spec
@given(data=st.data())
def test_the_layout_in_memory_does_not_matter(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, kind="normal"))
    answers = acceptable(rule, problem)
    assume(answers is not None)
    for _, rows in strided(problem.rows):
        assert torch.equal(rows, problem.rows)
        vector = Problem(rows, problem.f).apply(rule).vector
        assert_answers(vector, answers, problem.tolerance(rule))


@by_spec
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_rows_is_as_good_as_a_tensor(spec: str, kind: type) -> None:
    rule = parse(spec)
    rows = normal(rule.min_workers(1) + 2, 6, seed=4)
    context = Problem(rows, 1).context(rule)
    assert torch.equal(rule(kind(rows), 1, context).vector, rule(rows, 1, context).vector)


@by_spec
def test_rows_that_require_a_gradient_give_a_vector_that_does_not(spec: str) -> None:
    rule = parse(spec)
    problem = Problem(normal(rule.min_workers(1), 3, seed=4).requires_grad_(), 1)
    assert not problem.apply(rule).vector.requires_grad


@by_spec
def test_the_same_rows_give_the_same_bits(spec: str) -> None:
    rule = parse(spec)
    rows = normal(rule.min_workers(2) + 1, 1000, seed=5, dtype=torch.float32)
    assert torch.equal(Problem(rows, 2).apply(rule).vector, Problem(rows.clone(), 2).apply(rule).vector)


@pytest.mark.parametrize("spec", [spec for spec in RULE_SPECS if spec.partition(":")[0] in AVERAGES])
@given(data=st.data())
def test_the_vector_is_the_weighted_sum_of_the_rows(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule))
    vector, weight = rule(problem.rows, problem.f)
    assert weight is not None
    assert (vector.double() - weight @ problem.rows.double()).abs().max() <= problem.tolerance(rule)


@pytest.mark.parametrize("name", RULES)
def test_f_may_be_zero_with_as_few_workers_as_that_needs(name: str) -> None:
    rule = RULES[name]()
    assert Problem(normal(rule.min_workers(0), 4, seed=9), 0).apply(rule).vector.isfinite().all()


@pytest.mark.parametrize("name", [name for name, kind in RULES.items() if kind.uses])
def test_the_state_of_a_rule_is_new_tensors_by_name(name: str) -> None:
    rule = RULES[name]()
    problem = Problem(normal(rule.min_workers(2), 4, seed=9), 2)
    context = problem.context(rule)
    state = rule.step(problem.rows, 2, context)[1]
    assert bool(state) == ("state" in rule.uses)
    before = {key: value.clone() for key, value in state.items()}
    vector, _ = rule.step(-problem.rows, 2, dataclasses.replace(context, step=4, state=state))[0]
    assert vector.isfinite().all()
    assert all(isinstance(key, str) and torch.equal(state[key], before[key]) for key in before)

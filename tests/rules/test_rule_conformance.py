"""What every rule in the table must do, whatever it computes."""

from __future__ import annotations

import oracles
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strategies import (
    BAD,
    DTYPES,
    NON_FINITE,
    RESILIENT_SPECS,
    RULE_SPECS,
    Problem,
    matrices,
    normal,
    problems,
    seeds,
    strided,
)
from torch import Tensor

from gyroscope import rules
from gyroscope.rules import RULES, Rule, parse

by_spec = pytest.mark.parametrize("spec", RULE_SPECS)
by_resilient_spec = pytest.mark.parametrize("spec", RESILIENT_SPECS)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])


def acceptable(rule: Rule, problem: Problem, strict: bool = False) -> list[list[float]] | None:
    """The oracle's results, per coordinate, or None if rounding (or, if strict, the order of the rows) decides."""
    return oracles.RULE_ORACLES[rule.name](
        problem.rows.tolist(), problem.f, doubt=4 * problem.rounding, strict=strict, **vars(rule)
    )


def assume_clear(rule: Rule, problem: Problem) -> None:
    """Throw away a draw with ties: on a line, for one, sums of distances are often equal."""
    assume(rule.name not in oracles.RULE_ORACLES or acceptable(rule, problem, strict=True) is not None)


def assert_answers(vector: Tensor, answers: list[list[float]] | None, rounding: float) -> None:
    assert answers is not None
    assert len(vector) == len(answers)
    for place, (got, right) in enumerate(zip(vector.tolist(), answers, strict=True)):
        assert any(abs(got - value) <= rounding for value in right), (place, got, right)


# ---------------------------------------------------------------------------------------------- oracles


@by_spec
@given(data=st.data())
def test_equals_its_oracle(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule))
    answers = acceptable(rule, problem)
    assume(answers is not None)
    assert_answers(rule(problem.rows, problem.f).vector, answers, problem.rounding)


@by_resilient_spec
@given(data=st.data())
def test_equals_its_oracle_whatever_f_rows_hold(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, bad=BAD))
    vector = rule(problem.rows, problem.f).vector
    assert vector.isfinite().all()
    answers = acceptable(rule, problem)
    assume(answers is not None)
    assert_answers(vector, answers, problem.rounding)


@by_spec
def test_equals_its_oracle_in_many_dimensions(spec: str) -> None:
    rule = parse(spec)
    problem = Problem(normal(rule.min_workers(1) + 1, 8193, seed=1, dtype=torch.float32), 1)
    assert_answers(rule(problem.rows, 1).vector, acceptable(rule, problem), problem.rounding)


# ------------------------------------------------------------------------------------------- resilience


@by_resilient_spec
@given(data=st.data())
def test_far_rows_leave_the_result_within_the_honest_range(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, bad=BAD))
    vector = rule(problem.rows, problem.f).vector.double()
    honest = problem.honest.double()
    assert (vector >= honest.amin(dim=0) - problem.rounding).all()
    assert (vector <= honest.amax(dim=0) + problem.rounding).all()


@by_resilient_spec
@given(data=st.data())
def test_non_finite_rows_have_no_share(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, bad=NON_FINITE))
    vector, weight = rule(problem.rows, problem.f)
    assert vector.isfinite().all()
    if weight is not None:
        assert (weight[list(problem.bad)] == 0).all()


@by_resilient_spec
@by_dtype
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3e38, -3e38, 1e10], ids=str)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_f_rows_of_one_bad_value_are_survived(spec: str, dtype: torch.dtype, value: float, first: bool) -> None:
    rule = parse(spec)
    for f in (1, 3):
        n = rule.min_workers(f)
        rows = normal(n, 5, seed=f, dtype=dtype)
        bad = slice(0, f) if first else slice(n - f, n)
        rows[bad] = value
        vector = rule(rows, f).vector
        assert vector.isfinite().all() and vector.abs().max() < 10


# -------------------------------------------------------------------------------- shape, dtype, memory


@by_spec
@by_dtype
@pytest.mark.parametrize("d", [1, 2, 33])
def test_shape_dtype_device_and_weight(spec: str, dtype: torch.dtype, d: int) -> None:
    rule = parse(spec)
    for f in (0, 2):
        rows = normal(rule.min_workers(f) + 1, d, seed=d, dtype=dtype)
        vector, weight = rule(rows, f)
        assert vector.shape == (d,) and vector.dtype == dtype and vector.device == rows.device
        if weight is not None:
            assert weight.shape == (len(rows),) and weight.dtype == torch.float64
            assert (weight >= 0).all()
            assert float(weight.sum()) == pytest.approx(1, abs=1e-12)


@by_spec
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
def test_half_precision_keeps_its_dtype(spec: str, dtype: torch.dtype) -> None:
    rule = parse(spec)
    vector = rule(normal(rule.min_workers(1), 5, seed=1, dtype=dtype), 1).vector
    assert vector.dtype == dtype and vector.isfinite().all()


@by_spec
@given(data=st.data())
def test_the_rows_are_neither_changed_nor_aliased(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, bad=BAD if rule.resilient else None))
    before = problem.rows.clone()
    vector, weight = rule(problem.rows, problem.f)
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
        assert_answers(rule(rows, problem.f).vector, answers, problem.rounding)


@by_spec
def test_rows_that_are_one_expanded_row_give_that_row(spec: str) -> None:
    rule = parse(spec)
    row = torch.tensor([1.0, -2.0, 4.0])
    assert torch.equal(rule(row.expand(rule.min_workers(2), 3), 2).vector, row)


@by_spec
def test_a_list_of_rows_is_as_good_as_a_tensor(spec: str) -> None:
    rule = parse(spec)
    rows = normal(rule.min_workers(1) + 2, 6, seed=4)
    assert torch.equal(rule(list(rows), 1).vector, rule(rows, 1).vector)


@by_spec
def test_rows_that_require_a_gradient_give_a_vector_that_does_not(spec: str) -> None:
    rule = parse(spec)
    assert not rule(normal(rule.min_workers(1), 3, seed=4).requires_grad_(), 1).vector.requires_grad


@by_spec
def test_the_same_rows_give_the_same_bits(spec: str) -> None:
    rule = parse(spec)
    rows = normal(rule.min_workers(2) + 1, 1000, seed=5, dtype=torch.float32)
    assert torch.equal(rule(rows, 2).vector, rule(rows.clone(), 2).vector)


@pytest.mark.parametrize("spec", ["average", "krum", "krum:m=1", "krum:squared=true,neighbours=n-f-1"])
@given(data=st.data())
def test_the_vector_is_the_weighted_sum_of_the_rows(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule))
    vector, weight = rule(problem.rows, problem.f)
    assert weight is not None
    assert (vector.double() - weight @ problem.rows.double()).abs().max() <= problem.rounding


# ------------------------------------------------------------------------------------------- symmetries


@by_spec
@given(data=st.data())
def test_the_order_of_the_rows_does_not_matter(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, kind="normal", dtype=torch.float64))
    assume_clear(rule, problem)
    order = torch.randperm(problem.n, generator=torch.Generator().manual_seed(data.draw(seeds)))
    vector, weight = rule(problem.rows, problem.f)
    permuted, permuted_weight = rule(problem.rows[order], problem.f)
    assert (vector - permuted).abs().max() <= problem.rounding
    if weight is not None:
        assert permuted_weight is not None
        assert torch.allclose(weight[order], permuted_weight, rtol=0, atol=1e-12)


@by_spec
@given(data=st.data())
def test_scaling_the_rows_scales_the_result(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, kind="normal", dtype=torch.float64))
    vector = rule(problem.rows, problem.f).vector
    for power in (-20, 1, 30):  # a power of two changes no digit, so not one bit may differ
        assert torch.equal(rule(problem.rows * 2.0**power, problem.f).vector, vector * 2.0**power)
    assume_clear(rule, problem)
    factor = data.draw(st.floats(0.01, 100))
    scaled = rule(problem.rows * factor, problem.f).vector
    assert (scaled - vector * factor).abs().max() <= problem.rounding * factor


@by_spec
@given(data=st.data())
def test_moving_the_rows_moves_the_result(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    f = data.draw(st.integers(0, 2))
    rows = data.draw(matrices(rule.min_workers(f) + 1, kind="offset", dtype=torch.float64)) - 1e4
    assume_clear(rule, Problem(rows, f))
    shift = normal(1, rows.shape[1], data.draw(seeds))[0]
    moved = rule(rows + shift, f).vector
    assert (moved - (rule(rows, f).vector + shift)).abs().max() < 1e-12


@by_spec
def test_all_zero_rows_give_zero(spec: str) -> None:
    rule = parse(spec)
    for f in (0, 2):
        assert not rule(torch.zeros(rule.min_workers(f), 4), f).vector.any()


# ------------------------------------------------------------------------------------------------- ties


@pytest.mark.parametrize("spec", [spec for spec in RULE_SPECS if spec.startswith("krum")])
def test_krums_ties_go_to_the_lowest_row(spec: str) -> None:
    rule = parse(spec)
    same = rule(torch.ones(9, 3), 2).weight
    m = 1 if "m=1" in spec else 5
    assert same is not None and same.tolist() == [1 / m] * m + [0.0] * (9 - m)
    # Nine points on a line: the five in the middle have neighbours at 1, 1, 2, 2, 3 and tie.
    weight = rules.Krum(m=2)(torch.arange(9.0).unsqueeze(1), 2).weight
    assert weight is not None and weight.nonzero().flatten().tolist() == [2, 3]


def test_bulyans_ties_go_to_the_lowest_row() -> None:
    rows = torch.ones(11, 2)
    for rescore in (False, True):
        weight = rules.Bulyan(m=1, rescore=rescore)(rows, 2).weight
        assert weight is not None and weight.tolist() == pytest.approx([1 / 5] * 5 + [0.0] * 6)


@example(seed=2418)
@given(seed=seeds)
def test_equal_squared_scores_tie_exactly(seed: int) -> None:
    """Sums of squares of small whole numbers are exact, so 1 + 3 ties with 2 + 2: no root may round it away."""
    rows = (2 * normal(7, 3, seed)).round()
    weight = rules.Krum(m=1, squared=True)(rows, 2).weight
    assert weight is not None
    assert weight.nonzero().flatten().tolist() == oracles.krum(rows.tolist(), 2, m=1, squared=True)[1]


@pytest.mark.parametrize("name", RULES)
def test_f_may_be_zero_with_a_single_worker_more_than_none(name: str) -> None:
    rule = RULES[name]()
    rows = normal(rule.min_workers(0), 4, seed=9)
    assert rule(rows, 0).vector.isfinite().all()


# ------------------------------------------------------------------------------------------ other devices


@by_spec
def test_never_waits_for_a_device_inside(spec: str) -> None:
    """A tensor on the device `meta` has no values: whoever asks for one, as a wait for a GPU does, gets an error."""
    rule = parse(spec)
    n = max(19, rule.min_workers(3))
    aggregate = rule(torch.empty(n, 40, device="meta"), f=3)
    assert aggregate.vector.device.type == "meta" and aggregate.vector.shape == (40,)
    assert aggregate.weight is None or aggregate.weight.shape == (n,)

"""Ties, to the bit: rules that select rows take the lowest row number; and a power of two changes no digit."""

from __future__ import annotations

import oracles
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import RULE_SPECS, normal, problems, seeds

from gyroscope import rules
from gyroscope.rules import parse

EXACT = ("average", "krum", "median", "bulyan", "trimmed-mean", "phocas", "meamed", "mda", "monna", "cge", "aksel")
"""Rules that only compare and average values: their results can be known to the bit."""
by_exact_spec = pytest.mark.parametrize("spec", [spec for spec in RULE_SPECS if spec.partition(":")[0] in EXACT])


@by_exact_spec
def test_rows_that_are_one_expanded_row_give_exactly_that_row(spec: str) -> None:
    rule = parse(spec)
    row = torch.tensor([1.0, -2.0, 4.0])
    assert torch.equal(rule(row.expand(rule.min_workers(2), 3), 2).vector, row)


@by_exact_spec
@given(data=st.data())
def test_a_power_of_two_changes_not_one_bit(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, kind="normal", dtype=torch.float64))
    vector = rule(problem.rows, problem.f).vector
    for power in (-20, 1, 30):
        assert torch.equal(rule(problem.rows * 2.0**power, problem.f).vector, vector * 2.0**power)


@pytest.mark.parametrize("spec", [spec for spec in RULE_SPECS if spec.startswith("krum")])
def test_krums_ties_go_to_the_lowest_row(spec: str) -> None:
    rule = parse(spec)
    same = rule(torch.ones(9, 3), 2).weight
    m = 1 if "m=1" in spec else 7 if "m=n-f" in spec else 5
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

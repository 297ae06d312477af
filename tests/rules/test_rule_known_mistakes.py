"""Mistakes seen in public implementations, one test each, on small rows whose answer can be checked by hand."""

from __future__ import annotations

import math

import oracles
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import RESILIENT_SPECS, RULE_SPECS, Problem, normal, seeds

from gyroscope._linalg import order_statistics
from gyroscope._linalg.distances import squared_distances
from gyroscope.rules import Average, Bulyan, Krum, Median, parse

by_spec = pytest.mark.parametrize("spec", RULE_SPECS)
by_resilient_spec = pytest.mark.parametrize("spec", RESILIENT_SPECS)
NAN, INF = math.nan, math.inf
FAR_IS_FAR = ("krum", "median", "bulyan", "trimmed-mean", "phocas", "meamed", "mda", "monna", "cge", "aksel")
"""Rules that treat a far row as they treat a NaN: they leave both out by rank."""


# -------------------------------------------------------------------------------- NaN, inf, huge values


@pytest.mark.parametrize("spec", [spec for spec in RULE_SPECS if spec.partition(":")[0] in FAR_IS_FAR])
def test_one_nan_row_changes_nothing_that_a_far_row_would_not(spec: str) -> None:
    rule = parse(spec)
    rows = normal(rule.min_workers(1) + 2, 6, seed=1)
    rows[2] = 1e12
    far = rule(rows, 1).vector
    rows[2] = NAN
    assert torch.equal(rule(rows, 1).vector, far)


def test_krum_never_picks_the_nan_row_even_if_it_comes_first() -> None:
    rows = torch.tensor([[NAN, NAN], [1.0, 1], [2.0, 2], [3.0, 3], [4.0, 4]])
    for m in (1, 2):
        vector, weight = Krum(m=m)(rows, 1)
        assert vector.isfinite().all() and weight is not None and weight[0] == 0


def test_the_median_counts_nan_as_the_largest_value() -> None:
    rows = torch.tensor([[NAN, 3.0, -INF], [1.0, NAN, 2.0], [2.0, 4.0, NAN]])
    assert Median()(rows, 1).vector.tolist() == [2.0, 4.0, 2.0]
    even = torch.tensor([[NAN, INF], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    assert Median()(even, 1).vector.tolist() == [2.0, 2.0]
    assert Median(even="mean")(even, 1).vector.tolist() == [2.5, 2.5]


@by_resilient_spec
@pytest.mark.parametrize("value", [INF, -INF, 1e10, -1e10], ids=str)
def test_a_far_value_neither_cancels_nor_swallows_the_honest_ones(spec: str, value: float) -> None:
    """'The sum minus the extremes' in float32 gives NaN for inf and 0 for 1e10."""
    rule = parse(spec)
    if rule.guarantee in ("range", "distance"):
        rows = torch.full((rule.min_workers(1), 3), 0.125)
        rows[-1] = value
        assert Problem(rows, 1, (len(rows) - 1,)).apply(rule).vector.tolist() == pytest.approx([0.125] * 3, rel=1e-6)


def test_a_row_with_both_infinities_is_as_far_as_nan() -> None:
    rows = torch.tensor([[INF, -INF], [INF, -INF], [0.0, 0], [1.0, 1], [2.0, 2], [3.0, 3], [4.0, 4]])
    weight = Krum()(rows, 2).weight
    assert weight is not None and weight.nonzero().flatten().tolist() == [3, 4, 5]


def test_rows_that_are_not_selected_are_not_multiplied_by_zero() -> None:
    """0 * NaN is NaN: Bulyan's product of shares and rows must leave the NaN row out."""
    rows = normal(7, 4, seed=3)
    rows[6] = NAN
    for rescore in (False, True):
        vector, weight = Bulyan(rescore=rescore)(rows, 1)
        assert vector.isfinite().all() and weight is not None and weight[6] == 0


def test_the_median_of_two_large_middles_does_not_overflow() -> None:
    rows = torch.tensor([[3e38], [3e38]])
    assert Median(even="mean")(rows, 0).vector.tolist() == rows[0].tolist()


def test_a_nan_reaches_the_average_which_has_no_guarantee() -> None:
    assert Average()(torch.tensor([[NAN, 1.0], [1.0, 1.0]]), 1).vector.isnan().tolist() == [True, False]


# ---------------------------------------------------------------------------------------------- distances


def test_selection_survives_a_large_common_offset_in_float32() -> None:
    """|a|^2 + |b|^2 - 2ab in float32 loses differences of 0.01 around 10,000: its squares go negative."""
    d = 1000
    spread = torch.tensor([0.0, 0.01, 0.02, 0.03, 0.04, 0.2, 0.4])
    rows = 1e4 + spread.unsqueeze(1) * torch.ones(d)
    gram = rows @ rows.T
    squares = gram.diagonal() + gram.diagonal().unsqueeze(1) - 2 * gram
    assert (squares < 0).any()  # this input does break the trick
    weight = Krum(m=3)(rows, 2).weight
    assert weight is not None and weight.nonzero().flatten().tolist() == oracles.krum(rows.tolist(), 2, m=3)[1]
    distance = squared_distances(rows)[5, 6].sqrt().item()
    assert distance == pytest.approx(math.dist(rows[5].tolist(), rows[6].tolist()), rel=1e-12)


def test_distances_are_squared_once_or_not_at_all() -> None:
    """Scores of row 0 and row 3: distances 3 + 3 and 1 + 4.9, squares 9 + 9 and 1 + 24.01."""
    rows = torch.tensor([[0.0, 0.0], [3.0, 0.0], [-3.0, 0.0], [100.0, 1.0], [100.0, 2.0], [100.0, -3.9], [200.0, 0.0]])
    # n = 7, f = 3 is infeasible for Krum, so look at the scores that two neighbours give: n - f - 2 = 2.
    plain = oracles.krum_scores(rows.tolist(), 3).order()[0]
    squared = oracles.krum_scores(rows.tolist(), 3, squared=True).order()[0]
    assert (plain, squared) == (3, 0)
    table = squared_distances(rows)
    assert int(Krum(squared=False).ranking(table, 3)[0]) == plain
    assert int(Krum(squared=True).ranking(table, 3)[0]) == squared
    assert Krum(squared=False).scores(table, 3)[0].item() == 6
    assert Krum(squared=True).scores(table, 3)[0].item() == 18


def test_a_row_is_no_neighbour_of_itself() -> None:
    """If the zero on the diagonal counted, row 0 of a pair and a lone row would score alike."""
    rows = torch.tensor([[0.0], [0.0], [5.0], [7.0], [9.5]])
    assert Krum().scores(squared_distances(rows), 1).tolist() == [5.0, 5.0, 6.5, 4.5, 7.0]


# ------------------------------------------------------------------------------------------------- Krum


def test_multi_krum_returns_the_mean_not_the_sum() -> None:
    rows = torch.tensor([[1.0], [1.25], [1.5], [1.75], [50.0]])
    assert Krum(m=2)(rows, 1).vector.item() == 1.375
    assert Krum()(rows, 1).vector.item() == 1.375


@given(seed=seeds, f=st.integers(0, 3), extra=st.integers(0, 4), data=st.data())
def test_krum_takes_exactly_the_m_best_rows(seed: int, f: int, extra: int, data: st.DataObject) -> None:
    rows = normal(2 * f + 3 + extra, 4, seed)
    m = data.draw(st.integers(1, len(rows) - f - 2))
    weight = Krum(m=m)(rows, f).weight
    assert weight is not None
    assert sorted(weight.nonzero().flatten().tolist()) == sorted(oracles.krum(rows.tolist(), f, m=m)[1])


@given(seed=seeds)
def test_the_number_of_neighbours_makes_a_difference_and_both_are_right(seed: int) -> None:
    rows = normal(9, 3, seed)
    for neighbours in ("n-f-2", "n-f-1"):
        for squared in (False, True):
            rule = Krum(m=1, squared=squared, neighbours=neighbours)
            right = oracles.krum(rows.tolist(), 3, m=1, squared=squared, neighbours=neighbours)[0]
            assert rule(rows, 3).vector.tolist() == right


def test_the_variants_of_krum_are_not_one_and_the_same() -> None:
    variants = [Krum(m=1), Krum(m=1, squared=True), Krum(m=1, neighbours="n-f-1")]
    chosen = [[rule(normal(9, 3, seed), 3).vector.tolist() for seed in range(50)] for rule in variants]
    assert chosen[0] != chosen[1] and chosen[0] != chosen[2] and chosen[1] != chosen[2]


# ----------------------------------------------------------------------------------------------- Bulyan


def test_bulyan_once_and_iterated_differ_and_both_are_right() -> None:
    different = 0
    for seed in range(20):
        rows = normal(13, 4, seed)
        problem = Problem(rows, 2)
        results = []
        for rescore in (False, True):
            selections = oracles.bulyan_selections(rows.tolist(), 2, rescore=rescore)
            right = [values[0] for values in oracles.bulyan_vectors(rows.tolist(), 2, selections)]
            results.append(Bulyan(rescore=rescore)(rows, 2).vector)
            assert results[-1].tolist() == pytest.approx(right, abs=problem.rounding)
        different += not torch.allclose(*results)
    assert different >= 15


@given(seed=seeds, f=st.integers(0, 2), extra=st.integers(0, 3), data=st.data())
def test_bulyans_weight_is_the_mean_share_in_the_selections(seed: int, f: int, extra: int, data: st.DataObject) -> None:
    rows = normal(4 * f + 3 + extra, 3, seed)
    n = len(rows)
    rule = Bulyan(
        m=data.draw(st.none() | st.integers(1, n - f - 2)),
        rescore=data.draw(st.booleans()),
        slack=data.draw(st.sampled_from([2, 0])),
    )
    selections = oracles.bulyan_selections(rows.tolist(), f, m=rule.m, rescore=rule.rescore, slack=rule.slack)
    assume(not any(selection.krumming.in_doubt() for selection in selections))
    share = [0.0] * n
    for selection in selections:
        for row in selection.rows:
            share[row] += 1 / len(selection.rows) / len(selections)
    vector, weight = rule(rows, f)
    assert weight is not None and weight.tolist() == pytest.approx(share)
    right = oracles.bulyan_vectors(rows.tolist(), f, selections, doubt=1e-13)
    assert all(
        any(abs(got - value) < 1e-12 for value in values) for got, values in zip(vector.tolist(), right, strict=True)
    )


def test_bulyans_slack_changes_the_number_of_selections() -> None:
    rows = normal(11, 3, seed=0)
    ours, original = Bulyan(m=1)(rows, 2).weight, Bulyan(m=1, slack=0)(rows, 2).weight
    assert ours is not None and original is not None
    assert int((ours > 0).sum()) == 11 - 4 - 2 and int((original > 0).sum()) == 11 - 4


# ------------------------------------------------------------------------------ the mean around the median


@given(
    values=st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=12),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    data=st.data(),
)
def test_the_mean_around_the_median_takes_the_smaller_of_two_equally_near(
    values: list[float], dtype: torch.dtype, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(values)))
    column = torch.tensor(values, dtype=dtype).unsqueeze(1)
    before = column.clone()
    (right,) = oracles.means_around_median(values, count)
    got = order_statistics.mean_around_median(column, count)
    assert got.dtype == dtype and got.item() == pytest.approx(right, rel=1e-6)
    assert torch.equal(column, before)


def test_the_mean_around_the_median_by_hand() -> None:
    columns = torch.tensor([[0.0, 1.0, 5.0], [1.0, 2.0, 5.0], [2.0, 9.0, 5.0], [3.0, 10.0, 6.0]])
    assert order_statistics.mean_around_median(columns, 1).tolist() == [1.0, 2.0, 5.0]
    assert order_statistics.mean_around_median(columns, 2).tolist() == [0.5, 1.5, 5.0]  # 0 and 2 are equally near to 1
    assert order_statistics.mean_around_median(columns, 4).tolist() == [1.5, 5.5, 5.25]


@given(seed=seeds, n=st.integers(1, 12), d=st.sampled_from([1, 5, 17]))
def test_both_medians_are_exact(seed: int, n: int, d: int) -> None:
    rows = normal(n, d, seed, torch.float32)
    assert order_statistics.median(rows).tolist() == oracles.median(rows.tolist())
    right = torch.tensor(oracles.median(rows.tolist(), "mean"), dtype=torch.float32)
    assert torch.equal(order_statistics.median(rows, "mean"), right)


# ------------------------------------------------------------------------------------------- housekeeping


@by_spec
def test_float64_is_not_computed_in_float32(spec: str) -> None:
    rule = parse(spec)
    rows = 1 + 1e-12 * normal(rule.min_workers(2), 5, seed=2)
    vector = Problem(rows, 2).apply(rule).vector
    assert vector.dtype == torch.float64 and ((vector - 1).abs() > 1e-15).any() and (vector - 1).abs().max() < 1e-11


@by_spec
def test_an_infeasible_f_is_never_clamped(spec: str) -> None:
    rule = parse(spec)
    for f in (1, 3, 10):
        with pytest.raises(ValueError, match="needs"):
            rule(torch.zeros(rule.min_workers(f) - 1, 2), f)

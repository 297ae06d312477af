"""`gy.aggregate`: state dicts in, one state dict and a report out; each figure here can be checked by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gyroscope import rules
from gyroscope._core.errors import ConfigError, GyroscopeError, InfeasibleError, RowsError
from gyroscope.rules.state_dicts import aggregate

NAN, INF = math.nan, math.inf
DOUBLE, SPARSE = torch.tensor(1.0).double(), torch.eye(2).to_sparse()


def one(a: float, b: list[float], count: int = 0, **others: Tensor) -> dict[str, Tensor]:
    """A scalar, a matrix of one row, and an integer."""
    return {"a": torch.tensor(float(a)), "b": torch.tensor([b]).float(), "count": torch.tensor(count), **others}


FIVE = [one(1, [5, 0], 3), one(2, [4, 0], 9), one(3, [3, 0], 5), one(4, [2, 1], 4), one(50, [-9, 7], 8)]


def values(state_dict: dict[str, Tensor]) -> dict[str, Any]:
    return {key: value.tolist() for key, value in state_dict.items()}


def test_the_median_by_hand() -> None:
    result = aggregate(FIVE, "median", f=2)
    assert values(result.state_dict) == {"a": 3.0, "b": [[3.0, 0.0]], "count": 5}
    assert result.report.rule == "median" and result.report.f == 2 and result.report.left_out == []
    assert [each.name for each in result.report.participants] == [0, 1, 2, 3, 4]
    assert all(each.share is None and each.weight is None and not each.problem for each in result.report.participants)
    # Distances from (3, 3, 0): sqrt(8), sqrt(2), 0, sqrt(3) and far; their median is sqrt(3).
    distances = [each.distance for each in result.report.participants]
    assert distances[:4] == pytest.approx([math.sqrt(8 / 3), math.sqrt(2 / 3), 0.0, 1.0])
    assert distances[4] == pytest.approx(math.sqrt((47**2 + 12**2 + 7**2) / 3))


def test_the_average_by_hand() -> None:
    result = aggregate(FIVE, "average", f=0)
    assert values(result.state_dict) == {"a": 12.0, "b": [[1.0, pytest.approx(1.6)]], "count": 5}
    assert [each.share for each in result.report.participants] == pytest.approx([0.2] * 5)


def test_krum_takes_whole_state_dicts() -> None:
    result = aggregate(FIVE, rules.Krum(m=1), f=1)
    # Each one's two nearest others: 0: sqrt(2) + sqrt(8); 1: 2 sqrt(2); 2: sqrt(2) + sqrt(3); ...: 1 is best.
    assert values(result.state_dict) == {"a": 2.0, "b": [[4.0, 0.0]], "count": 5}
    assert [each.share for each in result.report.participants] == [0.0, 1.0, 0.0, 0.0, 0.0]


def test_a_mapping_gives_names_to_the_report() -> None:
    named = dict(zip("vwxyz", FIVE, strict=True))
    result = aggregate({**named, "x": {}}, "median", f=1)
    assert result.report.left_out == ["x"]
    assert [each.name for each in result.report.participants] == list("vwxyz")
    assert result.report.participants[2].problem == "it lacks 'a', which the majority has"


@pytest.mark.parametrize("rule", ["median", "krum", "trimmed-mean", "geometric-median", "nnm+median"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_rows_that_are_not_finite_are_left_to_the_rule(rule: str, bad: float) -> None:
    result = aggregate([*FIVE[:4], one(bad, [1, 1], 8)], rule, f=1)
    assert all(value.isfinite().all() for value in result.state_dict.values())
    assert result.report.participants[4].distance == INF and result.report.left_out == [4]
    assert result.report.participants[4].problem == "it holds NaN or infinity"
    assert 1 <= float(result.state_dict["a"]) <= 4


MISFITS: dict[str, tuple[Any, str]] = {
    "shape": (one(1, [5, 0, 0]), "'b' has the shape (1, 3), in the majority (1, 2)"),
    "scalar": (one(1, [5, 0]) | {"a": torch.ones(1)}, "'a' has the shape (1,), in the majority ()"),
    "dtype": (one(1, [5, 0]) | {"a": torch.tensor(1)}, "'a' is torch.int64, in the majority torch.float32"),
    "width": (one(1, [5, 0]) | {"a": DOUBLE}, "'a' is torch.float64, in the majority torch.float32"),
    "extra": (one(1, [5, 0], more=torch.ones(2)), "it has 'more', which the majority lacks"),
    "lacking": ({"a": torch.tensor(1.0)}, "it lacks 'b', which the majority has"),
    "no tensor": ({"a": 1.0}, "'a' is a float, not a tensor: leave it out"),
    "no state dict": (nn.Linear(2, 1), "it is a Linear, not a state dict"),
    "no name": ({7: torch.ones(1)}, "the key '7' is a int, not a name"),
    "complex": ({"a": torch.tensor(1j)}, "'a' is complex (torch.complex64): give torch.view_as_real of it"),
    "sparse": ({"b": SPARSE}, "'b' is sparse or quantized: give a dense tensor (to_dense, dequantize)"),
}


@pytest.mark.parametrize("place", [0, 4])
@pytest.mark.parametrize(("misfit", "why"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_left_out_and_counted_as_byzantine(misfit: Any, why: str, place: int) -> None:
    chosen = list(FIVE)
    chosen[place] = misfit
    result = aggregate(chosen, "median", f=1)
    assert result.report.left_out == [place]
    participant = result.report.participants[place]
    # The rule sees NaN, above all numbers: the median is the third of the others' four.
    others = [each for index, each in enumerate(FIVE) if index != place]
    assert (participant.problem, participant.distance) == (why, INF)
    assert float(result.state_dict["a"]) == sorted(float(each["a"]) for each in others)[2]
    assert int(result.state_dict["count"]) == sorted(int(each["count"]) for each in others)[1], "of those that fit"
    with pytest.raises(RowsError) as problem:
        aggregate(chosen, "median", f=0)
    assert f"1 of 5 state dicts cannot be used, and f = 0 may ({place}: {why})" in str(problem.value)


@pytest.mark.parametrize("rule", ["median", "krum", "trimmed-mean", "geometric-median", "nnm+median"])
def test_who_does_not_fit_and_who_is_not_finite_count_together(rule: str) -> None:
    given = [*FIVE, one(1, [NAN, 0]), {}]
    with pytest.raises(RowsError, match=r"2 of 7 .* f = 1 may \(5: it holds NaN or infinity; 6: it lacks 'a', which"):
        aggregate(given, rule, f=1)
    if rule != "krum":
        assert aggregate(given, rule, f=2).report.left_out == [5, 6]


def test_more_than_f_that_are_not_finite_are_an_error_as_in_ddp() -> None:
    named = dict(zip("vwxyz", [*FIVE[:3], one(INF, [0, 0]), one(1, [0, NAN])], strict=True))
    with pytest.raises(
        RowsError, match=r"2 of 5 .* f = 1 may .'y': it holds NaN or infinity; 'z': it holds NaN or inf"
    ):
        aggregate(named, "median", f=1)
    with pytest.raises(RowsError, match=r"3: it holds NaN or infinity.*, and the rule average tolerates nobody"):
        aggregate([*FIVE[:3], one(NAN, [0, 0]), FIVE[4]], "average", f=1)
    with pytest.raises(RowsError, match="the rule monna trusts that participant"):
        aggregate([one(NAN, [0, 0]), *FIVE[1:]], "monna:pivot=0", f=1)
    with pytest.raises(RowsError, match="the reference cannot be used: it holds NaN"):
        aggregate(FIVE, "median", f=1, reference=one(NAN, [0, 0]))


def test_the_error_about_too_many_names_some_and_counts_the_rest() -> None:
    named = {f"site {k}": {**one(1, [0, 0]), f"x{k}": torch.ones(1)} for k in range(5)}
    with pytest.raises(RowsError, match=r"5 of 11 .* f = 2 .*'site 0': it has 'x0', .*'site 2'.*; and 2 more\)"):
        aggregate({**{str(k): one(1, [0, 0]) for k in range(6)}, **named}, "median", f=2)


def test_a_rule_that_cannot_do_without_a_participant_says_so() -> None:
    with pytest.raises(RowsError, match=r"\(0: it lacks 'a', .*the rule average tolerates nobody"):
        aggregate([{}, *FIVE], "average", f=1)
    with pytest.raises(RowsError, match=r"\(3: it lacks 'a', .*the rule monna:pivot=3 trusts that participant"):
        aggregate([*FIVE[:3], {}, FIVE[3]], "monna:pivot=3", f=1)
    assert aggregate([*FIVE[:3], {}, FIVE[3]], "monna:pivot=2", f=1).report.left_out == [3]


def test_who_got_no_share_is_not_among_those_that_could_not_take_part() -> None:
    report = aggregate([*FIVE, one(NAN, [0, 0])], "krum", f=1).report
    assert report.left_out == [5]
    without = [each for each in report.participants if each.share == 0 and not each.problem]
    assert without and all(each.distance < INF for each in without)


def test_integers_and_booleans_take_the_lower_median_of_those_that_fit() -> None:
    big = 2**63
    counts = [torch.tensor([k, 7 - k, big + k], dtype=torch.uint64) for k in range(4)]
    flags = [torch.tensor([True, k > 0, k > 1, k > 2, False]) for k in range(4)]
    given = [{"count": count, "flag": flag} for count, flag in zip(counts, flags, strict=True)]
    result = aggregate(given, "median", f=1)
    assert result.state_dict["count"].tolist() == [1, 5, big + 1]
    assert result.state_dict["flag"].tolist() == [True, True, False, False, False]
    assert [value.dtype for value in result.state_dict.values()] == [torch.uint64, torch.bool]
    assert [each.distance for each in result.report.participants] == [0.0] * 4, "no floating-point value differs"


def test_empty_tensors_and_empty_state_dicts_work() -> None:
    given = [{"nothing": torch.empty(0, 3), "a": torch.tensor(float(k))} for k in range(3)]
    result = aggregate(given, "median", f=1)
    assert result.state_dict["nothing"].shape == (0, 3) and float(result.state_dict["a"]) == 1
    assert aggregate([{}, {}, {}], "median", f=1).state_dict == {}


def test_with_a_reference_the_rule_sees_differences() -> None:
    given = [one(a, [0, 0], count) for a, count in ((1, 3), (2, 9), (3, 5), (40, 4), (50, 8))]
    plain, shifted = (aggregate(given, "cge", f=2, reference=start) for start in (None, one(45, [0, 0], 100)))
    assert [each.share for each in plain.report.participants] == pytest.approx([1 / 3] * 3 + [0, 0])
    assert [each.share for each in shifted.report.participants] == pytest.approx([0, 0] + [1 / 3] * 3)
    assert float(plain.state_dict["a"]) == 2 and float(shifted.state_dict["a"]) == 31
    # Distances from 31 are 30, 29, 28, 9 and 19; their median is 28.
    assert [each.distance * 28 for each in shifted.report.participants] == pytest.approx([30, 29, 28, 9, 19])
    assert int(shifted.state_dict["count"]) == 5, "integers have no difference"


def test_the_reference_sets_the_layout() -> None:
    odd = [one(1, [5, 0], more=torch.ones(2)) for _ in range(3)]
    assert aggregate([*odd, *FIVE[:2]], "median", f=2).report.left_out == [3, 4]
    with pytest.raises(RowsError, match=r"3 of 5 state dicts .*it has 'more', which the reference lacks"):
        aggregate([*odd, *FIVE[:2]], "median", f=2, reference=one(0, [0, 0]))
    with pytest.raises(RowsError, match="the reference cannot be used: it is a Linear"):
        aggregate(FIVE, "median", f=2, reference=nn.Linear(1, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    given = [{"w": torch.full((300,), 1.0, dtype=dtype), "n": torch.ones(2)} for _ in range(300)]
    given.append({"w": torch.full((300,), 300.0, dtype=dtype), "n": torch.ones(2)})
    result = aggregate(given, "average", f=0)
    assert result.state_dict["w"].dtype == dtype and result.state_dict["n"].dtype == torch.float32
    assert torch.equal(result.state_dict["w"], torch.full((300,), 600 / 301).to(dtype)), "bfloat16 would stop at 256"


def test_float64_stays_beside_other_dtypes() -> None:
    tiny = 1e-12
    given = [{"w": torch.tensor([1 + k * tiny], dtype=torch.float64), "h": torch.ones(1).half()} for k in range(3)]
    result = aggregate(given, "median", f=1)
    assert result.state_dict["w"].tolist() == [1 + tiny]
    assert [value.dtype for value in result.state_dict.values()] == [torch.float64, torch.float16]


def test_nothing_given_changes_and_the_result_is_new_memory() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    given = [copy.deepcopy(model).state_dict(keep_vars=True) for _ in range(3)]
    reference = copy.deepcopy(given[0])
    before = copy.deepcopy(given)
    result = aggregate(given, "krum", f=0, reference=reference)
    for value in result.state_dict.values():
        assert not value.requires_grad
        value.fill_(7)
    for after, was in zip([*given, reference], [*before, before[0]], strict=True):
        assert all(torch.equal(after[key], was[key]) for key in was)
    assert list(result.state_dict) == list(given[0])
    model.load_state_dict(result.state_dict)


def test_the_order_of_the_keys_does_not_matter() -> None:
    turned = [dict(reversed(each.items())) for each in FIVE]
    assert values(aggregate([FIVE[0], *turned[1:]], "krum", f=1).state_dict) == values(
        aggregate(FIVE, "krum", f=1).state_dict
    )
    assert list(aggregate([FIVE[0], *turned[1:]], "krum", f=1).state_dict) == ["a", "b", "count"]


def test_a_seed_changes_what_is_drawn_at_random() -> None:
    given = [{"w": torch.randn(4, generator=torch.Generator().manual_seed(k))} for k in range(9)]
    results = [aggregate(given, "bucketing:s=2+median", f=1, seed=seed).state_dict["w"] for seed in (1, 1, 2)]
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


WEIGHTED = ["average", "median", "trimmed-mean"]


@pytest.mark.parametrize("rule", WEIGHTED)
@pytest.mark.parametrize(("n", "f"), [(4, 1), (5, 2), (10, 3), (49, 24)])
def test_equal_weights_change_nothing(rule: str, n: int, f: int) -> None:
    given = [{"w": torch.randn(20, generator=torch.Generator().manual_seed(k))} for k in range(n)]
    plain, weighted = aggregate(given, rule, f=f), aggregate(given, rule, f=f, weights=[3.0] * n)
    torch.testing.assert_close(weighted.state_dict, plain.state_dict)
    assert [each.weight for each in weighted.report.participants] == pytest.approx([1 / n] * n)


def test_weighted_rules_by_hand() -> None:
    given = [{"w": torch.tensor([float(value)])} for value in (1, 2, 3, 4)]
    weights = [1.0, 2.0, 3.0, 4.0]  # with f = 1 none above a third: 1/9, 2/9, 3/9, 3/9
    # 0.1, 0.2, 0.3, 0.4: 0.4 is cut to 1/3, the others grow by 10/9; then 0.3 * 10/9 is just a third.
    result = aggregate(given, "average", f=1, weights=weights)
    shares = [1 / 9, 2 / 9, 3 / 9, 3 / 9]
    assert [each.weight for each in result.report.participants] == pytest.approx(shares)
    assert [each.share for each in result.report.participants] == pytest.approx(shares)
    assert float(result.state_dict["w"]) == pytest.approx((1 + 4 + 9 + 12) / 9)
    median = aggregate(given, "median", f=1, weights=weights)
    assert float(median.state_dict["w"]) == 3.0, "1/9 + 2/9 is less than half, + 3/9 is more"
    assert median.report.participants[0].share is None and median.report.participants[0].weight == pytest.approx(1 / 9)
    # A third is trimmed at either end: 1 and 2 below, 4 above; 3 is left.
    assert float(aggregate(given, "trimmed-mean", f=1, weights=weights).state_dict["w"]) == pytest.approx(3.0)
    # Uncapped with f = 0: 1/10, ...; nothing is trimmed.
    assert float(aggregate(given, "trimmed-mean", f=0, weights=weights).state_dict["w"]) == pytest.approx(3.0)
    assert float(aggregate(given, "median", f=0, weights=[1, 5, 2, 2]).state_dict["w"]) == 2.0, "the lower of two"
    assert float(aggregate(given, "trimmed-mean", f=1, weights=[2, 1, 2, 1]).state_dict["w"]) == pytest.approx(2.5)


def test_the_cap_is_iterated() -> None:
    given = {name: {"w": torch.ones(1)} for name in "abcdef"}
    weights = {"f": 100.0, "a": 40.0, "b": 20.0, "c": 10.0, "d": 10.0, "e": 0.0}
    report = aggregate(given, "median", f=2, weights=weights).report
    assert [each.weight for each in report.participants] == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.0, 0.2])


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e30])
@given(st.data())
def test_whatever_the_weights_f_liars_stay_within_the_honest_range(rule: str, bad: float, data: st.DataObject) -> None:
    f = data.draw(st.integers(1, 4))
    n = data.draw(st.integers(2 * f + 1, 12))
    positive = st.floats(1e-3, 1e3)
    weights = [*data.draw(st.lists(positive, min_size=n - f, max_size=n - f)), *[1e9] * f]
    honest = [{"w": torch.tensor([float(k)])} for k in range(n - f)]
    result = aggregate([*honest, *[{"w": torch.tensor([bad])}] * f], rule, f=f, weights=weights)
    assert 0 <= float(result.state_dict["w"]) <= n - f - 1 + 1e-5
    shares = [each.weight or 0.0 for each in result.report.participants]
    assert sum(shares) == pytest.approx(1) and max(shares) <= (1 + 1e-9) / (2 * f + 1)


def test_no_weight_no_say() -> None:
    given = [{"w": torch.tensor([value])} for value in (1.0, 2.0, 3.0, NAN)]
    for rule in WEIGHTED:
        assert float(aggregate(given, rule, f=0, weights=[1, 1, 1, 0]).state_dict["w"]) == pytest.approx(2.0)


@pytest.mark.parametrize("rule", ["krum", "nnm+median", "median:even=mean", "geometric-median"])
def test_other_rules_refuse_weights_and_name_those_that_take_them(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"takes no weights: .*\(average, median, trimmed-mean\)"):
        aggregate(FIVE, rule, f=1, weights=[1] * 5)


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ([1, 1], "5 participants and 2 weights"),
        ([1, 1, 1, 1, -1], "at least 0, got -1"),
        ([1, 1, 1, 1, NAN], "finite and at least 0, got nan"),
        ([1, 1, 1, 1, INF], "finite and at least 0, got inf"),
        (["x"] * 5, "one number per participant"),
        (3.0, "one number per participant"),
        ([1, 1, 0, 0, 0], "2f [+] 1 = 3 participants of positive weight for f = 1, got 2"),
        ({"a": 1}, "only among the"),
    ],
)
def test_weights_that_are_none_say_why(weights: Any, why: str) -> None:
    with pytest.raises(GyroscopeError, match=why):
        aggregate(FIVE, "median", f=1, weights=weights)


def test_weights_may_be_huge_or_a_tensor() -> None:
    report = aggregate(FIVE, "median", f=0, weights=torch.tensor([1e308] * 4 + [0.0], dtype=torch.float64)).report
    assert [each.weight for each in report.participants] == [0.25] * 4 + [0.0]


def test_what_cannot_be_aggregated_says_why() -> None:
    with pytest.raises(RowsError, match="a single state dict"):
        aggregate(FIVE[0], "median", f=0)  # type: ignore[arg-type]
    with pytest.raises(RowsError, match="there are no state dicts"):
        aggregate([], "median", f=0)
    with pytest.raises(RowsError, match=r"must be a list of state dicts .* got a int"):
        aggregate(7, "median", f=0)  # type: ignore[arg-type]
    with pytest.raises(InfeasibleError, match=r"n >= 2f [+] 1 = 7"):
        aggregate(FIVE, "median", f=3)
    with pytest.raises(ConfigError, match="needs a gradient at samples"):
        aggregate(FIVE, "zeno", f=1)


@pytest.mark.parametrize("rule", ["average", "median", "trimmed-mean", "krum", "nnm+median", "geometric-median"])
@given(st.data())
def test_permuting_participants_permutes_the_report_and_nothing_else(rule: str, data: st.DataObject) -> None:
    n, f = data.draw(st.integers(5, 8)), 0 if rule == "average" else 1
    number = st.floats(-100, 100, width=32)
    given_ = [
        one(data.draw(number), data.draw(st.lists(number, min_size=2, max_size=2)), data.draw(st.integers(0, 9)))
        for _ in range(n)
    ]
    if f and data.draw(st.booleans()):
        given_[data.draw(st.integers(0, n - 1))] = data.draw(st.sampled_from([{}, one(NAN, [0, 0]), one(0, [0])]))
    order = data.draw(st.permutations(range(n)))
    weighted = rule in WEIGHTED and data.draw(st.booleans())
    weights = data.draw(st.lists(st.floats(0.1, 10), min_size=n, max_size=n)) if weighted else None
    plain = aggregate(given_, rule, f=f, weights=weights)
    permuted = aggregate([given_[k] for k in order], rule, f=f, weights=weights and [weights[k] for k in order])
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(permuted.state_dict, plain.state_dict, **close)
    assert {order[int(k)] for k in permuted.report.left_out} == set(plain.report.left_out)
    for place, k in enumerate(order):
        got, wanted = permuted.report.participants[place], plain.report.participants[k]
        assert got.name == place and got.problem == wanted.problem
        assert got.weight == (wanted.weight if wanted.weight is None else pytest.approx(wanted.weight))

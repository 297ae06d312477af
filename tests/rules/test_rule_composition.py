"""Pre-aggregations against their oracles, and rules with pre-aggregations before them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable

import pre_oracles
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import BAD, Problem, matrices, normal, problems, seeds
from torch import Tensor

from gyroscope import rules
from gyroscope._core.errors import ConfigError, GyroscopeError, InfeasibleError, UnknownNameError
from gyroscope._linalg import distances
from gyroscope.rules import (
    ARC,
    NNM,
    PREAGGREGATIONS,
    Aggregate,
    Average,
    Bucketing,
    Bulyan,
    Chain,
    Clip,
    Composed,
    Krum,
    Median,
    Preaggregation,
    Prepared,
    Rule,
    RuleContext,
    RuleState,
    parse,
)

CONTEXT = RuleContext(step=5, seed=11)
by_stage = pytest.mark.parametrize("name", PREAGGREGATIONS)
nan, inf = math.nan, math.inf


def close(got: Tensor, right: list[list[float]], problem: Problem) -> None:
    """Equal to rounding, NaN where there is NaN; an infinity may be of the mean or of its sum."""
    expected = torch.tensor(right, dtype=torch.float64)
    got = got.double()
    finite = expected.isfinite() & (expected.abs() < 1e37)
    assert got.shape == expected.shape
    assert (got - expected)[finite].abs().le(problem.rounding).all()
    assert torch.equal(expected.isnan() & ~got.isinf(), got.isnan())


# ------------------------------------------------------------------------------------------------- the stages


@given(data=st.data())
def test_nnm_is_the_mean_of_the_n_f_nearest(data: st.DataObject) -> None:
    problem = data.draw(problems(Median(), bad=BAD))
    rows = problem.rows.tolist()
    assume(not pre_oracles.nnm_in_doubt(rows, problem.f, strict=False))
    prepared = NNM()(problem.rows, problem.f)
    mixed, neighbours = pre_oracles.nnm(rows, problem.f)
    close(prepared.rows, mixed, problem)
    assert prepared.shares is not None
    for i, near in enumerate(neighbours):
        expected = [1 / len(near) if j in near else 0.0 for j in range(problem.n)]
        assert prepared.shares[i].tolist() == pytest.approx(expected)


@given(data=st.data())
def test_nnm_keeps_bad_rows_out_of_the_others(data: st.DataObject) -> None:
    problem = data.draw(problems(Median(), bad=[kind for kind in BAD if kind != "copy"]))
    prepared = NNM()(problem.rows, problem.f)
    assert prepared.shares is not None
    good = [i for i in range(problem.n) if i not in problem.bad]
    assert prepared.rows[good].isfinite().all()
    assert prepared.rows[good].abs().max() <= problem.magnitude + problem.rounding
    assert not prepared.shares[good][:, list(problem.bad)].any()


def test_nnm_takes_itself_where_many_are_equal() -> None:
    prepared = NNM()(torch.ones(7, 2), 3)
    assert prepared.shares is not None
    assert (prepared.shares.diagonal() == 1 / 4).all()
    assert prepared.shares[6].tolist() == [1 / 4, 1 / 4, 1 / 4, 0, 0, 0, 1 / 4]


def test_nnm_takes_fewer_where_more_than_f_are_bad() -> None:
    rows = torch.tensor([[1.0], [2.0], [nan], [inf], [6.0]])
    assert NNM()(rows, 1).rows.flatten()[[0, 1, 4]].tolist() == [3.0, 3.0, 3.0]


@given(data=st.data())
def test_bucketing_is_the_mean_of_random_buckets(data: st.DataObject) -> None:
    problem = data.draw(problems(Median(), bad=BAD))
    s = data.draw(st.integers(1, 5))
    context = RuleContext(step=data.draw(st.integers(0, 9)), seed=3)
    order = torch.randperm(problem.n, generator=context.generator("buckets")).tolist()
    assert sorted(order) == list(range(problem.n))
    prepared = Bucketing(s=s)(problem.rows, problem.f, context)
    assert len(prepared.rows) == Bucketing(s=s).rows_left(problem.n) == math.ceil(problem.n / s)
    close(prepared.rows, pre_oracles.bucketing(problem.rows.tolist(), s, order), problem)
    assert prepared.shares is not None
    buckets = [order[start : start + s] for start in range(0, problem.n, s)]
    for share, bucket in zip(prepared.shares, buckets, strict=True):
        assert share.tolist() == pytest.approx([(i in bucket) / len(bucket) for i in range(problem.n)])
    # At most as many buckets are bad as rows are.
    assert sum(bool(set(bucket) & set(problem.bad)) for bucket in buckets) <= problem.f


def test_buckets_are_dealt_anew_in_each_round_and_by_the_seed() -> None:
    rows = normal(12, 2, seed=0)
    dealt = [Bucketing()(rows, 1, RuleContext(step, seed)).rows for step, seed in ((0, 0), (1, 0), (0, 1), (0, 0))]
    assert torch.equal(dealt[0], dealt[3])
    assert not torch.equal(dealt[0], dealt[1]) and not torch.equal(dealt[0], dealt[2])


@given(data=st.data())
def test_clipping_shortens_what_is_too_long_and_zeroes_what_has_no_length(data: st.DataObject) -> None:
    problem = data.draw(problems(Median(), bad=BAD))
    norm = data.draw(st.sampled_from([1e-3, 1.0, 5.0, 1e4]))
    left = Clip(norm=norm)(problem.rows, problem.f).rows
    right = torch.tensor(pre_oracles.clip(problem.rows.tolist(), norm), dtype=torch.float64)
    # A row that was shortened is as long as the limit, however short the honest rows are.
    rounding = problem.rounding + 8 * torch.finfo(problem.rows.dtype).eps * norm
    assert ((left.double() - right).abs() <= rounding).all()
    assert left.isfinite().all()
    assert (left.double().norm(dim=1) <= norm * (1 + 1e-6)).all()
    short = problem.rows.double().norm(dim=1) <= norm
    assert torch.equal(left[short], problem.rows[short])


@given(data=st.data())
def test_arc_clips_the_k_longest_to_the_next(data: st.DataObject) -> None:
    problem = data.draw(problems(Median(), bad=BAD))
    left = ARC()(problem.rows, problem.f).rows
    close(left, pre_oracles.arc(problem.rows.tolist(), problem.f), problem)
    assert left.isfinite().all()
    longest = problem.honest.double().norm(dim=1).max()
    assert (left.double().norm(dim=1) <= longest * (1 + 1e-6)).all()


def test_arc_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 10.0], [2.0, 0.0], [-8.0, 6.0]])
    assert ARC()(rows, 0).rows.equal(rows)
    left = ARC()(rows, 1).rows  # k = floor(2/5 * 4) = 1: the first of both of length 10 has nothing to lose
    assert left.equal(rows)
    left = ARC()(rows, 2).rows  # k = floor(4/5 * 3) = 2: both are shortened to 5
    torch.testing.assert_close(left, torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 5.0], [2.0, 0.0], [-4.0, 3.0]]))


def test_a_row_of_3e38_keeps_its_direction() -> None:
    rows = torch.full((3, 4), 3e38)
    rows[1] = -rows[1]
    torch.testing.assert_close(Clip(norm=2.0)(rows, 1).rows, torch.tensor([1.0, -1.0, 1.0]).unsqueeze(1).expand(3, 4))


def test_clipping_makes_even_the_average_finite() -> None:
    for value in (nan, inf, -inf, 3e38):
        rows = normal(9, 5, seed=2, dtype=torch.float32)
        rows[4] = value
        for stage in (Clip(norm=1.0), ARC()):
            rule = stage >> Average()
            assert rule.resilient and rule.guarantee == "finite"
            assert rule(rows, 1).vector.isfinite().all()
    assert not (NNM() >> Average()).resilient and (NNM() >> Average()).guarantee == "none"


@by_stage
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=["f16", "f32", "f64"])
def test_a_stage_keeps_dtype_and_does_not_change_its_input(name: str, dtype: torch.dtype) -> None:
    rows = normal(9, 33, seed=3, dtype=dtype)
    rows[2, 5] = nan
    before = rows.clone()
    left, shares, state = PREAGGREGATIONS[name]()(rows, 2, CONTEXT)
    assert left.dtype == dtype and not state
    left.fill_(7.0)
    assert torch.equal(rows.nan_to_num(nan=7), before.nan_to_num(nan=7))
    assert shares is not None and shares.dtype == torch.float64
    assert shares.sum(dim=1).tolist() == pytest.approx([1.0] * len(left))


@by_stage
def test_a_stage_works_in_blocks_of_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = normal(9, 40, seed=4)
    rows[3, 39] = nan
    whole = PREAGGREGATIONS[name]()(rows, 2, CONTEXT).rows
    monkeypatch.setattr("gyroscope._linalg.matrix._BLOCK", 7)
    torch.testing.assert_close(PREAGGREGATIONS[name]()(rows, 2, CONTEXT).rows, whole, equal_nan=True)


@by_stage
def test_a_stage_describes_itself(name: str) -> None:
    kind = PREAGGREGATIONS[name]
    assert kind.name == name and kind.summary and kind.paper and kind.needs
    assert str(kind()) == name and kind() == kind()
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().anything = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Bucketing(s=0), "whole number of rows of at least 1, got 0"),
        (lambda: Bucketing(s=True), "got True"),
        (lambda: Bucketing(s=2.0), "got 2.0"),  # type: ignore[arg-type]
        (lambda: Clip(norm=0), "positive, finite number, got 0"),
        (lambda: Clip(norm=nan), "got nan"),
        (lambda: Clip(norm=inf), "got inf"),
        (lambda: Clip(norm="1"), "got '1'"),  # type: ignore[arg-type]
        (lambda: Composed((), Krum()), "at least one pre-aggregation"),
    ],
)
def test_wrong_parameters_are_refused(make: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()  # type: ignore[operator]


# --------------------------------------------------------------------------------------------- composition

CHAINS = ["nnm+krum", "nnm+bulyan", "nnm+mda", "nnm+monna", "nnm+smea", "nnm+caf", "arc+nnm+krum:m=1",
          "bucketing:s=3+krum:m=1", "nnm+bucketing+krum", "arc+nnm+median", "clip+bulyan"]  # fmt: skip
by_chain = pytest.mark.parametrize("spec", CHAINS)


@by_chain
@given(seed=seeds)
def test_a_composed_rule_is_the_rule_on_what_the_stages_leave(spec: str, seed: int) -> None:
    rule = parse(spec)
    assert isinstance(rule, Composed)
    f = seed % 3
    rows = normal(rule.min_workers(f) + seed % 4, 6, seed)
    if f:
        rows[1 + seed % (len(rows) - 1)] = (nan, inf, 3e38)[seed % 3]  # monna trusts the first
    left, shares = rows, torch.eye(len(rows), dtype=torch.float64)
    for place, stage in enumerate(rule.stages):
        prepared = stage(left, f, CONTEXT.within(f"{place}:{stage.name}"))
        assert prepared.shares is not None
        left, shares = prepared.rows, prepared.shares @ shares
    expected = rule.rule(left, f)
    vector, weight = rule(rows, f, CONTEXT)
    assert vector.isfinite().all()
    # A rule behind nnm that reads distances does not compute the mixed rows.
    torch.testing.assert_close(vector, expected.vector, rtol=1e-10, atol=1e-10)
    if expected.weight is None:
        assert weight is None
    else:
        assert weight is not None
        torch.testing.assert_close(weight, expected.weight @ shares)
        assert float(weight.sum()) == pytest.approx(1)


@pytest.mark.parametrize("spec", ["nnm+krum", "bucketing:s=3+krum:m=1", "nnm+bucketing+krum", "nnm+nnm+average"])
def test_weights_that_come_back_to_the_workers_give_the_vector(spec: str) -> None:
    rule = parse(spec)
    rows = normal(rule.min_workers(2) + 1, 5, seed=8)
    vector, weight = rule(rows, 2, CONTEXT)
    assert weight is not None
    torch.testing.assert_close(weight @ rows, vector)


@pytest.mark.parametrize("spec", ["nnm+krum", "nnm+bucketing+krum", "nnm+bulyan", "arc+nnm+krum"])
@given(data=st.data())
def test_far_rows_leave_a_composed_rule_near_the_honest(spec: str, data: st.DataObject) -> None:
    rule = parse(spec)
    problem = data.draw(problems(rule, bad=BAD))
    vector = problem.apply(rule).vector.double()
    assert vector.isfinite().all()
    if "arc" not in spec:  # which shortens honest rows, too
        assert (vector >= problem.honest.double().amin(dim=0) - problem.rounding).all()
        assert (vector <= problem.honest.double().amax(dim=0) + problem.rounding).all()


@pytest.mark.parametrize("spec", ["nnm+trimmed-mean", "arc+krum", "arc+nnm+median"])
@given(seed=seeds)
def test_symmetries_that_no_stage_takes_away_stay(spec: str, seed: int) -> None:
    rule = parse(spec)
    rows = normal(rule.min_workers(2) + seed % 3, 4, seed)
    vector = rule(rows, 2).vector
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    assert not {"permutation", "scale"} & set(rule.unsupported)
    torch.testing.assert_close(rule(rows[order], 2).vector, vector, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rule(rows * 8, 2).vector, vector * 8, rtol=1e-9, atol=1e-9)
    if "translation" not in rule.unsupported:
        torch.testing.assert_close(rule(rows + 3, 2).vector, vector + 3, rtol=1e-9, atol=1e-9)


def test_nnm_at_f_0_is_the_mean() -> None:
    rows = normal(9, 4, seed=5)
    torch.testing.assert_close((NNM() >> Median())(rows, 0).vector, rows.mean(dim=0))


def test_what_a_composed_rule_says_of_itself() -> None:
    rule = NNM() >> Bucketing(s=3) >> Krum(m=1)
    assert rule.name == "nnm+bucketing+krum" and rule.resilient
    assert rule.uses == {"randomness"} and "permutation" in rule.unsupported
    assert rule.needs == "n >= 6f + 7" and rule.min_workers(2) == 19 and rule.ratio_bound(19, 2) is None
    assert rule.guarantee == "finite" and (Bucketing() >> Median()).guarantee == "range"
    assert (Bucketing() >> Krum()).guarantee == "finite"
    assert (Bucketing() >> Bulyan()).guarantee == "finite" and (Bucketing() >> Bulyan()).bound_factor(23, 2) == 0
    assert rule == NNM() >> (Bucketing(s=3) >> Krum(m=1)) == (NNM() >> Bucketing(s=3)) >> Krum(m=1)
    assert isinstance(NNM() >> Bucketing(), Chain) and NNM() >> (Clip() >> ARC()) >> Krum() == parse(
        "nnm+clip+arc+krum"
    )
    assert rule != NNM() >> Bucketing(s=2) >> Krum(m=1) and len({rule, parse(str(rule))}) == 1


@pytest.mark.parametrize(
    ("compose", "says"),
    [
        (lambda: Krum() >> NNM(), r"a rule comes last, .*: write NNM\(\) >> Krum\(m=None"),
        (lambda: Krum() >> NNM, r"a rule comes last, .*: write NNM\(\) >> Krum\(m=None"),
        (
            lambda: Median() >> Krum(),
            r"a rule comes last, and median is one: .*Mixture\(\[Median\(even='lower'\), Krum\(",
        ),
        (lambda: NNM() >> Krum, r"Krum is a class, not yet an object: write NNM\(\) >> Krum\(\)"),
        (lambda: NNM() >> Bucketing(s=3) >> Krum, r"write NNM\(\) >> Bucketing\(s=3\) >> Krum\(\)"),
        (lambda: NNM >> Median(), r"NNM is a class, not yet an object: write NNM\(\) >> Median\("),
        (lambda: NNM >> ARC(), r"write NNM\(\) >> ARC\(\) >> Krum\(\)"),
        (lambda: NNM() >> "krum", r"'krum' is a spec: write the whole as one, rules.parse\('nnm\+krum'\)"),
        (lambda: "nnm" >> Krum(), "'nnm' is a spec"),
        (lambda: NNM() >> 3, "got 3"),
    ],
)
def test_what_cannot_be_composed_is_told_what_to_write(compose: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        compose()


# ---------------------------------------------------------------------------------------------- columns


def test_only_what_can_work_on_columns_says_so() -> None:
    reads = {
        spec: parse(spec).reads for spec in ("nnm+median", "nnm+average", "nnm+krum", "clip+median", "nnm+nnm+median")
    }
    assert reads == {
        "nnm+median": "distances",
        "nnm+average": "distances",
        "nnm+krum": "rows",
        "clip+median": "rows",
        "nnm+nnm+median": "rows",
    }
    assert parse("bucketing+median").reads == parse("random:median/average").reads == "rows"


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "meamed", "phocas"])
def test_nnm_and_order_statistics_on_parts_of_the_columns_give_the_same_bits(rule: str) -> None:
    rows = normal(11, 301, seed=5, dtype=torch.float32)
    table = distances.squared_distances(rows)
    both = parse(f"nnm+{rule}")
    parts = [
        both.on_columns(rows[:, begin:end].contiguous(), 2, table).vector
        for begin, end in itertools.pairwise([0, 1, 40, 301])
    ]
    assert torch.equal(torch.cat(parts), both(rows, 2).vector)


@pytest.mark.parametrize("bad", [0.0, nan, inf, 3e38], ids=str)
def test_nnm_on_parts_of_the_columns_gives_the_whole(bad: float) -> None:
    rows = normal(11, 300, seed=5, dtype=torch.float32)
    rows[3, 0] = bad
    rows[7, 299] = -bad
    parts = [rows[:, begin:end].contiguous() for begin, end in itertools.pairwise([0, 1, 40, 300])]
    table = torch.stack([distances.squared_distances(part) for part in parts]).sum(dim=0)
    for rule in (NNM() >> Median(), NNM() >> Columns() >> Median()):
        aggregates = [rule.on_columns(part, 2, table) for part in parts]
        whole = rule(rows, 2)
        torch.testing.assert_close(torch.cat([one.vector for one in aggregates]), whole.vector)


@dataclasses.dataclass(frozen=True)
class Columns(Preaggregation):
    name = "columns"
    reads = "columns"

    def prepare(self, rows: Tensor, f: int, context: RuleContext) -> Prepared:
        return Prepared(rows * 2, None)


def test_a_stage_without_shares_takes_the_weights_away() -> None:
    assert (Columns() >> Krum())(normal(7, 2, seed=0), 2).weight is None


# ------------------------------------------------------------------------------------------- feasibility


@pytest.mark.parametrize(
    ("spec", "n", "f", "message"),
    [
        (
            "nnm+bucketing+krum", 11, 2,
            "nnm+bucketing+krum needs n >= 4f + 5 = 13 workers for f = 2, got n = 11, because bucketing leaves 6 rows "
            "and krum needs 7 (n >= 2f + 3): lower f to 1, use at least 13 workers or leave out bucketing",
        ),
        (
            "bucketing:s=5+krum", 23, 2,
            "bucketing:s=5+krum needs n >= 10f + 11 = 31 workers for f = 2, got n = 23, because bucketing:s=5 leaves 5 "
            "rows and krum needs 7 (n >= 2f + 3): lower f to 1, use at least 31 workers, use bucketing:s=3 or leave "
            "out bucketing:s=5",
        ),
        (
            "nnm+krum", 6, 2,
            "nnm+krum needs n >= 2f + 3 = 7 workers for f = 2, got n = 6, because of krum: lower f to 1, use at least "
            "7 workers or use nnm+median",
        ),
        (  # nnm alone would be content with 13
            "nnm+bulyan", 11, 6,
            "nnm+bulyan needs n >= 4f + 3 = 27 workers for f = 6, got n = 11, because of bulyan: lower f to 2 or use "
            "at least 27 workers",
        ),
        (
            "nnm+average", 4, 2,
            "nnm+average needs n >= 2f + 1 = 5 workers for f = 2, got n = 4, because of nnm: lower f to 1 or use at "
            "least 5 workers",
        ),
        (
            "bucketing+krum", 2, 0,
            "bucketing+krum needs n >= 4f + 5 = 5 workers for f = 0, got n = 2, because bucketing leaves 1 row and "
            "krum needs 3 (n >= 2f + 3): use at least 5 workers",
        ),
    ],
)  # fmt: skip
def test_an_infeasible_f_is_told_with_the_stage(spec: str, n: int, f: int, message: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        parse(spec).check_feasible(n, f)
    assert str(caught.value) == message
    with pytest.raises(InfeasibleError):
        parse(spec)(torch.zeros(n, 2), f)


@pytest.mark.parametrize("spec", [*CHAINS, "bucketing:s=5+krum", "nnm+bucketing:s=4+bulyan", "bucketing+nnm+median"])
def test_every_remedy_for_a_composed_rule_works(spec: str) -> None:
    rule = parse(spec)
    assert isinstance(rule, Composed)
    for f in (0, 1, 2, 6):
        for n in range(1, rule.min_workers(f)):
            with pytest.raises(InfeasibleError) as caught:
                rule.check_feasible(n, f)
            for remedy in re.split(", | or ", str(caught.value).rpartition(": ")[2]):
                if match := re.fullmatch(r"lower f to (\d+)", remedy):
                    rule.check_feasible(n, int(match[1]))
                elif match := re.fullmatch(r"use at least (\d+) workers", remedy):
                    assert int(match[1]) == rule.min_workers(f)
                elif match := re.fullmatch(r"leave out (\S+)", remedy):
                    parse(spec.replace(f"{match[1]}+", "")).check_feasible(n, f)
                elif match := re.fullmatch(r"use (bucketing:s=\d)", remedy):
                    milder = re.sub(r"bucketing(:s=\d)?", match[1], spec)
                    assert milder != spec
                    parse(milder).check_feasible(n, f)
                else:
                    parse(remedy.removeprefix("use ")).check_feasible(n, f)


@pytest.mark.parametrize("spec", [*CHAINS, "bucketing:s=4+median", "bucketing+bucketing+krum"])
def test_min_workers_is_the_least_that_every_stage_can_do_with(spec: str) -> None:
    rule = parse(spec)
    assert isinstance(rule, Composed)
    for f in range(6):
        n = rule.min_workers(f)
        rule.check_feasible(n, f)
        rule(normal(n, 2, seed=f), f)
        left = n - 1
        for stage in rule.stages:
            left = stage.rows_left(left)
        assert left < rule.rule.min_workers(f) or n - 1 < 2 * f + 1
        with pytest.raises(InfeasibleError):
            rule.check_feasible(n - 1, f)


def test_a_rules_own_parameters_are_checked_with_the_rows_that_are_left() -> None:
    parse("bucketing+krum:m=6").check_feasible(19, 2)
    with pytest.raises(
        ConfigError, match=r"at most n-f-2 = 6 for n = 10 and f = 2, got m = 7 \(in bucketing\+krum:m=7, "
    ):
        parse("bucketing+krum:m=7").check_feasible(19, 2)


@pytest.mark.parametrize("f", [True, 1.0, "2"], ids=repr)
def test_f_is_a_whole_number(f: object) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        parse("nnm+krum")(torch.zeros(9, 2), f)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="whole number"):
        NNM()(torch.zeros(9, 2), f)  # type: ignore[arg-type]


def test_a_rule_that_follows_workers_cannot_stand_behind_a_shuffle() -> None:
    assert parse("nnm+safeguard").tracks_workers
    with pytest.raises(ConfigError, match=r"safeguard must know which worker .* bucketing before it mixes them up"):
        parse("bucketing+safeguard")
    with pytest.raises(ConfigError, match="mixes them up"):
        parse("bucketing+random:krum/safeguard")


# --------------------------------------------------------------------------------------- state, randomness


@dataclasses.dataclass(frozen=True)
class Counting(Preaggregation):
    """Adds the number of rounds in its state, and a random number."""

    name = "counting"

    def prepare(self, rows: Tensor, f: int, context: RuleContext) -> Prepared:
        count = context.state.get("count", torch.zeros(()))
        noise = torch.rand((), generator=context.generator("noise"))
        return Prepared(rows + count + noise, None, {"count": count + 1})


@dataclasses.dataclass(frozen=True)
class Last(rules.ContextualRule):
    """The first row; keeps it as state and asserts that no other stage's state is here."""

    name = "last"

    def min_workers(self, f: int) -> int:
        return 1

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        assert set(context.state) <= {"count"}
        return Aggregate(rows[0].clone(), None), {"count": rows[0].clone()}


def test_stages_have_state_and_randomness_of_their_own() -> None:
    rule = Counting() >> Counting() >> Last()
    rows, state = torch.zeros(3, 1), {}
    for step in range(3):
        (vector, _), state = rule.step(rows, 0, RuleContext(step, 5, state))
        assert sorted(state) == ["0:counting/count", "1:counting/count", "2:last/count"]
        whole, part = divmod(float(vector), 1)
        noise = [
            float(torch.rand((), generator=RuleContext(step, 5).within(f"{place}:counting").generator("noise")))
            for place in range(2)
        ]
        assert noise[0] != noise[1] and whole + part == pytest.approx(2 * step + sum(noise))
        assert float(state["0:counting/count"]) == step + 1
        assert float(state["2:last/count"]) == float(vector)


# -------------------------------------------------------------------------------------------------- specs

stages = st.one_of(
    st.just(NNM()),
    st.builds(Bucketing, s=st.integers(1, 9)),
    st.builds(Clip, norm=st.floats(1e-300, 1e300)),
    st.just(ARC()),
)
singles = st.sampled_from([Krum(), Krum(m=2, squared=True), Median(even="mean"), Bulyan(rescore=True), Average()])
chains: st.SearchStrategy[Rule] = st.builds(
    lambda before, rule: Composed(tuple(before), rule) if before else rule, st.lists(stages, max_size=3), singles
)
mixtures = st.builds(
    rules.Mixture, st.lists(chains, min_size=2, max_size=3), st.sampled_from(["random", "round-robin"])
)
anything = st.one_of(
    chains,
    st.builds(lambda before, rule: Composed(tuple(before), rule) if before else rule, st.lists(stages), mixtures),
)


@given(rule=anything)
def test_the_text_of_any_composition_builds_it_again(rule: Rule) -> None:
    text = str(rule)
    assert rules.parse(text) == rules.make(text) == rule
    assert str(rules.parse(text)) == text
    assert hash(rules.parse(text)) == hash(rule)
    assert rules.parse(text.replace("+", " + ") if "e+" not in text else text) == rule
    assert eval(repr(rule), vars(rules)) == rule


def test_specs_by_hand() -> None:
    assert parse("nnm+bucketing:s=2+krum") == NNM() >> Bucketing(s=2) >> Krum()
    assert str(parse("nnm+bucketing:s=2+krum")) == "nnm+bucketing+krum"
    assert str(Clip(norm=1e20) >> Krum(m=1)) == "clip:norm=1e+20+krum:m=1" == str(parse("clip:norm=1e+20+krum:m=1"))
    assert rules.make("nnm+krum", m=3) == NNM() >> Krum(m=3)
    here = f"{__name__}:Columns+{__name__}:Last"
    assert parse(here) == Columns() >> Last() and str(parse(here)) == here
    assert repr(parse("nnm+median")) == "NNM() >> Median(even='lower')"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nnm", "'nnm' is a pre-aggregation and needs a rule after it: write nnm[+]krum"),
        ("krum+nnm", "'nnm' is a pre-aggregation and needs a rule after it"),
        ("krum+median", "the rule 'krum' can only come last"),
        ("nmm+krum", "unknown preaggregation 'nmm': did you mean 'nnm'"),
        ("nnm+krun", "unknown rule 'krun': did you mean 'krum'"),
        ("bucketing:t=2+krum", "unknown parameter 't' of preaggregation 'bucketing'"),
        ("bucketing:s+krum", "name:key=value"),
        ("nnm+", "unknown rule 'nnm[+]'"),
        ("+krum", "unknown preaggregation ''"),
        ("gyroscope.rules:Krum+krum", "no preaggregation"),
    ],
)
def test_a_mistake_in_a_spec_says_which_part(spec: str, says: str) -> None:
    with pytest.raises(GyroscopeError, match=says):
        parse(spec)


def test_an_unknown_stage_is_an_unknown_name() -> None:
    with pytest.raises(UnknownNameError):
        parse("nmn+krum")


@given(data=st.data())
def test_huge_equal_rows_are_no_trouble_to_nnm(data: st.DataObject) -> None:
    rows = data.draw(matrices(7, dtype=torch.float64))
    rows[1:3] = 1.7e308
    vector = (NNM() >> Krum())(rows, 2).vector
    assert vector.isfinite().all() and vector.abs().max() <= rows[3:].abs().max() + rows[0].abs().max()

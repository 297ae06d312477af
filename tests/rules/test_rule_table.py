"""The table of rules: the class variables of each entry, calls with f, and the mistakes that each rule refuses."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from oracles import RULE_ORACLES
from strategies import RULE_SPECS, Problem, normal
from torch import Tensor

from gyroscope import rules
from gyroscope._core.errors import ConfigError, GyroscopeError, InfeasibleError, RowsError
from gyroscope.rules import (
    ARC,
    NNM,
    RULES,
    Aggregate,
    Average,
    Bulyan,
    Composed,
    Krum,
    Median,
    Mixture,
    Rule,
    make,
    parse,
)

by_name = pytest.mark.parametrize("name", RULES)
by_spec = pytest.mark.parametrize("spec", RULE_SPECS)
with_m = pytest.mark.parametrize("kind", [Krum, Bulyan], ids=["krum", "bulyan"])


# --------------------------------------------------------------------------------------- class variables


@by_name
def test_a_rule_has_an_oracle(name: str) -> None:
    assert name in RULE_ORACLES, "add the rule to RULE_ORACLES in tests/oracles.py"


@by_name
def test_a_rule_describes_itself(name: str) -> None:
    kind = RULES[name]
    assert kind.name == name
    assert kind.summary and kind.needs and kind.paper
    assert kind.fallback is None or kind.fallback in RULES.values()


@by_name
def test_a_rule_is_a_frozen_value(name: str) -> None:
    rule = RULES[name]()
    assert rule == RULES[name]() and hash(rule) == hash(RULES[name]())
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.anything = 1  # type: ignore[attr-defined]


@by_spec
def test_the_representation_builds_the_rule_again(spec: str) -> None:
    assert eval(repr(parse(spec)), vars(rules)) == parse(spec)


@by_spec
def test_the_stated_need_is_the_enforced_bound(spec: str) -> None:
    rule = parse(spec)
    match = re.fullmatch(r"n >= (\d*)f \+ (\d+)", rule.needs)
    assert match, rule.needs
    times, plus = int(match[1] or 1), int(match[2])
    assert [rule.min_workers(f) for f in range(20)] == [times * f + plus for f in range(20)]


def test_the_bounds_are_the_papers() -> None:
    assert [Krum().min_workers(f) for f in (0, 1, 24)] == [3, 5, 51]
    assert [Median().min_workers(f) for f in (0, 1, 24)] == [1, 3, 49]
    assert [Bulyan().min_workers(f) for f in (0, 1, 12)] == [3, 7, 51]
    assert [Average().min_workers(f) for f in (0, 1, 12)] == [1, 2, 13]


def test_only_the_average_has_no_guarantee() -> None:
    assert [name for name, kind in RULES.items() if not kind.resilient] == ["average"]


def test_an_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(GyroscopeError, match="did you mean 'bulyan'"):
        rules.make("bulian")


# ------------------------------------------------------------------------------------------ feasibility


@by_spec
@pytest.mark.parametrize("f", [0, 1, 2, 5])
def test_the_bound_is_feasible_and_one_less_is_not(spec: str, f: int) -> None:
    rule = parse(spec)
    n = rule.min_workers(f)
    assert Problem(normal(n, 3, seed=f), f).apply(rule).vector.shape == (3,)
    if n > 1:
        with pytest.raises(InfeasibleError, match=rf"= {n} workers for f = {f}, got n = {n - 1}[:,] "):
            rule(normal(n - 1, 3, seed=f), f)


def test_the_infeasible_message_names_bound_value_and_remedy() -> None:
    message = "Bulyan needs n >= 4f + 3 = 51 workers for f = 12, got n = 45: lower f to 10, use at least 51 workers or "
    message += "use krum"
    with pytest.raises(InfeasibleError) as caught:
        Bulyan()(torch.zeros(45, 2), 12)
    assert str(caught.value) == message
    with pytest.raises(InfeasibleError) as caught:
        Bulyan().check_feasible(45, 12)
    assert str(caught.value) == message
    with pytest.raises(InfeasibleError, match=r"^Krum needs n >= 2f \+ 3 = 11 workers for f = 4, got n = 10: lower f"):
        Krum()(torch.zeros(10, 2), 4)
    with pytest.raises(InfeasibleError, match=r"^Median needs n >= 2f \+ 1 = 9 workers for f = 4, got n = 8: lower f"):
        Median()(torch.zeros(8, 2), 4)


@by_name
def test_every_remedy_in_the_infeasible_message_works(name: str) -> None:
    rule = RULES[name]()
    cases = [(n, f) for f in (0, 1, 2, 3, 6, 12) for n in range(1, rule.min_workers(f))]
    for n, f in cases:
        with pytest.raises(InfeasibleError) as caught:
            rule.check_feasible(n, f)
        remedies = re.split(", | or ", str(caught.value).partition(f"got n = {n}: ")[2])
        assert any(remedies)
        for remedy in remedies:
            if match := re.search(r"lower f to (\d+)", remedy):
                rule.check_feasible(n, int(match[1]))
                with pytest.raises(InfeasibleError):
                    rule.check_feasible(n, int(match[1]) + 1)
            elif match := re.search(r"at least (\d+) workers", remedy):
                rule.check_feasible(int(match[1]), f)
            elif match := re.search(r"use ([\w-]+)$", remedy):
                RULES[match[1]]().check_feasible(n, f)
            else:
                pytest.fail(f"what kind of remedy is {remedy!r}?")


@by_name
def test_a_negative_f_is_infeasible(name: str) -> None:
    with pytest.raises(InfeasibleError, match="negative"):
        RULES[name]()(torch.zeros(9, 2), -1)


@by_name
@pytest.mark.parametrize("f", [True, False, 1.0, "1"], ids=repr)
def test_f_is_a_whole_number_and_no_bool(name: str, f: object) -> None:
    with pytest.raises(ConfigError, match="f must be a whole number"):
        RULES[name]()(torch.zeros(9, 2), f)  # type: ignore[arg-type]


# ------------------------------------------------------------------------- f when the rule is built


@by_spec
def test_a_rule_built_with_its_f_is_called_without_it(spec: str) -> None:
    plain, bound = parse(spec), make(spec, f=2)
    problem = Problem(normal(plain.min_workers(2) + 1, 5, seed=3), 2)
    context = problem.context(plain)
    expected, expected_state = plain.step(problem.rows, 2, context)
    for aggregate, state in (
        bound.step(problem.rows, context=context),
        bound.step(problem.rows, 2, context),
        (bound(problem.rows, context=context), expected_state),
    ):
        assert torch.equal(aggregate.vector, expected.vector)
        assert state.keys() == expected_state.keys()
    with pytest.raises(ConfigError, match=r"built with f = 2 and is called with f = 1: give only one"):
        bound(problem.rows, 1, context)
    with pytest.raises(ConfigError, match=r"built with f = 2 and is called with f = 1"):
        bound.check_feasible(problem.n, 1)
    with pytest.raises(ConfigError, match=r"is not told how many .* rule\(rows, f=3\), .* Krum\(f=3\)"):
        plain(problem.rows, context=context)


@by_spec
def test_a_rule_built_with_its_f_has_a_spec_and_a_representation(spec: str) -> None:
    bound = make(spec, f=2)
    assert bound.f == 2 and bound != parse(spec) and "f=2" in str(bound)
    assert parse(str(bound)) == bound == eval(repr(bound), vars(rules)) and hash(parse(str(bound))) == hash(bound)
    assert "f=" not in str(parse(spec)) and not re.search(r"\bf=", repr(parse(spec)))


@by_name
def test_f_is_a_keyword_of_every_rule_and_checked_when_it_is_built(name: str) -> None:
    assert RULES[name](f=3).f == 3 and RULES[name]().f is None
    for wrong in (-1, True, 1.5, "2"):
        with pytest.raises(GyroscopeError, match=r"f must be a whole number|f cannot be negative"):
            RULES[name](f=wrong)  # type: ignore[arg-type]


def test_positional_parameters_keep_their_meaning() -> None:
    assert Krum(1, f=3) == Krum(m=1, f=3) and Krum(1).f is None
    assert str(Krum(f=3)) == "krum:f=3" and str(Krum(m=1, f=3)) == "krum:f=3,m=1"
    assert repr(Krum(1, f=3)) == "Krum(m=1, squared=False, neighbours='n-f-2', f=3)"


def test_the_parts_of_a_rule_share_one_f() -> None:
    rows = normal(11, 4, seed=1)
    for rule in (
        NNM() >> Krum(f=2),
        parse("nnm+krum:f=2"),
        Composed((NNM(),), Krum(), f=2),
        NNM() >> (ARC() >> Krum(f=2)),
    ):
        assert rule.f == 2 and rule.rule.f == 2  # type: ignore[attr-defined]
        assert rule(rows).vector.isfinite().all()
    mixture = Mixture([Krum(f=2), NNM() >> Median()])
    assert str(mixture) == "random:krum:f=2/nnm+median:f=2" and mixture == Mixture([Krum(), NNM() >> Median()], f=2)
    for build in (lambda: Mixture([Krum(f=2), Median(f=3)]), lambda: Composed((NNM(),), Krum(f=2), f=3)):
        with pytest.raises(ConfigError, match="got f = 2 or 3: give f once, for the whole rule"):
            build()


@dataclasses.dataclass(frozen=True)
class ThirdParty(Rule):
    """A rule of another package, which knows nothing of f as a field."""

    factor: float = 1.0
    needs = "n >= f + 2"

    def __post_init__(self) -> None:
        assert self.factor > 0

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return Aggregate(rows[f] * self.factor, None)


class Bare(ThirdParty):
    """The same without a decorator of its own."""


@pytest.mark.parametrize("kind", [ThirdParty, Bare])
def test_a_third_partys_dataclass_has_f_too(kind: type[ThirdParty]) -> None:
    rows = normal(5, 3, seed=1)
    assert kind(2.0).factor == 2 and kind(2.0).f is None and repr(kind(2.0)) == f"{kind.__name__}(factor=2.0)"
    assert torch.equal(kind(2.0, f=1)(rows).vector, rows[1] * 2) and parse(str(kind(2.0, f=1))) == kind(2.0, f=1)
    assert (NNM() >> kind(f=1))(rows).vector.shape == (3,)


# ----------------------------------------------------------------------------------------- wrong rows

WRONG_ROWS = {
    "ints": torch.zeros(9, 2, dtype=torch.int64),
    "bools": torch.zeros(9, 2, dtype=torch.bool),
    "complex": torch.zeros(9, 2, dtype=torch.complex64),
    "0-d": torch.tensor(1.0),
    "1-d": torch.zeros(9),
    "3-d": torch.zeros(9, 2, 2),
    "no rows": torch.zeros(0, 2),
    "no columns": torch.zeros(9, 0),
    "empty list": [],
    "ragged list": [torch.zeros(2)] * 8 + [torch.zeros(3)],
    "mixed dtypes": [torch.zeros(2)] * 8 + [torch.zeros(2, dtype=torch.float64)],
    "list of ints": [torch.zeros(2, dtype=torch.int32)] * 9,
    "list of matrices": [torch.zeros(2, 2)] * 9,
    "list of numbers": [1.0] * 9,
    "list of lists": [[1.0, 2.0]] * 9,
    "array": torch.zeros(9, 2).numpy(),
}


@by_name
@pytest.mark.parametrize("wrong", WRONG_ROWS)
def test_wrong_rows_raise_a_rows_error(name: str, wrong: str) -> None:
    with pytest.raises(RowsError):
        RULES[name]()(WRONG_ROWS[wrong], 1)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------- wrong parameters


@with_m
@pytest.mark.parametrize("m", [0, -1, True, 1.0, "2"], ids=repr)
def test_m_is_a_positive_whole_number(kind: type[Krum | Bulyan], m: object) -> None:
    with pytest.raises(ConfigError, match=r"the m of .* must be a whole number of at least 1"):
        kind(m=m)  # type: ignore[arg-type]


@with_m
def test_m_is_at_most_n_f_2(kind: type[Krum | Bulyan]) -> None:
    rows = normal(11, 3, seed=0)
    assert kind(m=7)(rows, 2).vector.equal(kind()(rows, 2).vector)
    with pytest.raises(ConfigError, match="at most n-f-2 = 7 for n = 11 and f = 2, got m = 8"):
        kind(m=8)(rows, 2)
    with pytest.raises(ConfigError, match="at most n-f-2 = 7"):
        kind(m=8).check_feasible(11, 2)


@with_m
def test_unknown_scorings_are_refused(kind: type[Krum | Bulyan]) -> None:
    with pytest.raises(ConfigError, match="'n-f-2' or 'n-f-1'"):
        kind(neighbours="n-f")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"the squared of .* must be true or false"):
        kind(squared=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("slack", [1, 3, -2, "2", None, 2.0], ids=repr)
def test_bulyans_slack_is_the_whole_number_2_or_0(slack: object) -> None:
    with pytest.raises(ConfigError, match=r"the slack of .* must be 2"):
        Bulyan(slack=slack)  # type: ignore[arg-type]


def test_other_wrong_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the rescore of .* must be true or false"):
        Bulyan(rescore="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'lower' or 'mean'"):
        Median(even="upper")  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------- theory's bounds


def test_the_ratio_bounds_are_the_papers() -> None:
    assert Krum().ratio_bound(51, 24) == Bulyan().ratio_bound(51, 24) == 1 / (2 * 15603)
    assert Median().ratio_bound(51, 24) == 1 / 27
    assert Average().ratio_bound(51, 24) is None

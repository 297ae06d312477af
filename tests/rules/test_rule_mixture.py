"""Mixtures: which rule each round applies, the state of each rule, and the properties of the whole."""

from __future__ import annotations

import collections

import pytest
import torch
from strategies import normal

from gyroscope import rules
from gyroscope._core.errors import ConfigError, InfeasibleError, UnknownNameError
from gyroscope.rules import NNM, Average, Bucketing, Bulyan, CenteredClipping, Krum, Median, Mixture, RuleContext, parse

ROWS = normal(11, 4, seed=1)


def turn(mixture: Mixture, step: int, seed: int = 0) -> int:
    """Which of the rules was applied: all that are used here give different results."""
    vector = mixture(ROWS, 2, RuleContext(step, seed)).vector
    (place,) = (i for i, rule in enumerate(mixture.rules) if torch.equal(rule(ROWS, 2).vector, vector))
    return place


def test_round_robin_takes_them_in_turn() -> None:
    mixture = Mixture([Krum(), Median(), Average()], order="round-robin")
    assert [turn(mixture, step) for step in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_random_takes_each_about_as_often_and_by_step_and_seed_alone() -> None:
    mixture = Mixture([Krum(), Median(), Average()])
    turns = [turn(mixture, step) for step in range(120)]
    assert turns == [turn(mixture, step) for step in range(120)]
    assert turns != [turn(mixture, step, seed=1) for step in range(120)]
    assert all(25 <= count <= 55 for count in collections.Counter(turns).values()) and set(turns) == {0, 1, 2}


def test_a_rule_given_twice_comes_twice_as_often() -> None:
    mixture = Mixture([Krum(), Krum(), Median()])
    median = Median()(ROWS, 2).vector
    count = sum(torch.equal(mixture(ROWS, 2, RuleContext(step)).vector, median) for step in range(150))
    assert 30 <= count <= 70


def test_each_rule_keeps_its_own_state_while_others_have_their_turn() -> None:
    mixture = Mixture([CenteredClipping(), Median(), CenteredClipping(iterations=2)], order="round-robin")
    alone: dict[int, dict[str, torch.Tensor]] = {0: {}, 1: {}, 2: {}}
    state: rules.RuleState = {}
    for step in range(7):
        rows, place = normal(5, 3, seed=step), step % 3
        (vector, _), state = mixture.step(rows, 2, RuleContext(step, 0, state))
        expected, of_rule = mixture.rules[place].step(rows, 2, RuleContext(step, 0, alone[place]))
        alone[place] = dict(of_rule)
        assert torch.equal(vector, expected.vector)
    assert sorted(state) == ["0:centered-clipping/centre", "2:centered-clipping/centre"]


def test_what_a_mixture_says_of_itself() -> None:
    mixture = Mixture([Krum(), Bucketing() >> Median()])
    assert mixture.min_workers(1) == 5 and mixture.min_workers(5) == 21 and mixture.needs == ""
    assert Mixture([Krum(), Bulyan()]).needs == "n >= 4f + 3"
    assert mixture.resilient and not Mixture([Krum(), Average()]).resilient
    assert mixture.uses == {"randomness"} and Mixture([Krum(), Median()], "round-robin").uses == frozenset()
    assert "trusted" in Mixture([Krum(), rules.Zeno()]).uses
    assert "permutation" in mixture.unsupported and mixture.reads == "rows"
    assert Mixture([Median(), Median(even="mean")]).guarantee == "range"
    assert Mixture([Krum(), Median()]).guarantee == "finite" and Mixture([Krum(), Average()]).guarantee == "none"
    pair = Mixture([Krum(), Krum(squared=True)])
    assert pair.bound_factor(9, 2) == max(rule.bound_factor(9, 2) for rule in pair.rules)
    assert str(mixture) == "random:krum/bucketing+median" and parse(str(mixture)) == mixture


def test_an_infeasible_f_is_told_with_the_rule() -> None:
    with pytest.raises(InfeasibleError) as caught:
        Mixture([Krum(), Bulyan()])(ROWS[:10], 2)
    assert str(caught.value) == (
        "Bulyan needs n >= 4f + 3 = 11 workers for f = 2, got n = 10: lower f to 1, use at least 11 workers or use "
        "krum (in random:krum/bulyan)"
    )
    with pytest.raises(ConfigError, match=r"at most n-f-2 = 7 .*\(in round-robin:krum:m=8/median\)"):
        Mixture([Krum(m=8), Median()], "round-robin")(ROWS, 2)
    with pytest.raises(ConfigError, match="whole number"):
        Mixture([Krum(), Median()])(ROWS, True)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("random:", "a mixture needs rules: write random:krum/median"),
        ("random", "a mixture needs rules"),
        ("random:krum", "at least two rules"),
        ("random:krum/round-robin:median/bulyan", "at least two rules"),
        ("random:krum/krun", "did you mean 'krum'"),
        ("random:krum/", "unknown rule ''"),
        ("nnm+random:krum/nnm", "'nnm' is a pre-aggregation"),
    ],
)
def test_a_mistake_in_the_spec_of_a_mixture_is_told(spec: str, says: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=says):
        parse(spec)


def test_other_mistakes() -> None:
    with pytest.raises(UnknownNameError, match="unknown order 'randon' of a mixture: did you mean 'random'"):
        Mixture([Krum(), Median()], order="randon")  # type: ignore[arg-type]
    inner = Mixture([Krum(), Median()])
    for nested in ([inner, Krum()], [NNM() >> inner, Krum()], ["krum", "median"]):
        with pytest.raises(ConfigError, match="a mixture is one of rules"):
            Mixture(nested)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="in its spec"):
        rules.make("random:krum/median", m=1)

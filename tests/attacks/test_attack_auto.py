"""`factor=auto`: the search for the factor that does most damage to the configured rule, with its parameters."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from strategies import RULE_SPECS, normal
from torch import Tensor

from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks import Attack, AttackContext, Empire, EmpireStrict, Little, _compressed_rule
from gyroscope.attacks._line import weights_by_distances
from gyroscope.attacks.directed import best_factor, distance, search_factor
from gyroscope.attacks.empire_strict import opposition
from gyroscope.momentum import PLACEMENTS
from gyroscope.rules import NNM, RULES, Aggregate, Average, ContextualRule, Krum, Rule, RuleContext, RuleState, parse
from gyroscope.runs.config import Config
from gyroscope.runs.training import Run
from gyroscope.simulation.round import play_round
from gyroscope.simulation.tasks import TASKS

DIGITS = TASKS["digits"]().load()

KINDS = {"little": Little, "empire": Empire}
by_kind = pytest.mark.parametrize("kind", KINDS)
# The search calls whatever rule is configured; there is no trusted gradient here.
by_rule = pytest.mark.parametrize("spec", [spec for spec in RULE_SPECS if "trusted" not in parse(spec).uses])

GRID = [2 ** ((place + 0.37) / 8) for place in range(-64, 56)]  # from 1/256 to 128, none of them one of the search's
ENOUGH = 0.99


def context_of(rule: Rule, f: int) -> AttackContext:
    return AttackContext(rule=rule, declared_f=f)


def damage(honest: Tensor, byzantine: Tensor, rule: Rule, f: int) -> float:
    """How far the rule's output is from the honest mean."""
    return float((rule(torch.cat([honest, byzantine]), f).vector - honest.mean(dim=0)).norm())


def factor_of(kind: str, honest: Tensor, f: int, rule: Rule) -> float:
    mean, direction = KINDS[kind]().aim(CachedMoments(honest))
    return best_factor(honest, mean, direction, f, context_of(rule, f))


NARROW_PEAKS = ["bulyan:rescore=true", "bulyan:slack=0,rescore=true"]
DENSE = [*(name for name in RULES if not RULES[name].uses), "krum:m=1", "nnm+median", *NARROW_PEAKS]


def harm(attack: Attack, honest: Tensor, rule: Rule, f: int) -> float:
    """Return what the attack searches for: the distance from the honest mean, or how far against it the result is."""
    mean = honest.mean(dim=0)
    away = mean - rule(torch.cat([honest, attack(honest, f, rule=rule)]), f).vector
    return float(away @ mean / mean.norm()) if isinstance(attack, EmpireStrict) else float(away.norm())


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda x: Little(factor=x), lambda x: Empire(factor=x), lambda x: EmpireStrict(x)],
                         ids=["little", "empire", "empire-strict"])  # fmt: skip
@pytest.mark.parametrize("spec", DENSE)
def test_the_search_finds_99_percent_of_the_best_on_a_dense_grid(make: Callable[[Any], Attack], spec: str) -> None:
    rule = parse(spec)
    reached = []
    for f, d, seed in [(2, 5, 0), (2, 5, 1), (5, 200, 1), (5, 200, 2)]:
        honest = normal(rule.min_workers(f) + 1 - f, d, seed) + (0.0, 0.3, 2.0)[seed % 3]
        best = max(harm(make(factor), honest, rule, f) for factor in GRID)
        found = harm(make("auto"), honest, rule, f)
        reached.append(1.0 if found >= best - 1e-9 else found / best)
    least = sum(reached) / len(reached) if spec in NARROW_PEAKS else min(reached)
    assert least >= ENOUGH, reached


def test_the_search_finds_a_small_factor() -> None:
    """Phocas turns furthest if the Byzantine rows are almost zero, at an epsilon of about 0.01."""
    rule = parse("phocas")
    honest = normal(rule.min_workers(5) - 4, 200, seed=5) + 2.0
    best = max(GRID, key=lambda epsilon: harm(EmpireStrict(epsilon), honest, rule, 5))
    assert best < 1 / 64
    assert harm(EmpireStrict("auto"), honest, rule, 5) >= ENOUGH * harm(EmpireStrict(best), honest, rule, 5)


def test_the_search_takes_at_most_111_calls() -> None:
    calls = 0

    def damage(factor: float) -> float:
        nonlocal calls
        calls += 1
        return math.sin(3000 * factor)

    search_factor(damage)
    assert calls == 111
    search_factor(damage, near=1.5)
    assert calls == 111 + 29


def harm_along(
    honest: Tensor, origin: Tensor, direction: Tensor, f: int, rule: Rule, measure: Callable[[Tensor], Tensor]
) -> Callable[[float], float]:
    """Return the damage of f rows origin + factor * direction as a function of the factor: the plain search's."""

    def harm(factor: float) -> float:
        sent = torch.add(origin, direction, alpha=factor).expand(f, -1)
        return float(measure(rule(torch.cat([honest, sent]), f).vector))

    return harm


BY_DISTANCES = ["krum", "krum:m=1", "krum:squared=true", "krum:m=n-f,neighbours=n-f-1", "mda", "monna", "nnm+mda"]


@pytest.mark.parametrize("spec", BY_DISTANCES)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_the_search_by_distances_chooses_the_factor_of_the_plain_search(
    spec: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of few values, which the search would try as they are, let both be compared often; no rule is called."""
    monkeypatch.setattr(_compressed_rule, "COLUMNS", 0)
    monkeypatch.setattr(_compressed_rule.CompressedRule, "__call__", None)
    rule, dtypes = parse(spec), (torch.float32, torch.float64)
    for (f, more, d), dtype, offset in itertools.product([(1, 0, 3), (2, 2, 40), (4, 3, 200)], dtypes, [0.0, 2.0]):
        h = rule.min_workers(f) + more - f
        honest = ((normal(h, d, seed=d) + offset) * scale).to(dtype)
        mean, deviation = Little().aim(CachedMoments(honest))
        for origin, direction, measure in [
            (mean, deviation, distance), (mean, -mean, distance), (mean + deviation, -mean, distance),
            (torch.zeros_like(mean), -mean, opposition),
        ]:  # fmt: skip
            found = best_factor(honest, origin, direction, f, context_of(rule, f), mean=mean, measure=measure)
            harm = harm_along(honest, origin, direction, f, rule, functools.partial(measure, right=mean))
            assert found == search_factor(harm), (f, d, dtype, offset)


def test_huge_rows_and_rows_with_nan_are_searched_all_the_same() -> None:
    """Their inner products are not finite, so the search looks at columns."""
    huge = (normal(9, 5000, seed=1) + 0.1) * 1e200
    assert factor_of("little", huge.double(), 2, Krum()) > 0
    lost = normal(9, 5000, seed=1, dtype=torch.float32)
    lost[3, 7] = torch.nan
    assert factor_of("little", lost, 2, Krum()) > 0


def test_a_rule_that_makes_something_else_of_its_choice_is_not_searched_by_distances() -> None:
    @dataclasses.dataclass(frozen=True)
    class Halved(Krum):
        def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
            return Aggregate(super().combine(rows, f, table).vector / 2, None)

    assert weights_by_distances(Krum()) and weights_by_distances(parse("nnm+krum"))
    for rule in (Halved(), NNM() >> Halved(), parse("bulyan"), parse("nnm+median"), None):
        assert weights_by_distances(rule) is None


@pytest.mark.slow
@pytest.mark.parametrize("d", [5000, 20_000])
@pytest.mark.parametrize("spec", ["krum", "caf", "flame", "dnc", "geometric-median", "caf-history", "median"])
def test_a_compressed_search_finds_what_the_whole_one_finds(spec: str, d: int) -> None:
    """Rows of more values than the adversary computes with; the median depends on columns, not on inner products."""
    rule, f = parse(spec), 3
    honest = normal(9, d, seed=4) + 0.1
    mean, direction = Little().aim(CachedMoments(honest))
    context = context_of(rule, f)
    found = best_factor(honest, mean, direction, f, context)
    # dnc looks at 10,000 random columns.
    assert ("not_by_inner_products" in context.state) == (spec == "median" or (spec, d) == ("dnc", 20_000))

    def harm(factor: float) -> float:
        return damage(honest, (mean + factor * direction).expand(f, -1), rule, f)

    # On random columns alone the adversary does not see which honest rows dnc drops on others: narrow peaks of damage.
    enough = 0.85 if (spec, d) == ("dnc", 20_000) else ENOUGH
    assert harm(found) >= enough * harm(search_factor(harm))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["krum", "caf", "trimmed-mean", "geometric-median"])
def test_over_rounds_the_search_stays_near_the_best(spec: str) -> None:
    """Between full searches it looks near its last factor only, and the rows move as those of a training run do."""
    rule, f = parse(spec), 3
    rows, state, reached = normal(9, 5000, seed=1) + 0.3, {}, []
    for step in range(12):
        rows = 0.9 * rows + 0.4 * normal(9, 5000, seed=100 + step) + 0.03
        attack = Little(factor="auto")
        context = AttackContext(rule=rule, declared_f=f, step=step, state=state)
        found = damage(rows, attack(rows, f, context), rule, f)
        mean, direction = attack.aim(CachedMoments(rows))
        best = max(damage(rows, (mean + factor * direction).expand(f, -1), rule, f) for factor in GRID)
        reached.append(found / best)
    assert sum(reached) / len(reached) >= ENOUGH, reached


@pytest.mark.slow
@by_kind
@by_rule
def test_auto_does_at_least_the_damage_of_every_power_of_two(kind: str, spec: str) -> None:
    rule, f = parse(spec), 2
    for seed in range(3):
        honest = normal(rule.min_workers(f) + 2 - f, 6, seed) + 0.2
        found = damage(honest, KINDS[kind](factor="auto")(honest, f, rule=rule), rule, f)
        for exponent in range(-4, 7):
            fixed = KINDS[kind](factor=2.0**exponent)(honest, f)
            assert found >= damage(honest, fixed, rule, f) * (1 - 1e-12)


@by_kind
def test_auto_sends_what_its_factor_says(kind: str) -> None:
    honest = normal(7, 5, seed=3)
    factor = factor_of(kind, honest, 2, Krum())
    attack: Attack = KINDS[kind](factor=factor)
    assert torch.equal(attack(honest, 2), KINDS[kind](factor="auto")(honest, 2, rule=Krum()))


def test_the_average_gets_the_largest_factor() -> None:
    """The average moves without bound, so the search ends at the far end of its range."""
    assert factor_of("little", normal(6, 4, seed=0), 2, Average()) > 100


def test_of_equally_good_factors_the_smallest_is_taken() -> None:
    honest = torch.ones(5, 3)  # no deviation: every factor does the same
    assert factor_of("little", honest, 1, Krum()) <= 1 / 16


def test_the_rules_parameters_decide_the_factor() -> None:
    """Krum with m = 1 drops the Byzantine row at another factor than the mean of n-f-2 rows does."""
    different = 0
    for seed in range(5):
        honest = normal(8, 5, seed)
        one, many = factor_of("little", honest, 3, Krum(m=1)), factor_of("little", honest, 3, Krum())
        different += abs(one - many) > 0.01
    assert different >= 1


@dataclasses.dataclass(frozen=True)
class Watched(Rule):
    """A rule that records how it was called."""

    limit: float = 1.0
    calls: ClassVar[list[tuple[Rule, int, int]]] = []

    name = "watched"
    summary = needs = paper = "-"

    def min_workers(self, f: int) -> int:
        return 1

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        self.calls.append((self, rows.shape[0], f))
        last = rows[-1] if float((rows[-1] - rows[0]).norm()) <= self.limit else torch.zeros_like(rows[-1])
        return Aggregate(last.clone(), None)


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.0])
def test_the_search_calls_the_configured_rule_itself_with_the_declared_f(limit: float) -> None:
    Watched.calls.clear()
    rule = Watched(limit=limit)
    honest = torch.tensor([[0.0, 0.0], [2.0, 0.0], [-2.0, 0.0]])  # mean 0, deviation 2 in the first coordinate
    sent = Little(factor="auto")(honest, 2, rule=rule, declared_f=1)
    assert Watched.calls and all(call == (rule, 5, 1) for call in Watched.calls)
    assert 0.9 * limit <= float(sent[0].norm()) <= limit


def test_a_rule_that_returns_nan_has_taken_the_greatest_damage() -> None:
    @dataclasses.dataclass(frozen=True)
    class Fragile(Watched):
        def aggregate(self, rows: Tensor, f: int) -> Aggregate:
            broken = float(rows[-1, 0]) < -7.9
            return Aggregate(torch.full_like(rows[0], torch.nan) if broken else rows.mean(dim=0), None)

    honest = torch.tensor([[1.0], [-1.0], [0.0]])  # mean 0, deviation 1
    sent = Little(factor="auto")(honest, 1, rule=Fragile())
    assert float(sent[0, 0]) < -7.9


# ------------------------------------------------------------- everything between the rows and the result


@dataclasses.dataclass(frozen=True)
class Stateful(ContextualRule):
    """Excludes the last row if it is further from the first one than the limit in its state."""

    name = "stateful"
    summary = needs = paper = "-"

    def min_workers(self, f: int) -> int:
        return 1

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        near = float((rows[-1] - rows[0]).norm()) <= float(context.state["limit"])
        return Aggregate(rows[-1].clone() if near else torch.zeros_like(rows[-1]), None), context.state


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.0])
def test_the_search_knows_the_state_of_the_rule(limit: float) -> None:
    context = RuleContext(state={"limit": torch.tensor(limit)})
    honest = torch.tensor([[0.0, 0.0], [2.0, 0.0], [-2.0, 0.0]])
    sent = Little(factor="auto")(honest, 2, rule=Stateful(), declared_f=1, rule_context=context)
    assert 0.9 * limit <= float(sent[0].norm()) <= limit


@by_kind
@pytest.mark.parametrize("spec", ["krum", "median"])
def test_the_search_knows_what_the_server_has_accumulated(kind: str, spec: str) -> None:
    """Then the rule sees other rows than were sent, and the honest mean is another one, too."""
    rule, f = parse(spec), 2
    honest, past = normal(7, 20, seed=1) + 0.2, 3 * normal(9, 20, seed=2)

    def reached(attack: Attack) -> float:
        seen = dataclasses.replace(context_of(rule, f), preview=lambda rows: rows + past)
        shown = torch.cat([honest, attack(honest, f, seen)]) + past
        return float((rule(shown, f).vector - shown[:7].mean(dim=0)).norm())

    best = max(reached(KINDS[kind](factor=factor)) for factor in GRID)
    assert reached(KINDS[kind](factor="auto")) >= ENOUGH * best
    blind = KINDS[kind](factor=factor_of(kind, honest, f, rule))
    assert reached(KINDS[kind](factor="auto")) >= reached(blind)


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_what_the_adversary_foresees_is_what_happens(placement: str) -> None:
    """In whole runs, with every placement of momentum: the rule's vector is the context's outcome."""
    Foreseeing.foreseen.clear()
    run = Run(Config(rule="median", attack=f"{__name__}:Foreseeing", byzantine=2, momentum=placement).resolve(), DIGITS)
    for step in range(4):
        played = play_round(run.round_config, run.round_state, step, lr=0.1)
        assert torch.equal(played.update.aggregate.vector, Foreseeing.foreseen[-1])


@dataclasses.dataclass(frozen=True)
class Foreseeing(Attack):
    foreseen: ClassVar[list[Tensor]] = []

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        sent = -honest[:f]
        self.foreseen.append(context.outcome(torch.cat([honest, sent])))
        return sent

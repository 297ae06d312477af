"""Pre-aggregations before a rule: `nnm+bucketing:s=2+krum`, or `NNM() >> Bucketing(s=2) >> Krum()` in Python."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, NoReturn, overload

from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError, InfeasibleError, either
from gyroscope._linalg import distances, matrix
from gyroscope.rules.base import (
    Aggregate,
    ContextualRule,
    DistanceRule,
    Guarantee,
    Property,
    Reads,
    Rule,
    RuleContext,
    RuleState,
    Uses,
    check_enough,
    check_f,
    fewer_or_more,
    not_composable,
    scoped,
)

_MOST_MIXED = 128  # rows: the distances between n mixed rows cost n^4 products
_MANY = 999  # workers: more than any rule needs that trusts some of them
_CHECKED_UP_TO = 12  # Byzantine workers: a bound that is linear up to here is taken to be linear


class Prepared(NamedTuple):
    """What a pre-aggregation returns for n rows."""

    rows: Tensor
    """(m, d): what the rule gets in their place. At most f of these are bad if at most f of the n were."""
    shares: Tensor | None
    """(m, n), float64: each worker's share in each of the m rows, which carries the rule's weights back to the
    workers; None where a share has no meaning."""
    state: RuleState = MappingProxyType({})
    """What to keep for the next round."""


@dataclasses.dataclass(frozen=True)
class Preaggregation(registry.Named):
    """A transformation of the rows before a rule sees them. It composes with any rule: `NNM() >> Krum()`.

    A subclass implements `prepare`, and overrides `min_workers` and `rows_left` if it needs more rows than f + 1 or
    returns fewer than it gets. However f arbitrary rows are chosen, at most f of the rows that it returns may be bad.
    """

    kind_in_errors = "pre-aggregation"
    needs: ClassVar[str] = "-"
    """The requirement as a formula, besides what the rule needs."""
    uses: ClassVar[frozenset[Uses]] = frozenset()
    """The parts of the `RuleContext` that the result depends on, as for a rule."""
    reads: ClassVar[Reads] = "rows"
    """As for a rule. One that says "distances" implements `mix`."""
    unsupported: ClassVar[Mapping[Property, str]] = {}
    """The properties that a rule loses behind it, each with a short reason."""
    returns_finite: ClassVar[bool] = False
    """Whether all rows that it returns are finite if at most f were not: then the result of any rule is finite."""
    keeps_range: ClassVar[bool] = False
    """Whether all but f of the rows that it returns are, in every coordinate, within the range of the honest rows."""
    shuffles: ClassVar[bool] = False
    """Whether row i comes from another worker in every round."""

    def __call__(self, rows: Tensor | Sequence[Tensor], f: int, context: RuleContext | None = None) -> Prepared:
        checked = matrix.check(rows)
        self.check_feasible(checked.shape[0], f)
        return self.prepare(checked, f, context or RuleContext())

    @overload
    def __rshift__(self, other: Preaggregation | Chain) -> Chain: ...
    @overload
    def __rshift__(self, other: Rule) -> Composed: ...
    def __rshift__(self, other: Preaggregation | Chain | Rule) -> Chain | Composed:
        return Chain((self,)) >> other

    def __rrshift__(self, other: object) -> NoReturn:
        raise not_composable(other, f"{{}} >> {self!r} >> Krum()")

    @abstractmethod
    def prepare(self, rows: Tensor, f: int, context: RuleContext) -> Prepared:
        """Run the algorithm on checked rows. It must neither change the rows nor return a view of them."""

    def mix(self, rows: Tensor, f: int, table: Tensor) -> Prepared:
        """Run the algorithm on some of the columns, given the squared distances between the whole rows."""
        raise ConfigError(
            f'the pre-aggregation {type(self).__name__} says reads = "distances" and so must implement '
            "mix(rows, f, table)"
        )

    def shares(self, table: Tensor, f: int) -> Tensor | None:
        """Return (m, n) each row's share in each mixed row, given the squared distances between the whole rows.

        None if the stage is not linear, or if some mixed row is not finite.
        """
        return None

    def mixing(self, table: Tensor, f: int) -> tuple[Tensor, Tensor] | None:
        """Return what the stage mixes, given the squared distances between the whole rows, for a stage that is linear.

        Returns:
            (m, n) each row's share in each mixed row, which add up to 1, and (m, m) the squared distances between the
            mixed rows; None if the rows themselves are needed.
        """
        return None

    def min_workers(self, f: int, rows_needed: int = 1) -> int:
        """Return the smallest n for which it returns the `rows_needed` rows that the next stage needs."""
        return max(f + 1, rows_needed)

    def rows_left(self, n: int) -> int:
        """Return how many rows it makes of n."""
        return n

    def milder(self) -> Iterable[Preaggregation]:
        """Return the same with settings that leave more rows, nearest first, for an error to suggest."""
        return ()

    def check_feasible(self, n: int, f: int) -> None:
        check_enough(self, n, check_f(f))


@dataclasses.dataclass(frozen=True)
class Chain:
    """Pre-aggregations in sequence, without a rule yet: `NNM() >> Bucketing()`."""

    stages: tuple[Preaggregation, ...]

    @overload
    def __rshift__(self, other: Preaggregation | Chain) -> Chain: ...
    @overload
    def __rshift__(self, other: Rule) -> Composed: ...
    def __rshift__(self, other: Preaggregation | Chain | Rule) -> Chain | Composed:
        if isinstance(other, Preaggregation):
            return Chain((*self.stages, other))
        if isinstance(other, Chain):
            return Chain((*self.stages, *other.stages))
        if isinstance(other, Rule):
            return Composed(self.stages, other)
        raise not_composable(other, f"{self} >> {{}}")

    def __str__(self) -> str:
        return " >> ".join(map(repr, self.stages))


@dataclasses.dataclass(frozen=True, repr=False)
class Composed(ContextualRule):
    """A rule with pre-aggregations before it, itself a rule: each stage works on the rows that the previous one left.

    It needs as many workers as leave enough rows for every stage; the error about an infeasible f names the stage
    where it fails.

    Guarantee: it is resilient if its rule is, or if a stage returns only finite rows, as clipping does. Only bucketing
    preserves a stronger guarantee, that of the range. No bound on the variance-norm ratio is known for a composed rule.

    Weights: the rule's, carried back through the stages to the workers; the weight of a bucket of two is split in
    half. Each stage has its own state and random streams, also if the same stage occurs twice.

    Cost: the sum of the stages'. Over many machines it reads whole rows, unless the first stage reads distances and
    everything after it works per coordinate (`nnm+median`).
    """

    stages: tuple[Preaggregation, ...]
    rule: Rule

    def __post_init__(self) -> None:
        stages, rule = self.stages, self.rule
        if isinstance(rule, Composed):  # NNM() >> (Bucketing() >> Krum()) is the same rule without the brackets
            stages, rule = (*stages, *rule.stages), rule.rule
        if not stages:
            raise ConfigError("a composed rule needs at least one pre-aggregation: write NNM() >> Krum()")
        shuffling = next((stage for stage in stages if stage.shuffles), None)
        if shuffling and (rule.tracks_workers or rule.trusts(_MANY)):
            raise ConfigError(
                f"{rule} must know which worker a row is from, and {shuffling} before it mixes them up: leave it out"
            )
        (rule,) = share_f(self, (rule,))
        parts: list[Preaggregation | Rule] = [*stages, rule]
        # Only the first part can use the distances between the rows as they came.
        on_columns = not any(part.uses for part in parts) and all(part.reads == "columns" for part in parts[1:])
        # What is a class variable of other rules depends here on the parts.
        vars(self).update(stages=stages, rule=rule)
        vars(self).update(
            name="+".join(part.name for part in parts),
            needs=formula(self.min_workers),
            resilient=rule.resilient or any(stage.returns_finite for stage in stages),
            guarantee=self._guarantee(),
            tracks_workers=rule.tracks_workers,
            uses=frozenset[Uses]().union(*(part.uses for part in parts)),
            unsupported={key: why for part in reversed(parts) for key, why in part.unsupported.items()},
            reads=parts[0].reads if on_columns else "rows",
        )

    def __repr__(self) -> str:
        return " >> ".join(map(repr, (*self.stages, self.rule)))

    def __str__(self) -> str:
        return "+".join(map(str, (*self.stages, self.rule)))

    def min_workers(self, f: int) -> int:
        return self._needed_up_to(len(self.stages), f)

    def bound_factor(self, n: int, f: int) -> float:
        return self.rule.bound_factor(self._rows_left(n)[-1], f) if self.guarantee == "range" else 0.0

    def trusts(self, n: int) -> tuple[int, ...]:
        return self.rule.trusts(n)

    def check_feasible(self, n: int, f: int) -> None:
        f = self.resolve_f(f)
        needed = self.min_workers(f)
        if n < needed:
            raise InfeasibleError(self._infeasible(n, f, needed))
        left = self._rows_left(n)[-1]
        try:
            self.rule.check_feasible(left, f)
        except ConfigError as problem:
            if left == n:
                raise
            raise ConfigError(f"{problem} (in {self}, where {left} of the {n} rows are left for {self.rule})") from None

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        state: dict[str, Tensor] = {}
        shares: list[Tensor | None] = []
        for place, stage in enumerate(self.stages):
            if place == len(self.stages) - 1 and (fused := self._fused(stage, rows, f)):
                aggregate, last = fused
                return Aggregate(aggregate.vector, _carried_back(aggregate.weight, [*shares, last])), state
            part = f"{place}:{stage.name}"
            prepared = stage.prepare(rows, f, context.within(part))
            rows = prepared.rows
            shares.append(prepared.shares)
            state.update(scoped(prepared.state, part))
        part = f"{len(self.stages)}:{self.rule.name}"
        aggregate, of_rule = self.rule.step(rows, f, context.within(part))
        state.update(scoped(of_rule, part))
        return Aggregate(aggregate.vector, _carried_back(aggregate.weight, shares)), state

    def _fused(self, stage: Preaggregation, rows: Tensor, f: int) -> tuple[Aggregate, Tensor] | None:
        """Return the result of the last stage and the rule together, and the stage's shares; None if they need rows.

        A rule may need the distances between mixed rows, which follow from those between the rows, or the columns one
        by one: then the mixed rows need not be computed as a whole.
        """
        fuses = type(self.rule).aggregate_mixed is not Rule.aggregate_mixed
        if isinstance(self.rule, DistanceRule):
            fuses = type(self.rule).combine_mixed is not DistanceRule.combine_mixed
        if not fuses or stage.reads != "distances" or not rows.is_cpu or len(rows) > _MOST_MIXED:
            return None
        self.rule.check_feasible(len(rows), f)
        return self._mixed(stage, rows, f, distances.squared_distances(rows))

    def _mixed(self, stage: Preaggregation, rows: Tensor, f: int, table: Tensor) -> tuple[Aggregate, Tensor] | None:
        """Return the same on some of the columns, given the squared distances between the whole rows."""
        if isinstance(self.rule, DistanceRule):
            known = stage.mixing(table, f)
            if known is None:
                return None
            shares, between = known
            aggregate = self.rule.combine_mixed(rows, shares, f, between)
            return None if aggregate is None else (aggregate, shares)
        of_columns = stage.shares(table, f)
        mixed = None if of_columns is None else self.rule.aggregate_mixed(rows, of_columns, f)
        return None if of_columns is None or mixed is None else (mixed, of_columns)

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        first, *others = self.stages
        fused = None if others or not rows.is_cpu or len(rows) > _MOST_MIXED else self._mixed(first, rows, f, table)
        if fused is not None:  # the same numbers as those of whole rows
            return Aggregate(fused[0].vector, _carried_back(fused[0].weight, [fused[1]]))
        prepared = first.mix(rows, f, table)
        aggregate = _compose(others, self.rule).on_columns(prepared.rows, f)
        return Aggregate(aggregate.vector, _carried_back(aggregate.weight, [prepared.shares]))

    def _guarantee(self) -> Guarantee:
        if self.rule.guarantee == "range" and all(stage.keeps_range for stage in self.stages):
            return "range"
        return "finite" if self.rule.resilient or any(stage.returns_finite for stage in self.stages) else "none"

    def _rows_left(self, n: int) -> list[int]:
        """Return how many rows each part gets, the rule last."""
        left = [n]
        for stage in self.stages:
            left.append(stage.rows_left(left[-1]))
        return left

    def _infeasible(self, n: int, f: int, needed: int) -> str:
        """Say which part asks for so many workers, and what helps."""
        place = next(place for place in range(len(self.stages) + 1) if self._needed_up_to(place, f) == needed)
        part: Preaggregation | Rule = self.rule if place == len(self.stages) else self.stages[place]
        left = self._rows_left(n)
        shrinking = [at for at in range(place) if left[at + 1] < left[at]]
        remedies = fewer_or_more(self.min_workers, n, f)
        if shrinking:
            names = "+".join(str(self.stages[at]) for at in shrinking)
            wanted = part.min_workers(f)
            bound = f"{wanted} ({part.needs})" if part.needs not in ("", "-") else str(wanted)
            rows = "1 row" if left[place] == 1 else f"{left[place]} rows"
            cause = f"because {names} leaves {rows} and {part} needs {bound}"
            remedies += self._with_more_left(shrinking, n, f)
            others = [stage for at, stage in enumerate(self.stages) if at not in shrinking]
            remedies += [f"leave out {names}"] if _compose(others, self.rule).min_workers(f) <= n else []
        else:
            cause = f"because of {part}"
            fallbacks = [_compose(self.stages, rule) for rule in self.rule.fallback_rules()]
            remedies += [f"use {rule}" for rule in fallbacks if rule.min_workers(f) <= n][:1]
        needs = f"{self.needs} = {needed}" if self.needs else f"at least {needed}"
        return f"{self} needs {needs} workers for f = {f}, got n = {n}, {cause}: {either(remedies)}"

    def _needed_up_to(self, place: int, f: int) -> int:
        """Return how many workers the part at this place and all parts before it need."""
        needed = self.rule.min_workers(f) if place == len(self.stages) else self.stages[place].min_workers(f)
        for stage in reversed(self.stages[:place]):
            needed = stage.min_workers(f, needed)
        return needed

    def _with_more_left(self, shrinking: Sequence[int], n: int, f: int) -> list[str]:
        """Return the first other setting of one of those stages with which n workers are enough."""
        for at in shrinking:
            for milder in self.stages[at].milder():
                stages = (*self.stages[:at], milder, *self.stages[at + 1 :])
                if Composed(stages, self.rule).min_workers(f) <= n:
                    changes = vars(milder).items() - vars(self.stages[at]).items()
                    return [f"use {milder.name}:" + ",".join(f"{key}={value}" for key, value in sorted(changes))]
        return []


def share_f(whole: Rule, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Give the f with which the whole or any of its rules was built to all of them; return the rules."""
    given = {rule.f for rule in (whole, *rules)} - {None}
    if len(given) > 1:
        raise ConfigError(
            f"the parts of one rule tolerate the same number of Byzantine workers, got f = "
            f"{either(sorted(map(str, given)))}: give f once, for the whole rule"
        )
    if not given:
        return tuple(rules)
    vars(whole).update(f=next(iter(given)))
    return tuple(dataclasses.replace(rule, f=whole.f) for rule in rules)


def _compose(stages: Sequence[Preaggregation], rule: Rule) -> Rule:
    return Composed(tuple(stages), rule) if stages else rule


def formula(min_workers: Callable[[int], int]) -> str:
    """Return `n >= 4f + 5` for a bound that is linear in f, and an empty text for another."""
    plus, times = min_workers(0), min_workers(1) - min_workers(0)
    linear = all(min_workers(f) == times * f + plus for f in range(_CHECKED_UP_TO))
    return f"n >= {times if times != 1 else ''}f + {plus}" if linear else ""


def _carried_back(weight: Tensor | None, shares: list[Tensor | None]) -> Tensor | None:
    """Return the workers' weights, given the weights of the rows that the stages made of theirs."""
    for share in reversed(shares):
        if weight is None or share is None:
            return None
        weight = weight @ share.to(weight.dtype)
    return weight

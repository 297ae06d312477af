"""Pre-aggregations before a rule: `nnm+bucketing:s=2+krum`, or `Nnm() >> Bucketing(s=2) >> Krum()` in Python."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar, overload

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError, InfeasibleError, either
from gyroscope._linalg import matrix
from gyroscope.rules.base import (
    Aggregate,
    ContextualRule,
    Promise,
    Property,
    Reads,
    Rule,
    RuleContext,
    RuleState,
    Uses,
    check_f,
    fewer_or_more,
    labelled,
    not_composable,
)

_Self = TypeVar("_Self", bound="Preaggregation")
_MANY = 999  # workers: more than any rule needs that trusts some of them
_CHECKED_UP_TO = 12  # Byzantine workers: where a bound is a straight line so far, it is taken for one


class Prepared(NamedTuple):
    """What a pre-aggregation makes of n rows."""

    rows: Tensor
    """(m, d): what the rule gets in their place. At most f of them are bad where at most f of the n were."""
    shares: Tensor | None
    """(m, n), float64: each worker's share in each of them, which carries the rule's weights back to the workers; None
    where a share has no meaning."""
    memory: RuleState = MappingProxyType({})
    """What to remember for the next round."""


@dataclasses.dataclass(frozen=True)
class Preaggregation(ABC):
    """What is done to the rows before a rule sees them. It composes with any rule: `Nnm() >> Krum()`.

    A subclass implements `prepare`, and says in `min_workers` and `rows_left` how many rows it needs and leaves, where
    that is not simply all of them. Whatever it does to f arbitrary rows, at most f of those that it leaves may be bad.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    needs: ClassVar[str] = "-"
    """The requirement as a formula, besides what the rule needs."""
    paper: ClassVar[str] = "-"
    uses: ClassVar[frozenset[Uses]] = frozenset()
    """What of the `RuleContext` the result depends on, as for a rule."""
    reads: ClassVar[Reads] = "rows"
    """As for a rule. One that says "distances" implements `mix`."""
    lacks: ClassVar[Mapping[Property, str]] = {}
    """Which properties a rule loses with it, and why."""
    cures: ClassVar[bool] = False
    """Whether all that it leaves is finite where at most f rows are not: then so is the result of any rule."""
    keeps_range: ClassVar[bool] = False
    """Whether all but f of the rows that it leaves lie, in every coordinate, within the range of the honest ones."""
    shuffles: ClassVar[bool] = False
    """Whether row i is another worker's in every round."""

    def __new__(cls: type[_Self], *_: Any, **__: Any) -> _Self:
        registry.check_class("pre-aggregation", cls)
        return super().__new__(cls)

    def __call__(self, rows: Tensor, f: int, context: RuleContext | None = None) -> Prepared:
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

    def __str__(self) -> str:
        """The spec that builds it: `bucketing:s=3`."""
        return registry.text(self)

    @abstractmethod
    def prepare(self, rows: Tensor, f: int, context: RuleContext) -> Prepared:
        """The algorithm, on checked rows. Must neither change nor return a view of them."""

    def mix(self, rows: Tensor, f: int, table: Tensor) -> Prepared:
        """The algorithm on some of the columns, given the squared distances between the whole rows."""
        raise ConfigError(
            f'the pre-aggregation {type(self).__name__} says reads = "distances" and so must implement '
            "mix(rows, f, table)"
        )

    def min_workers(self, f: int, rows_needed: int = 1) -> int:
        """The fewest workers of which it leaves as many rows as the next stage needs."""
        return max(f + 1, rows_needed)

    def rows_left(self, n: int) -> int:
        """How many rows it makes of n."""
        return n

    def milder(self) -> Iterable[Preaggregation]:
        """The same with settings that leave more rows, the nearest first: what an error can suggest."""
        return ()

    def check_feasible(self, n: int, f: int) -> None:
        check_f(f)
        needed = self.min_workers(f)
        if n < needed:
            bound = f"{self.needs} = {needed}" if self.needs != "-" else f"at least {needed}"
            raise InfeasibleError(
                f"{type(self).__name__} needs {bound} workers for f = {f}, got n = {n}: "
                + either(fewer_or_more(self.min_workers, n, f))
            )


@dataclasses.dataclass(frozen=True)
class Chain:
    """Pre-aggregations, one after the other, that wait for a rule: `Nnm() >> Bucketing()`."""

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
    """A rule with pre-aggregations before it, and itself a rule: each stage works on what the one before it left.

    It needs as many workers as each stage needs to leave enough rows for the next: an infeasible f is told with the
    stage where it fails. It is resilient where its last rule is, and where a stage leaves nothing but finite rows, as
    clipping does; what is promised beyond that only bucketing preserves. Weights are the last rule's, carried back
    through the stages to the workers: half the weight of a bucket of two for each of both. Each stage has a memory and
    a randomness of its own, also where one comes twice. The theory's ratio is not known for any of them.

    Cost: the sum of the stages'. Over many machines it reads whole rows, except where a stage that reads distances
    comes first and everything after it works per coordinate (`nnm+median`).
    """

    stages: tuple[Preaggregation, ...]
    rule: Rule

    def __post_init__(self) -> None:
        inner = self.rule
        if isinstance(inner, Composed):  # Nnm() >> (Bucketing() >> Krum()) is the same rule without brackets
            object.__setattr__(self, "stages", (*self.stages, *inner.stages))
            object.__setattr__(self, "rule", inner.rule)
        if not self.stages:
            raise ConfigError("a composed rule needs at least one pre-aggregation: write Nnm() >> Krum()")
        shuffling = next((stage for stage in self.stages if stage.shuffles), None)
        if shuffling and (self.rule.knows_workers or self.rule.trusts(_MANY)):
            raise ConfigError(
                f"{self.rule} must know which worker a row is from, and {shuffling} before it mixes them up: leave it "
                "out"
            )
        parts: list[Preaggregation | Rule] = [*self.stages, self.rule]
        # What other rules say of their class, this one knows of itself.
        facts: dict[str, object] = {
            "name": "+".join(part.name for part in parts),
            "needs": formula(self.min_workers),
            "resilient": self.rule.resilient or any(stage.cures for stage in self.stages),
            "promise": self._promise(),
            "knows_workers": self.rule.knows_workers,
            "uses": frozenset[Uses]().union(*(part.uses for part in parts)),
            "lacks": {key: why for part in reversed(parts) for key, why in part.lacks.items()},
            "reads": _reads(parts),
        }
        for fact, value in facts.items():
            object.__setattr__(self, fact, value)

    def __repr__(self) -> str:
        return " >> ".join(map(repr, (*self.stages, self.rule)))

    def __str__(self) -> str:
        return "+".join(map(str, (*self.stages, self.rule)))

    def min_workers(self, f: int) -> int:
        return self._needed_up_to(len(self.stages), f)

    def reach(self, n: int, f: int) -> float:
        return self.rule.reach(self._rows_left(n)[-1], f) if self.promise == "range" else 0.0

    def trusts(self, n: int) -> tuple[int, ...]:
        return self.rule.trusts(n)

    def check_feasible(self, n: int, f: int) -> None:
        check_f(f)
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
        memory: dict[str, Tensor] = {}
        shares: list[Tensor | None] = []
        for place, stage in enumerate(self.stages):
            part = f"{place}:{stage.name}"
            prepared = stage.prepare(rows, f, context.within(part))
            rows = prepared.rows
            shares.append(prepared.shares)
            memory.update(labelled(prepared.memory, part))
        part = f"{len(self.stages)}:{self.rule.name}"
        aggregate, remembered = self.rule.step(rows, f, context.within(part))
        memory.update(labelled(remembered, part))
        return Aggregate(aggregate.vector, _carried_back(aggregate.weight, shares)), memory

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        first, *others = self.stages
        prepared = first.mix(rows, f, table)
        rest: Rule = Composed(tuple(others), self.rule) if others else self.rule
        aggregate = rest.on_columns(prepared.rows, f)
        return Aggregate(aggregate.vector, _carried_back(aggregate.weight, [prepared.shares]))

    def _promise(self) -> Promise:
        if self.rule.promise == "range" and all(stage.keeps_range for stage in self.stages):
            return "range"
        return "finite" if self.rule.resilient or any(stage.cures for stage in self.stages) else "none"

    def _rows_left(self, n: int) -> list[int]:
        """How many rows each part gets, the rule last."""
        left = [n]
        for stage in self.stages:
            left.append(stage.rows_left(left[-1]))
        return left

    def _infeasible(self, n: int, f: int, needed: int) -> str:
        """Which part asks for so many workers, and what helps."""
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
            remedies += [f"leave out {names}"] if _chain(others, self.rule).min_workers(f) <= n else []
        else:
            cause = f"because of {part}"
            weaker = [_chain(self.stages, rule) for rule in self.rule.weaker_rules()]
            remedies += [f"use {rule}" for rule in weaker if rule.min_workers(f) <= n][:1]
        needs = f"{self.needs} = {needed}" if self.needs else f"at least {needed}"
        return f"{self} needs {needs} workers for f = {f}, got n = {n}, {cause}: {either(remedies)}"

    def _needed_up_to(self, place: int, f: int) -> int:
        """How many workers there must be for the part at this place and all that stand before it."""
        needed = self.rule.min_workers(f) if place == len(self.stages) else self.stages[place].min_workers(f)
        for stage in reversed(self.stages[:place]):
            needed = stage.min_workers(f, needed)
        return needed

    def _with_more_left(self, shrinking: Sequence[int], n: int, f: int) -> list[str]:
        """The first other setting of one of those stages with which n workers are enough."""
        for at in shrinking:
            for milder in self.stages[at].milder():
                stages = (*self.stages[:at], milder, *self.stages[at + 1 :])
                if Composed(stages, self.rule).min_workers(f) <= n:
                    changes = vars(milder).items() - vars(self.stages[at]).items()
                    return [f"use {milder.name}:" + ",".join(f"{key}={value}" for key, value in sorted(changes))]
        return []


def _chain(stages: Sequence[Preaggregation], rule: Rule) -> Rule:
    return Composed(tuple(stages), rule) if stages else rule


def formula(min_workers: Callable[[int], int]) -> str:
    """`n >= 4f + 5` for a bound that is a straight line in f; nothing for another."""
    plus, times = min_workers(0), min_workers(1) - min_workers(0)
    straight = all(min_workers(f) == times * f + plus for f in range(_CHECKED_UP_TO))
    return f"n >= {times if times != 1 else ''}f + {plus}" if straight else ""


def _reads(parts: list[Preaggregation | Rule]) -> Reads:
    """Distances are known between the rows as they came: only the first part can make use of them."""
    first, *others = parts
    alone = not any(part.uses for part in parts) and all(part.reads == "columns" for part in others)
    return first.reads if alone else "rows"


def _carried_back(weight: Tensor | None, shares: list[Tensor | None]) -> Tensor | None:
    """The workers' weights, from those of the rows that the stages made of theirs."""
    for share in reversed(shares):
        if weight is None or share is None:
            return None
        weight = weight @ share.to(weight.dtype)
    return weight


def own_shares(rows: Tensor) -> Tensor:
    """Each row is still its own worker's."""
    return torch.eye(rows.shape[0], dtype=torch.float64, device=rows.device)

"""The base class of every rule: a frozen dataclass that turns n rows, at most f of them Byzantine, into one vector."""

from __future__ import annotations

import dataclasses
import operator
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from gyroscope._core import random_streams, registry
from gyroscope._core.errors import ConfigError, InfeasibleError, either
from gyroscope._linalg import distances, matrix

_LINEAR = re.compile(r"n >= (\d*)f \+ (\d+)")

NO_TRUSTED = (
    "the rule {rule} compares the rows with a gradient at samples that the server itself holds, and here are none: say "
    "how many it holds (trusted = 100), give its gradient in a loop of your own (server.step(rows, trusted=...) or "
    "rule(rows, f, RuleContext(trusted=...))), or choose another rule"
)


class Aggregate(NamedTuple):
    """What a rule returns."""

    vector: Tensor
    """The aggregated vector: shape (d,), dtype and device of the rows."""

    weight: Tensor | None
    """Each worker's share in the vector, shape (n,), float64; None where a share has no meaning.

    Shares add up to 1, or to 0 if no worker has a part in the vector (`fltrust` may return the trusted gradient).
    """


Reads = Literal["rows", "columns", "distances"]
Uses = Literal["state", "randomness", "trusted"]
Property = Literal["permutation", "translation", "scale", "mean at f = 0", "ties", "asynchronous"]
Guarantee = Literal["range", "distance", "norm", "finite", "none"]
STEERABLE: frozenset[Guarantee] = frozenset({"norm", "finite", "none"})
"""The guarantees with which the result may point anywhere: an adversary who knows the rule may steer it."""
RuleState = Mapping[str, Tensor]
"""What a rule keeps from round to round: named tensors, so that any checkpoint can hold them."""


@dataclasses.dataclass(frozen=True, eq=False)
class RuleContext:
    """What a rule may know besides the rows. Most rules use none of it, and the default is enough."""

    step: int = 0
    seed: int = 0
    """The run's seed. The server has random streams of its own, so a rule's draws change nobody else's."""
    state: RuleState = dataclasses.field(default_factory=dict)
    """The state that this rule returned in its last round; empty in the first."""
    trusted: Tensor | None = None
    """(d,): a gradient at samples that the server itself holds, if it holds any."""
    scope: str = ""
    """Which part of a composed rule this context is for: see `within`."""

    def generator(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a generator for one purpose of a rule in this round; each call returns the same random numbers."""
        return random_streams.generator(self.seed, f"rule/{self.scope}{purpose}", self.step, device=device)

    def draw(self, purpose: str, count: int, among: int, rounds: int = 1) -> Iterator[Tensor]:
        """Yield `rounds` times `count` of the numbers 0 to among - 1, in order; every set of them is as likely.

        A permutation of all numbers would take far longer where few are drawn.
        """
        generator = self.generator(purpose)
        fewer = min(count, among - count)
        for _ in range(rounds):
            drawn = np.zeros(among, np.bool_)
            while (left := fewer - np.count_nonzero(drawn)) > 0:
                drawn[torch.randint(among, (left,), generator=generator).numpy()] = True
            yield torch.from_numpy(np.flatnonzero(drawn if fewer == count else ~drawn))

    def within(self, part: str) -> RuleContext:
        """Return the context for one part of the rule, with that part's state and random streams of its own.

        `scoped` does the reverse: it labels the part's new state for the state of the whole.
        """
        prefix = f"{part}/"
        own = {key.removeprefix(prefix): value for key, value in self.state.items() if key.startswith(prefix)}
        return dataclasses.replace(self, state=own, scope=self.scope + prefix)


def scoped(state: RuleState, part: str) -> dict[str, Tensor]:
    """Label the state of a part for the state of the whole rule, where `RuleContext.within` finds it."""
    return {f"{part}/{key}": value for key, value in state.items()}


@dataclasses.dataclass(frozen=True)
class Rule(registry.Named):
    """A gradient aggregation rule.

    A subclass sets the class variables, of which only `needs` is mandatory, and implements `aggregate`. Users call the
    object: `Krum()(rows, f=12).vector`, or `Krum(f=12)(rows).vector`. The call checks the input, so `aggregate` never
    sees a bad shape or an infeasible f.

    A rule that keeps state, draws at random or uses a trusted gradient lists that in `uses` and implements `advance`
    (see `ContextualRule`). A rule that says what it `reads` can be applied to some of the columns on each of many
    machines (see `on_columns`). Both are optional.
    """

    f: int | None = dataclasses.field(default=None, kw_only=True, repr=False)
    """How many Byzantine workers to tolerate, for calls that do not give f."""

    kind_in_errors = "rule"
    needs: ClassVar[str] = ""
    """The requirement as a formula, such as `n >= 2f + 3`, from which `min_workers` follows."""
    resilient: ClassVar[bool] = True
    """Whether the result is finite if at most f rows hold arbitrary values; `guarantee` says how close it is."""
    guarantee: ClassVar[Guarantee] = "finite"
    """Where the result is if at most f rows hold arbitrary values, with r = `bound_factor(n, f)`:

    - "range": in every coordinate within the range of the honest rows, widened on both sides by r times its width;
    - "distance": at most r times as far from the mean of the honest rows as the farthest of them;
    - "norm": at most r times as long as the longest honest row. That is a weak guarantee: it may point anywhere;
    - "finite": it is finite, and no more is proven;
    - "none": no guarantee at all. Then `resilient` is False.
    """
    fallback: ClassVar[type[Rule] | None] = None
    """A rule that tolerates more Byzantine workers, for the error about an infeasible f."""
    reads: ClassVar[Reads] = "rows"
    """What one value of the result depends on.

    - "rows": possibly on everything (the default, always right);
    - "columns": on the values in its own column, and the weights on no value at all;
    - "distances": on its own column and the distances between whole rows. Such a rule implements `combine`.

    This describes `aggregate`: a subclass that overrides `aggregate` and does not set `reads` again reads "rows".
    """
    unsupported: ClassVar[Mapping[Property, str]] = {}
    """The usual properties that this rule does not have, each with a short reason.

    - "permutation": renumbering the workers renumbers the weights and changes nothing else;
    - "translation": adding a vector to all rows adds it to the result;
    - "scale": multiplying all rows by a positive number multiplies the result by it;
    - "mean at f = 0": with f = 0 the result is the mean of all rows;
    - "ties": if all rows are equal, the result equals them;
    - "asynchronous": the host reads no value on the way, so it never waits for a GPU.
    """
    uses: ClassVar[frozenset[Uses]] = frozenset()
    """The parts of the `RuleContext` that the result depends on."""
    tracks_workers: ClassVar[bool] = False
    """Whether row i must come from the same worker in every round; then no pre-aggregation may shuffle rows."""

    def __new__(cls, *_: Any, **parameters: Any) -> Any:
        made = super().__new__(cls)
        if cls.min_workers is Rule.min_workers and not _LINEAR.fullmatch(cls.needs):
            raise ConfigError(
                f"the rule {cls.__name__} is not complete: it must implement min_workers(self, f), or say "
                'needs = "n >= 2f + 1"'
            )
        if parameters.get("f") is not None:
            check_f(parameters["f"])
        return made

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        first = next(kind for kind in cls.__mro__ if "aggregate" in vars(kind) or "reads" in vars(kind))
        if "reads" not in vars(first):
            cls.reads = "rows"
        if "__repr__" not in vars(cls):
            cls.__repr__ = Rule.__repr__  # type: ignore[method-assign]  # dataclass leaves a defined one alone

    def __call__(
        self, rows: Tensor | Sequence[Tensor], f: int | None = None, context: RuleContext | None = None
    ) -> Aggregate:
        """Aggregate the rows.

        Args:
            rows: An (n, d) floating-point tensor, or a list or tuple of n vectors. It is never changed.
            f: How many rows may be Byzantine; optional if the rule was built with it, as `Krum(f=3)`.
            context: The step, the seed, the rule's state and a trusted gradient, for the rules that use them.

        Raises:
            InfeasibleError: The rule cannot tolerate f Byzantine rows among n.
            RowsError: The rows are no (n, d) floating-point matrix.
        """
        return self.step(rows, f, context)[0]

    def step(
        self, rows: Tensor | Sequence[Tensor], f: int | None = None, context: RuleContext | None = None
    ) -> tuple[Aggregate, RuleState]:
        """Aggregate the rows as a call does; return also the state to pass as `context.state` in the next round."""
        checked, f = self._checked_input(rows, f)
        aggregate, state = self.advance(checked, f, context or RuleContext())
        return self._checked_result(aggregate, checked), state

    def on_columns(self, rows: Tensor, f: int, table: Tensor | None = None) -> Aggregate:
        """Return the result in some of the columns.

        Args:
            rows: (n, k): the columns that are known here, of all n rows.
            f: How many rows may be Byzantine.
            table: The squared distances between the whole rows, for a rule that reads "distances". It is the sum of
                `distances.squared_distances` over all parts of the columns, which holds inf but never NaN.
        """
        checked, f = self._checked_input(rows, f)
        if self.reads == "columns":
            aggregate = self.aggregate(checked, f)
        elif self.reads == "distances" and table is not None:
            aggregate = self.combine(checked, f, table)
        else:
            need = "whole rows" if self.reads == "rows" else "the table of distances between whole rows"
            raise ConfigError(f"the rule {type(self).__name__} cannot work on some of the columns: it needs {need}")
        return self._checked_result(aggregate, checked)

    def __repr__(self) -> str:
        shown = [field.name for field in dataclasses.fields(self) if field.repr] + ["f"] * (self.f is not None)
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __rshift__(self, other: object) -> NoReturn:
        named = f"{other.__name__}()" if isinstance(other, type) else repr(other)
        if isinstance(other, Rule) or (isinstance(other, type) and issubclass(other, Rule)):
            raise ConfigError(
                f"a rule comes last, and {self} is one: pre-aggregations come before it (NNM() >> {self!r}), "
                f"and several rules take turns in a mixture (Mixture([{self!r}, {named}]))"
            )
        raise ConfigError(f"a rule comes last, after its pre-aggregations: write {named} >> {self!r}")

    def __rrshift__(self, other: object) -> NoReturn:
        raise not_composable(other, f"{{}} >> {self!r}")

    @abstractmethod
    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        """Run the algorithm on checked rows. It must neither change the rows nor return a view of them."""

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        """Run an algorithm that depends on the context; return the new state too, without changing the old one."""
        return self.aggregate(rows, f), {}

    def aggregate_mixed(self, rows: Tensor, shares: Tensor, f: int) -> Aggregate | None:
        """Run the algorithm on mixed rows, `shares @ rows`, without computing them as a whole.

        Args:
            rows: (n, d).
            shares: (m, n): the share of each row in each mixed row.
            f: How many of the mixed rows may be Byzantine.

        Returns:
            The result with the weights of the mixed rows; None if the rule needs to see the mixed rows.
        """
        return None

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        """Run the algorithm on some of the columns, given the squared distances between the whole rows.

        Only rules that read "distances" have it; their `aggregate` is `combine` with the distances of its own rows.
        """
        raise ConfigError(
            f'the rule {type(self).__name__} says reads = "distances" and so must implement combine(rows, f, table)'
        )

    def min_workers(self, f: int) -> int:
        """Return the smallest n for which the rule tolerates f Byzantine workers: what `needs` says, by default."""
        bound = _LINEAR.fullmatch(self.needs)
        assert bound, self.needs
        return int(bound[1] or 1) * f + int(bound[2])

    def bound_factor(self, n: int, f: int) -> float:
        """Return the factor r of the rule's `guarantee`; the rule's docstring has the proof."""
        return 0.0

    def trusts(self, n: int) -> tuple[int, ...]:
        """Return the workers that the rule assumes to be honest: the guarantee holds only if they are."""
        return ()

    def ratio_bound(self, n: int, f: int) -> float | None:
        """Return the variance-norm ratio below which the theory proves resilience, or None if there is no theorem."""
        return None

    def check_feasible(self, n: int, f: int) -> None:
        """Raise an error if the rule cannot work with this (n, f). Nothing is clamped."""
        f = self.resolve_f(f)
        others = (f"use {rule.name}" for rule in self.fallback_rules() if rule.min_workers(f) <= n)
        check_enough(self, n, f, others)

    def fallback_rules(self) -> Iterator[Rule]:
        """Yield the chain of fallbacks, each of which tolerates more Byzantine workers than the one before."""
        fallback = self.fallback
        while fallback is not None:
            yield fallback()
            fallback = fallback.fallback

    def resolve_f(self, f: int | None) -> int:
        """Return the f of a call, or else the f that the rule was built with."""
        if f is None and self.f is None:
            raise ConfigError(
                f"the rule {self} is not told how many Byzantine workers to tolerate: give f in the call, "
                "rule(rows, f=3), or when the rule is built, Krum(f=3)"
            )
        if f is None or self.f is None:
            return check_f(self.f if f is None else f)
        if check_f(f) != self.f:
            raise ConfigError(f"the rule {self} was built with f = {self.f} and is called with f = {f}: give only one")
        return f

    def _checked_input(self, rows: Tensor | Sequence[Tensor], f: int | None) -> tuple[Tensor, int]:
        checked, f = matrix.check(rows), self.resolve_f(f)
        self.check_feasible(checked.shape[0], f)
        return checked, f

    def _checked_result(self, aggregate: Aggregate, rows: Tensor) -> Aggregate:
        """Return the aggregate, or raise an error that says what a third party's rule did wrong."""
        if not isinstance(aggregate, Aggregate) or aggregate.vector.shape != rows.shape[1:]:
            shape = f"vector of shape {tuple(aggregate.vector.shape)}" if isinstance(aggregate, Aggregate) else ""
            raise ConfigError(
                f"the rule {type(self).__name__} must return rules.Aggregate(vector, weight) with a vector of "
                f"d = {rows.shape[1]} values (weight may be None), got a {shape or type(aggregate).__name__}"
            )
        return aggregate


@dataclasses.dataclass(frozen=True)
class ContextualRule(Rule):
    """A rule that keeps state, draws at random or uses a trusted gradient: it implements `advance`."""

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self.advance(rows, f, RuleContext())[0]

    @abstractmethod
    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]: ...


@dataclasses.dataclass(frozen=True)
class DistanceRule(Rule):
    """A rule that reads the rows' columns and the distances between the rows: it implements `combine`."""

    reads = "distances"

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self.combine(rows, f, distances.squared_distances(rows))

    @abstractmethod
    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate: ...

    def combine_mixed(self, rows: Tensor, shares: Tensor, f: int, table: Tensor) -> Aggregate | None:
        """Run the algorithm on mixed rows, `shares @ rows`, without computing them.

        Args:
            rows: (n, d).
            shares: (m, n): the share of each row in each mixed row; a row without a share may hold anything.
            f: How many of the mixed rows may be Byzantine.
            table: (m, m): the squared distances between the mixed rows.

        Returns:
            The result with the weights of the mixed rows; None if the rule needs to see the mixed rows.
        """
        return None


@dataclasses.dataclass(frozen=True)
class SelectionRule(DistanceRule):
    """A rule that takes the mean of some rows, which it chooses by their distances: it implements `choose`."""

    @abstractmethod
    def choose(self, table: Tensor, f: int) -> Tensor:
        """Return the numbers of the chosen rows, given the squared distances between all rows."""

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        chosen = self.choose(table, f)
        return Aggregate(matrix.mean_of(rows, chosen), equal_weights(rows, chosen))

    def combine_mixed(self, rows: Tensor, shares: Tensor, f: int, table: Tensor) -> Aggregate:
        chosen = self.choose(table, f)
        mean = shares.index_select(0, chosen).mean(dim=0)
        return Aggregate(matrix.weighted_sum(rows, mean), equal_weights(shares, chosen))


def equal_weights(rows: Tensor, chosen: Tensor) -> Tensor:
    """Return (n,): the same weight for each chosen row, and zero for the others."""
    weight = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    return weight.index_fill_(0, chosen, 1 / chosen.shape[0])


def trusted_gradient(rule: Rule, rows: Tensor, context: RuleContext) -> Tensor:
    """Return the context's trusted gradient, or raise an error if there is none of the right size."""
    if context.trusted is None:
        raise ConfigError(NO_TRUSTED.format(rule=rule))
    if context.trusted.shape != rows.shape[1:]:
        raise ConfigError(
            f"the trusted gradient must have the rows' d = {rows.shape[1]} values, got {tuple(context.trusted.shape)}"
        )
    return context.trusted.detach()


def refuse_trusted(rule: Rule, where: str) -> None:
    """Raise an error if a rule needs a trusted gradient in a place that cannot have one."""
    if "trusted" in rule.uses:
        raise ConfigError(
            f"the rule {rule} needs a gradient at samples that the server itself holds, and {where} has no such thing: "
            "choose another rule (gyroscope train and gyroscope serve have it: --trusted 100)"
        )


def check_f(f: Any) -> int:
    """Return f, or raise an error unless it is a whole number of workers, 0 or more."""
    if isinstance(f, bool) or not hasattr(f, "__index__"):
        raise ConfigError(f"f must be a whole number of workers, got {f!r}")
    number = operator.index(f)  # NumPy's, too
    if number < 0:
        raise InfeasibleError(f"f cannot be negative, got f = {f}")
    return number


def check_enough(thing: Any, n: int, f: int, other_remedies: Iterable[str] = ()) -> None:
    """Raise an error if n workers are too few for f Byzantine ones in a rule or pre-aggregation."""
    needed = thing.min_workers(f)
    if n < needed:
        bound = f"{thing.needs} = {needed}" if thing.needs not in ("", "-") else f"at least {needed}"
        remedies = [*fewer_or_more(thing.min_workers, n, f), *list(other_remedies)[:1]]
        raise InfeasibleError(
            f"{type(thing).__name__} needs {bound} workers for f = {f}, got n = {n}: {either(remedies)}"
        )


def not_composable(thing: object, place: str) -> ConfigError:
    """Return the error for something that is neither a pre-aggregation nor a rule; {} marks its place in `place`."""
    if isinstance(thing, type):
        return ConfigError(
            f"{thing.__name__} is a class, not yet an object: write {place.format(f'{thing.__name__}()')}"
        )
    if isinstance(thing, str):
        return ConfigError(
            f"{thing!r} is a spec: write the whole as one, rules.parse('nnm+krum'), or objects only, NNM() >> Krum()"
        )
    return ConfigError(f"only pre-aggregations and a rule can be composed, as in NNM() >> Krum(), got {thing!r}")


def fewer_or_more(min_workers: Callable[[int], int], n: int, f: int) -> list[str]:
    """Return the remedies if n workers are too few for f Byzantine ones: lower f, but not to 0, or raise n."""
    largest = max((g for g in range(1, f) if min_workers(g) <= n), default=None)
    fewer = [f"lower f to {largest}"] if largest is not None else []
    return [*fewer, f"use at least {min_workers(f)} workers"]

"""What every rule is: a small frozen dataclass that turns n rows, up to f of them Byzantine, into one vector."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor

from gyroscope._core import random_streams, registry
from gyroscope._core.errors import ConfigError, InfeasibleError, either
from gyroscope._linalg import matrix

_Self = TypeVar("_Self", bound="Rule")

NO_TRUSTED = (
    "the rule {rule} compares the rows with a gradient at samples that the server itself holds, and here are none: say "
    "how many it holds (trusted = 100; outside of a run rule(rows, f, RuleContext(trusted=...))), or choose another "
    "rule"
)


class Aggregate(NamedTuple):
    """What a rule returns."""

    vector: Tensor
    """The aggregated vector: shape (d,), dtype and device of the rows."""

    weight: Tensor | None
    """Each worker's share in the vector, shape (n,), float64; None where a share has no meaning.

    They add up to 1, or to 0 where no worker has a part in the vector: `fltrust` falls back on the trusted gradient.
    """


Reads = Literal["rows", "columns", "distances"]
Uses = Literal["state", "randomness", "trusted"]
Property = Literal["permutation", "translation", "scale", "mean at f = 0", "ties", "asynchronous"]
Promise = Literal["range", "distance", "norm", "finite", "none"]
RuleState = Mapping[str, Tensor]
"""What a rule remembers from round to round: named tensors, so that any checkpoint can hold it."""


@dataclasses.dataclass(frozen=True, eq=False)
class RuleContext:
    """What a rule may know besides the rows. Most need none of it, and the default will do."""

    step: int = 0
    seed: int = 0
    """Of the run. The server draws from streams of its own, so that a rule's randomness changes nobody else's."""
    state: RuleState = dataclasses.field(default_factory=dict)
    """What this rule remembered at its last round; empty at the first."""
    trusted: Tensor | None = None
    """(d,): a gradient at samples that the server itself holds, where there are some."""
    scope: str = ""
    """Which part of a rule it is for, where a rule is made of several: see `within`."""

    def generator(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Fresh randomness for one purpose of a rule in this round: the same whenever it is asked for."""
        return random_streams.generator(self.seed, f"rule/{self.scope}{purpose}", self.step, device=device)

    def within(self, part: str) -> RuleContext:
        """The same for one part of the rule, which finds no memory but its own and shares its randomness with nobody.

        `labelled` gives what the part remembers its place in the memory of the whole.
        """
        prefix = f"{part}/"
        own = {key.removeprefix(prefix): value for key, value in self.state.items() if key.startswith(prefix)}
        return dataclasses.replace(self, state=own, scope=self.scope + prefix)


def labelled(memory: RuleState, part: str) -> dict[str, Tensor]:
    """A part's memory, as the rule that it is a part of keeps it: `RuleContext.within` finds it there."""
    return {f"{part}/{key}": value for key, value in memory.items()}


@dataclasses.dataclass(frozen=True)
class Rule(ABC):
    """A gradient aggregation rule.

    A subclass sets the class variables, says how many workers it needs, and implements `aggregate`. Call the object,
    not `aggregate`: `rule(rows, f=12).vector`. The call checks the input, so `aggregate` never sees bad shapes or an
    infeasible f.

    A rule that remembers, draws at random or looks at a trusted gradient says so in `uses` and implements `advance`
    besides (see `ContextualRule`).

    Where the rows lie on many machines, a rule that says what it `reads` can be applied to a share of the columns on
    each of them (see `on_columns`). That is optional: nothing but `aggregate` and `min_workers` must be written.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    """The requirement as a formula, such as `n >= 2f + 3`."""
    paper: ClassVar[str] = "-"
    resilient: ClassVar[bool] = True
    """Whether the result is finite when at most f rows hold anything at all; how near to the others, `promise` says."""
    promise: ClassVar[Promise] = "finite"
    """Where the result is when at most f rows hold anything at all, with r = `reach(n, f)`:

    - "range": in every coordinate within the range of the other (honest) rows, widened on both sides by r times its
      width;
    - "distance": at most r times as far from the mean of the honest rows as the farthest of them;
    - "norm": at most r times as long as the longest honest row. That is little: it may point anywhere;
    - "finite": it is finite, and no more is proven;
    - "none": not even that. Then `resilient` is False.
    """
    weaker: ClassVar[type[Rule] | None] = None
    """A rule that tolerates more Byzantine workers, named in the error about an infeasible f."""
    reads: ClassVar[Reads] = "rows"
    """What one value of the result depends on.

    - "rows": possibly on everything (the default, always right);
    - "columns": on the values in its own column alone, and the weights on no value at all;
    - "distances": on its own column and the distances between whole rows. Such a rule implements `combine`.

    It describes `aggregate`: a subclass that overrides `aggregate` and does not say anew what it reads, reads "rows".
    """

    lacks: ClassVar[Mapping[Property, str]] = {}
    """Properties of a usual rule that this one does not have, each with the reason in a few words.

    - "permutation": renumbering the workers renumbers the weights and changes nothing else;
    - "translation": moving all rows by a vector moves the result by it;
    - "scale": multiplying all rows by a positive number multiplies the result by it;
    - "mean at f = 0": nobody to be tolerated, nobody left out;
    - "ties": all rows equal, the result equals them;
    - "asynchronous": nothing of the result is looked at on the way, so a GPU never has to wait for the host.
    """
    uses: ClassVar[frozenset[Uses]] = frozenset()
    """What of the `RuleContext` the result depends on."""
    knows_workers: ClassVar[bool] = False
    """Whether row i must be the same worker's in every round: then nothing that shuffles rows may come before it."""

    def __new__(cls: type[_Self], *_: Any, **__: Any) -> _Self:
        registry.check_class("rule", cls)
        return super().__new__(cls)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        first = next(kind for kind in cls.__mro__ if "aggregate" in vars(kind) or "reads" in vars(kind))
        if "reads" not in vars(first):
            cls.reads = "rows"

    def __call__(self, rows: Tensor | Sequence[Tensor], f: int, context: RuleContext | None = None) -> Aggregate:
        return self.step(rows, f, context)[0]

    def step(
        self, rows: Tensor | Sequence[Tensor], f: int, context: RuleContext | None = None
    ) -> tuple[Aggregate, RuleState]:
        """The result, and what to give back as `context.state` in the next round."""
        checked = matrix.check(rows)
        self.check_feasible(checked.shape[0], f)
        aggregate, memory = self.advance(checked, f, context or RuleContext())
        return self._checked(aggregate, checked), memory

    def on_columns(self, rows: Tensor, f: int, table: Tensor | None = None) -> Aggregate:
        """The result in some of the columns, of which `rows` are all that is known here.

        table: the squared distances between the whole rows, for a rule that reads "distances". Summing the tables of
        all columns' parts gives it, because `rows.squared_distances` holds inf but never NaN.
        """
        checked = matrix.check(rows)
        self.check_feasible(checked.shape[0], f)
        if self.reads == "columns":
            aggregate = self.aggregate(checked, f)
        elif self.reads == "distances" and table is not None:
            aggregate = self.combine(checked, f, table)
        else:
            need = "whole rows" if self.reads == "rows" else "the table of distances between whole rows"
            raise ConfigError(f"the rule {type(self).__name__} cannot work on some of the columns: it needs {need}")
        return self._checked(aggregate, checked)

    def __str__(self) -> str:
        """The spec on the command line and in a configuration that builds this rule: `krum:m=1`."""
        return registry.text(self)

    def __rshift__(self, other: object) -> NoReturn:
        named = f"{other.__name__}()" if isinstance(other, type) else repr(other)
        if isinstance(other, Rule) or (isinstance(other, type) and issubclass(other, Rule)):
            raise ConfigError(
                f"a rule comes last, and {self} is one: pre-aggregations come before it (Nnm() >> {self!r}), "
                f"and several rules take turns in a mixture (Mixture([{self!r}, {named}]))"
            )
        raise ConfigError(f"a rule comes last, after its pre-aggregations: write {named} >> {self!r}")

    def __rrshift__(self, other: object) -> NoReturn:
        raise not_composable(other, f"{{}} >> {self!r}")

    @abstractmethod
    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        """The algorithm, on checked rows. Must neither change nor return a view of them."""

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        """The algorithm where it depends on the context: the result, and what to remember. Changes no memory given."""
        return self.aggregate(rows, f), {}

    def combine(self, rows: Tensor, f: int, table: Tensor) -> Aggregate:
        """The algorithm on some of the columns, given the squared distances between the whole rows.

        Only for rules that read "distances"; their `aggregate` is this with the table of its own rows.
        """
        raise ConfigError(
            f'the rule {type(self).__name__} says reads = "distances" and so must implement combine(rows, f, table)'
        )

    @abstractmethod
    def min_workers(self, f: int) -> int:
        """The fewest workers among which f Byzantine ones can be tolerated."""

    def reach(self, n: int, f: int) -> float:
        """The factor in what the rule promises; why, the rule's own docstring says."""
        return 0.0

    def trusts(self, n: int) -> tuple[int, ...]:
        """The workers that are taken to be honest: the promise holds only while they are."""
        return ()

    def ratio_bound(self, n: int, f: int) -> float | None:
        """The variance-norm ratio below which the theory promises resilience, where it gives one."""
        return None

    def check_feasible(self, n: int, f: int) -> None:
        """Raise before anything is computed if this (n, f) is outside what the rule can do. Nothing is clamped."""
        check_f(f)
        needed = self.min_workers(f)
        if n >= needed:
            return
        remedies = fewer_or_more(self.min_workers, n, f)
        remedies += [f"use {rule.name}" for rule in self.weaker_rules() if rule.min_workers(f) <= n][:1]
        bound = f"{self.needs} = {needed}" if self.needs else f"at least {needed}"
        raise InfeasibleError(
            f"{type(self).__name__} needs {bound} workers for f = {f}, got n = {n}: {either(remedies)}"
        )

    def weaker_rules(self) -> Iterator[Rule]:
        """Rules that tolerate more Byzantine workers, and ever more of them, as far as the classes name one."""
        weaker = self.weaker
        while weaker is not None:
            yield weaker()
            weaker = weaker.weaker

    def _checked(self, aggregate: Aggregate, rows: Tensor) -> Aggregate:
        """What a rule returned, or an error that says what is wrong with it: anyone may have written the rule."""
        if not isinstance(aggregate, Aggregate) or aggregate.vector.shape != rows.shape[1:]:
            raise ConfigError(
                f"the rule {type(self).__name__} must return rules.Aggregate(vector, weight) with a vector of "
                f"d = {rows.shape[1]} values (weight may be None), got {_describe(aggregate)}"
            )
        return aggregate


@dataclasses.dataclass(frozen=True)
class ContextualRule(Rule):
    """A rule that remembers, draws at random or looks at a trusted gradient: it implements `advance`."""

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return self.advance(rows, f, RuleContext())[0]

    @abstractmethod
    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]: ...


def trusted_gradient(rule: Rule, rows: Tensor, context: RuleContext) -> Tensor:
    """The context's trusted gradient, or an error that says what the rule lacks."""
    if context.trusted is None:
        raise ConfigError(NO_TRUSTED.format(rule=rule))
    if context.trusted.shape != rows.shape[1:]:
        raise ConfigError(
            f"the trusted gradient must have the rows' d = {rows.shape[1]} values, got {tuple(context.trusted.shape)}"
        )
    return context.trusted.detach()


def refuse_trusted(rule: Rule, where: str) -> None:
    """An error where a rule needs a trusted gradient, and there cannot be one."""
    if "trusted" in rule.uses:
        raise ConfigError(
            f"the rule {rule} needs a gradient at samples that the server itself holds, and {where} has no such thing: "
            "choose another rule (gyroscope train and gyroscope serve have it: --trusted 100)"
        )


def check_f(f: int) -> None:
    """f is a whole number of workers, or an error."""
    if isinstance(f, bool) or not isinstance(f, int):
        raise ConfigError(f"f must be a whole number of workers, got {f!r}")
    if f < 0:
        raise InfeasibleError(f"f cannot be negative, got f = {f}")


def not_composable(thing: object, place: str) -> ConfigError:
    """What to write instead of something that is neither a pre-aggregation nor a rule, where {} stands in `place`."""
    if isinstance(thing, type):
        return ConfigError(
            f"{thing.__name__} is a class, not yet an object: write {place.format(f'{thing.__name__}()')}"
        )
    if isinstance(thing, str):
        return ConfigError(
            f"{thing!r} is a spec: write the whole as one, rules.parse('nnm+krum'), or objects only, Nnm() >> Krum()"
        )
    return ConfigError(f"only pre-aggregations and a rule can be composed, as in Nnm() >> Krum(), got {thing!r}")


def fewer_or_more(min_workers: Callable[[int], int], n: int, f: int) -> list[str]:
    """What always helps where n workers are too few for f Byzantine ones: fewer of these, or more of all.

    To tolerate nobody is no remedy, so nobody is told to lower f to 0.
    """
    largest = max((g for g in range(1, f) if min_workers(g) <= n), default=None)
    fewer = [f"lower f to {largest}"] if largest is not None else []
    return [*fewer, f"use at least {min_workers(f)} workers"]


def _describe(thing: object) -> str:
    if isinstance(thing, Aggregate):
        return f"a vector of shape {tuple(thing.vector.shape)}"
    return f"a {type(thing).__name__}"

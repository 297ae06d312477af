"""What every rule is: a small frozen dataclass that turns n rows, up to f of them Byzantine, into one vector."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from gyroscope import rows as rows_module
from gyroscope import specs
from gyroscope.errors import ConfigError, InfeasibleError


class Aggregate(NamedTuple):
    """What a rule returns."""

    vector: Tensor
    """The aggregated vector: shape (d,), dtype and device of the rows."""

    weight: Tensor | None
    """Each worker's share in the vector, shape (n,), float64, sum 1; None where a share has no meaning."""


Reads = Literal["rows", "columns", "distances"]


@dataclasses.dataclass(frozen=True)
class Rule(ABC):
    """A gradient aggregation rule.

    A subclass sets the class variables, says how many workers it needs, and implements `aggregate`. Call the object,
    not `aggregate`: `rule(rows, f=12).vector`. The call checks the input, so `aggregate` never sees bad shapes or an
    infeasible f.

    Where the rows lie on many machines, a rule that says what it `reads` can be applied to a share of the columns on
    each of them (see `on_columns`). That is optional: nothing but `aggregate` and `min_workers` must be written.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    """The requirement as a formula, such as `n >= 2f + 3`."""
    paper: ClassVar[str] = "-"
    resilient: ClassVar[bool] = True
    """Whether the rule promises a finite result near the honest rows when at most f rows hold anything at all."""
    weaker: ClassVar[type[Rule] | None] = None
    """A rule that tolerates more Byzantine workers, named in the error about an infeasible f."""
    reads: ClassVar[Reads] = "rows"
    """What one value of the result depends on.

    - "rows": possibly on everything (the default, always right);
    - "columns": on the values in its own column alone, and the weights on no value at all;
    - "distances": on its own column and the distances between whole rows. Such a rule implements `combine`.

    It describes `aggregate`: a subclass that overrides `aggregate` and does not say anew what it reads, reads "rows".
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        first = next(kind for kind in cls.__mro__ if "aggregate" in vars(kind) or "reads" in vars(kind))
        if "reads" not in vars(first):
            cls.reads = "rows"

    def __call__(self, rows: Tensor | Sequence[Tensor], f: int) -> Aggregate:
        checked = rows_module.check(rows)
        self.check_feasible(checked.shape[0], f)
        return self._checked(self.aggregate(checked, f), checked)

    def on_columns(self, rows: Tensor, f: int, table: Tensor | None = None) -> Aggregate:
        """The result in some of the columns, of which `rows` are all that is known here.

        table: the squared distances between the whole rows, for a rule that reads "distances". Summing the tables of
        all columns' parts gives it, because `rows.squared_distances` holds inf but never NaN.
        """
        checked = rows_module.check(rows)
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
        return specs.text(self)

    @abstractmethod
    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        """The algorithm, on checked rows. Must neither change nor return a view of them."""

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

    def ratio_bound(self, n: int, f: int) -> float | None:
        """The variance-norm ratio below which the theory promises resilience, where it gives one."""
        return None

    def check_feasible(self, n: int, f: int) -> None:
        """Raise before anything is computed if this (n, f) is outside what the rule can do. Nothing is clamped."""
        if isinstance(f, bool) or not isinstance(f, int):
            raise ConfigError(f"f must be a whole number of workers, got {f!r}")
        if f < 0:
            raise InfeasibleError(f"f cannot be negative, got f = {f}")
        needed = self.min_workers(f)
        if n >= needed:
            return
        largest = max((g for g in range(f) if self.min_workers(g) <= n), default=None)
        remedies = [f"lower f to {largest}"] if largest is not None else [f"use at least {needed} workers"]
        weaker = self.weaker
        while weaker is not None and weaker().min_workers(f) > n:
            weaker = weaker.weaker
        if weaker is not None:
            remedies.append(f"use {weaker.name}")
        bound = f"{self.needs} = {needed}" if self.needs else f"at least {needed}"
        raise InfeasibleError(
            f"{type(self).__name__} needs {bound} workers for f = {f}, got n = {n}: " + " or ".join(remedies)
        )

    def _checked(self, aggregate: Aggregate, rows: Tensor) -> Aggregate:
        """What a rule returned, or an error that says what is wrong with it: anyone may have written the rule."""
        if not isinstance(aggregate, Aggregate) or aggregate.vector.shape != rows.shape[1:]:
            raise ConfigError(
                f"the rule {type(self).__name__} must return rules.Aggregate(vector, weight) with a vector of "
                f"d = {rows.shape[1]} values (weight may be None), got {_describe(aggregate)}"
            )
        return aggregate


def _describe(thing: object) -> str:
    if isinstance(thing, Aggregate):
        return f"a vector of shape {tuple(thing.vector.shape)}"
    return f"a {type(thing).__name__}"

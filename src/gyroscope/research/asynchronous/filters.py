"""The base of all filters. A filter sees one gradient at a time, and accepts or refuses it.

A filter is a small frozen dataclass. Its state is explicit: `judge` takes one and returns the next.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import InfeasibleError

FilterState = TypeVar("FilterState")


@dataclasses.dataclass(frozen=True, eq=False)
class Arrival:
    """A gradient that arrives, and what the server knows of it. Filters keep the tensors, which must not change."""

    worker: int
    vector: Tensor
    """What the worker sent: a gradient, or with momentum at the workers an accumulated one."""
    parameters: Tensor
    """The model that the server had given to this worker."""
    version: int
    """That model's number."""


@dataclasses.dataclass(frozen=True)
class FilterVerdict:
    """Whether a filter accepts a gradient, and why not."""

    accepted: bool
    refused_by: str = ""
    """`lipschitz`, `frequency`, or empty."""
    coefficient: float | None = None
    """The empirical growth coefficient, where there was one to compute."""
    bound: float | None = None
    """The largest coefficient that would have been accepted."""


@dataclasses.dataclass(frozen=True)
class Filter(ABC, Generic[FilterState]):
    """Accept or refuse each gradient as it arrives."""

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str] = "-"
    needs: ClassVar[str] = "n >= 1"

    def min_workers(self, f: int) -> int:
        """Return how many workers it needs to tolerate f Byzantine ones, and to go on when those are silent."""
        return 1

    def check_feasible(self, n: int, f: int) -> None:
        """Raise an InfeasibleError where n workers are too few for f Byzantine ones."""
        least = self.min_workers(f)
        if n < least:
            raise InfeasibleError(
                f"the filter {self.name!r} needs {self.needs} = {least} workers for f = {f}, got n = {n}: lower f "
                f"(--declared-byzantine), take more workers, or use the filter 'none'"
            )

    @abstractmethod
    def begin(self, f: int) -> FilterState:
        """Return the state before the first arrival."""

    @abstractmethod
    def judge(self, arrival: Arrival, state: FilterState) -> tuple[FilterVerdict, FilterState]:
        """Return the verdict on a gradient, and the state for the next one."""

    def __str__(self) -> str:
        return registry.text(self)


@dataclasses.dataclass(frozen=True)
class NoFilter(Filter[None]):
    """Accept everything: plain asynchronous SGD."""

    name = "none"
    summary = "accepts everything: plain asynchronous SGD, without protection"
    paper = "-"

    def begin(self, f: int) -> None:
        return None

    def judge(self, arrival: Arrival, state: None) -> tuple[FilterVerdict, None]:
        return FilterVerdict(accepted=True), None

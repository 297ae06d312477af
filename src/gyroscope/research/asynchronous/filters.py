"""What every filter is: it sees one gradient at a time, and accepts or refuses it.

A filter is a small frozen dataclass; what it remembers is an explicit state, given and returned, never changed.
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
    """A gradient as it arrives, and what the server knows of it. Filters keep the tensors: they must not change."""

    worker: int
    vector: Tensor
    """What the worker sent: a gradient, or with momentum at the workers an accumulated one."""
    parameters: Tensor
    """The model that the server had given to this worker."""
    version: int
    """That model's number."""


@dataclasses.dataclass(frozen=True)
class FilterVerdict:
    accepted: bool
    refused_by: str = ""
    """`lipschitz`, `frequency`, or empty."""
    coefficient: float | None = None
    """The empirical growth coefficient, where there was one to compute."""
    bound: float | None = None
    """The largest coefficient that would have been accepted."""


@dataclasses.dataclass(frozen=True)
class Filter(ABC, Generic[FilterState]):
    """Accepts or refuses each gradient as it arrives."""

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str] = "-"
    needs: ClassVar[str] = "n >= 1"

    def min_workers(self, f: int) -> int:
        """How many workers it needs to tolerate f Byzantine ones and still go on when those are silent."""
        return 1

    def check_feasible(self, n: int, f: int) -> None:
        least = self.min_workers(f)
        if n < least:
            raise InfeasibleError(
                f"the filter {self.name!r} needs {self.needs} = {least} workers for f = {f}, got n = {n}: lower f "
                f"(--declared-byzantine), take more workers, or use the filter 'none'"
            )

    @abstractmethod
    def begin(self, f: int) -> FilterState:
        """What it remembers before the first arrival."""

    @abstractmethod
    def judge(self, arrival: Arrival, state: FilterState) -> tuple[FilterVerdict, FilterState]:
        """The verdict on a gradient, and the state for the next."""

    def __str__(self) -> str:
        return registry.text(self)


@dataclasses.dataclass(frozen=True)
class NoFilter(Filter[None]):
    """Accepts everything: plain asynchronous SGD."""

    name = "none"
    summary = "accepts everything: plain asynchronous SGD, at anybody's mercy"
    paper = "-"

    def begin(self, f: int) -> None:
        return None

    def judge(self, arrival: Arrival, state: None) -> tuple[FilterVerdict, None]:
        return FilterVerdict(accepted=True), None

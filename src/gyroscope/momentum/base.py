"""What every placement of momentum is: a slot in the round, on rows before the rule and on the vector after it.

All use m <- mu * m + g, without dampening, as the paper does. Libraries that use m <- mu * m + (1 - mu) * g need a
learning rate 1/(1 - mu) times as large for the same steps.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError

State = dict[str, Tensor]
"""What a placement remembers from step to step: named tensors, so that any checkpoint can hold it."""


@dataclasses.dataclass(frozen=True)
class Placement(ABC):
    """State in, state out: the rows and the state given are not changed, except where `out` says so."""

    mu: float = 0.9
    nesterov: bool = False

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str] = "-"
    accumulates_rows: ClassVar[bool] = False
    """Whether the rows are accumulated in `before`: then honest workers send something else than what they sampled."""
    knows_samples: ClassVar[bool] = True
    """Whether the rows given to `before` are the sampled gradients."""
    sees_all_rows: ClassVar[bool] = False
    """Whether the server needs all the rows (`received`), not only what the rule makes of them."""
    one_process: ClassVar[bool] = False
    """Whether it needs what no server of separate processes has: the simulation alone can do it."""

    def __post_init__(self) -> None:
        if isinstance(self.mu, bool) or not isinstance(self.mu, (int, float)) or not 0 <= self.mu < 1:
            raise ConfigError(f"mu must be at least 0 and below 1, got {self.mu!r}")

    def at(self, mu: float) -> Placement:
        """The same placement with another factor."""
        return self if mu == self.mu else dataclasses.replace(self, mu=mu)

    @abstractmethod
    def init(self, rows: Tensor) -> State:
        """The state before the first step, for honest rows of this shape, dtype and device."""

    def before(self, rows: Tensor, state: State, out: Tensor | None = None) -> tuple[Tensor, State]:
        """From the gradients that the honest workers sampled to the rows that they send.

        out: where to write the rows that are sent. The state returned may keep them there, so that the next call with
        the same `out` neither allocates nor copies.
        """
        return rows, state

    def shared(self, state: State) -> Tensor | None:
        """What every honest worker adds to its gradient in `before`, where that is the same for all. Else None."""
        return None

    def received(self, rows: Tensor, state: State, f: int, honest: int) -> tuple[Tensor, State]:
        """From all n rows, as they arrived at the server, to those that the rule is given.

        f: how many of them the server must reckon with to be Byzantine. honest: how many, the first ones, are not: only
        a placement that is meant for comparison looks at that, because no server knows it.
        """
        return rows, state

    def after(self, vector: Tensor, state: State) -> tuple[Tensor, State]:
        """From the rule's vector to the direction of the update."""
        return vector, state

    def at_workers(self, state: State) -> bool | None:
        """After a round: whether its momentum was at the workers. None for a placement that never switches."""
        return None

    def _accumulate(self, gradient: Tensor, memory: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(what to use, what to remember): the momentum itself, or with Nesterov's look-ahead g + mu * m."""
        if not self.nesterov:
            memory = torch.add(gradient, memory, alpha=self.mu, out=out)
            return memory, memory
        memory = torch.add(gradient, memory, alpha=self.mu)
        return torch.add(gradient, memory, alpha=self.mu, out=out), memory

    def _refuse_nesterov(self) -> None:
        if self.nesterov:
            raise ConfigError(f"{self.name!r} has no look-ahead form: leave nesterov out, or use 'workers' or 'server'")

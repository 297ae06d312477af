"""Where momentum lives. A placement is a slot in the round: it acts on rows before the rule, on the vector after it.

All use m <- mu * m + g, without dampening, as the paper does. Libraries that use m <- mu * m + (1 - mu) * g need a
learning rate 1/(1 - mu) times as large for the same steps.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope.errors import ConfigError, UnknownNameError

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

    def __post_init__(self) -> None:
        if isinstance(self.mu, bool) or not isinstance(self.mu, (int, float)) or not 0 <= self.mu < 1:
            raise ConfigError(f"mu must be at least 0 and below 1, got {self.mu!r}")

    @abstractmethod
    def init(self, rows: Tensor) -> State:
        """The state before the first step, for honest rows of this shape, dtype and device."""

    def before(self, rows: Tensor, state: State, out: Tensor | None = None) -> tuple[Tensor, State]:
        """From the gradients that the honest workers sampled to the rows that they send.

        out: where to write the rows that are sent. The state returned may keep them there, so that the next call with
        the same `out` neither allocates nor copies.
        """
        return rows, state

    def after(self, vector: Tensor, state: State) -> tuple[Tensor, State]:
        """From the rule's vector to the direction of the update."""
        return vector, state

    def _accumulate(self, gradient: Tensor, memory: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(what to use, what to remember): the momentum itself, or with Nesterov's look-ahead g + mu * m."""
        if not self.nesterov:
            memory = torch.add(gradient, memory, alpha=self.mu, out=out)
            return memory, memory
        memory = torch.add(gradient, memory, alpha=self.mu)
        return torch.add(gradient, memory, alpha=self.mu, out=out), memory


@dataclasses.dataclass(frozen=True)
class NoMomentum(Placement):
    """Plain SGD: neither side accumulates."""

    name = "none"
    summary = "plain SGD: nobody accumulates"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov:
            raise ConfigError("nesterov needs a momentum: choose the placement 'workers' or 'server'")

    def init(self, rows: Tensor) -> State:
        return {}


@dataclasses.dataclass(frozen=True)
class AtServer(Placement):
    """The usual placement: the server accumulates what the rule returns."""

    name = "server"
    summary = "after the rule, at the server: G = sum of mu^(t-u) F(g_1, ..., g_n)"
    paper = "the usual formulation"

    def init(self, rows: Tensor) -> State:
        return {"server": torch.zeros_like(rows[0])}

    def after(self, vector: Tensor, state: State) -> tuple[Tensor, State]:
        direction, memory = self._accumulate(vector, state["server"])
        return direction, {"server": memory}


@dataclasses.dataclass(frozen=True)
class AtWorkers(Placement):
    """The paper's placement: each honest worker accumulates its own gradients and sends the sum."""

    name = "workers"
    summary = "before the rule, at each worker: G = F(sum of mu^(t-u) g_1, ..., sum of mu^(t-u) g_n)"
    paper = "El Mhamdi, Guerraoui, Rouault 2020"
    accumulates_rows = True

    def init(self, rows: Tensor) -> State:
        return {"workers": torch.zeros_like(rows)}

    def before(self, rows: Tensor, state: State, out: Tensor | None = None) -> tuple[Tensor, State]:
        sent, memory = self._accumulate(rows, state["workers"], out)
        return sent, {"workers": memory}


@dataclasses.dataclass(frozen=True)
class Elsewhere(AtWorkers):
    """Momentum at workers that are processes of their own: their rows come with the momentum in them."""

    accumulates_rows = False
    knows_samples = False

    def init(self, rows: Tensor) -> State:
        return {}

    def before(self, rows: Tensor, state: State, out: Tensor | None = None) -> tuple[Tensor, State]:
        return rows, state


PLACEMENTS: dict[str, type[Placement]] = {placement.name: placement for placement in (AtWorkers, AtServer, NoMomentum)}


def make(name: str, mu: float = 0.9, nesterov: bool = False) -> Placement:
    """The placement of that name."""
    if name not in PLACEMENTS:
        raise UnknownNameError("momentum placement", name, PLACEMENTS)
    return PLACEMENTS[name](mu=mu, nesterov=nesterov)

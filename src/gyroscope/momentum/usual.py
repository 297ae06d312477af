"""The placements that the paper compares: momentum at the workers, at the server, and none."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope.momentum.base import Placement, State


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

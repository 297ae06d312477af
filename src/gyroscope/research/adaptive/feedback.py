"""The third variant of the paper's released code: momentum of the server's own past, in every row."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope.momentum.base import Placement, State


@dataclasses.dataclass(frozen=True)
class Feedback(Placement):
    """Each honest row is the gradient plus mu times the last aggregate; the rule's vector is the direction.

    All honest rows move by the same vector, so their variance is that of plain gradients while their norm is that of
    momentum. For a rule that moves along with its rows, and Byzantine rows that do so too, this is momentum at the
    server.
    """

    name = "feedback"
    summary = (
        "before the rule, at each worker, with the server's past: G = F(g_1 + mu G', ..., g_n + mu G'), G' the last"
    )
    paper = "this one's released code"
    accumulates_rows = True
    one_process = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_nesterov()

    def init(self, rows: Tensor) -> State:
        return {"aggregate": torch.zeros_like(rows[0])}

    def before(self, rows: Tensor, state: State, out: Tensor | None = None) -> tuple[Tensor, State]:
        return torch.add(rows, state["aggregate"], alpha=self.mu, out=out), state

    def shared(self, state: State) -> Tensor:
        return self.mu * state["aggregate"]

    def after(self, vector: Tensor, state: State) -> tuple[Tensor, State]:
        return vector, {"aggregate": vector}

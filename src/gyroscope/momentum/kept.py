"""Momentum of each worker, kept by the server: what `workers` does, without trusting the workers to do it."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope.momentum.base import Placement, State


@dataclasses.dataclass(frozen=True)
class ServerKept(Placement):
    """The server accumulates what each worker sends, row by row, and gives the rule the sums.

    When nobody lies it is the same as momentum at the workers, to the bit, and a worker that joins late or restarts has
    lost nothing. It costs the server n * d values of memory instead of each worker d. A Byzantine worker's row is
    accumulated like any other's, so one that wants a certain sum has to know what it sent before.

    A row that is not finite counts for this round only: the rule sees it, and the worker's sum stays as it was.
    """

    name = "server-kept"
    summary = "before the rule, at the server, which accumulates each worker's gradients: workers send plain gradients"
    paper = "this one's idea, kept elsewhere"
    sees_all_rows = True

    def init(self, rows: Tensor) -> State:
        return {}

    def received(self, rows: Tensor, state: State, f: int, honest: int) -> tuple[Tensor, State]:
        shown, kept = self.keep(rows, state)
        return shown, {"kept": kept}

    def keep(self, rows: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """(what the rule is shown, every worker's sum)."""
        before = state.get("kept")
        if before is None:
            before = torch.zeros_like(rows)
        shown, kept = self._accumulate(rows, before)
        unusable = kept.sum(dim=1).isfinite().logical_not_()
        if kept.device.type != "cpu" or bool(unusable.any()):  # a GPU had better not wait for the answer
            kept = torch.where(unusable.unsqueeze(1), before, kept)
        return shown, kept

"""The third variant of the paper's released code: every row holds the momentum of the server's last result."""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope.momentum import WorkerMomentum


class LastAggregate:
    """The rule's last result, which the server sends to all workers with the model."""

    vector: Tensor | None = None


class FeedbackMomentum(WorkerMomentum):
    """Send the gradient plus mu times the last aggregate: G = F(g_1 + mu G', ..., g_n + mu G').

    All honest rows move by the same vector, so their variance is that of plain gradients while their norm is that of
    momentum. For a rule that moves along with its rows, and Byzantine rows that do so too, this is momentum at the
    server. A worker keeps nothing of its own, so a gradient that is not finite has no effect on later rounds.
    """

    def __init__(self, mu: float, last: LastAggregate) -> None:
        """Begin with the first round.

        Args:
            mu: the momentum factor, 0 <= mu < 1.
            last: where the run writes the rule's result after each round.
        """
        super().__init__(mu)
        self.last = last

    def update(self, gradient: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the gradient plus mu times the last aggregate."""
        last = torch.zeros_like(gradient) if self.last.vector is None else self.last.vector
        return torch.add(gradient, last.expand_as(gradient), alpha=self.mu, out=out)

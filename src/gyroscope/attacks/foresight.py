"""Foresight: an attack on what the rule is shown, where the server does something to the rows first."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks import nested
from gyroscope.attacks.base import Attack, AttackContext


@dataclasses.dataclass(frozen=True)
class Foresight(Attack):
    """The inner attack, aimed at the rows that the rule will be shown instead of those that are sent.

    A server that accumulates each worker's rows (`server-kept`, `adaptive`) shows the rule an honest worker's momentum,
    and adds to a Byzantine row what that worker sent before. This adversary knows that: it asks what the inner attack
    would do among the accumulated honest rows, and takes off its own row what the server is going to add. Against
    `server-kept` that is the inner attack against `workers`, so that nothing is won by keeping the momentum elsewhere.
    Where the server shows the rule what it was sent, this is the inner attack.

    What is sent may change what the server does (`adaptive`). Then it is aimed once more, at what the server does now,
    and left at that, hit or miss.
    """

    attack: Attack = nested.DEFAULT

    name = "foresight"
    summary = "an inner attack on the rows as the rule will be shown them, where the server accumulates what is sent"

    def __post_init__(self) -> None:
        nested.one(self, "attack")

    def check_feasible(self, n: int, f: int) -> None:
        self.attack.check_feasible(n, f)

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        if context.preview is None:
            return nested.call(self.attack, honest, f, context)
        notes, generator = dict(context.state), context.generator.get_state()
        # Sending zeros shows exactly what the server adds.
        shown, added = _foreseen(honest, honest.new_zeros(f, honest.shape[1]), context)
        sent = self._aimed(shown, added, context)
        shown_now, added_now = _foreseen(honest, sent, context)
        if torch.equal(shown_now[0], shown[0]):
            return sent
        context.state.clear()  # the first attempt never happened
        context.state.update(notes)
        context.generator.set_state(generator)
        return self._aimed(shown_now, added_now, context)

    def _aimed(self, shown: Tensor, added: Tensor, context: AttackContext) -> Tensor:
        """What to send so that the rule is shown the inner attack's rows among these honest ones."""
        own = context.compute_gradients
        inner = dataclasses.replace(
            context,
            preview=None,
            moments=CachedMoments(shown),
            compute_gradients=None if own is None else lambda flipped: own(flipped) + added,
        )
        return nested.call(self.attack, shown, len(added), inner) - added


def _foreseen(honest: Tensor, rows: Tensor, context: AttackContext) -> tuple[Tensor, Tensor]:
    """(the honest rows as the rule will be shown them, what the server will have added to these Byzantine rows)."""
    shown = context.shown(torch.cat([honest, rows]))
    return shown[: len(honest)], shown[len(honest) :] - rows

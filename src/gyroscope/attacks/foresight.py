"""Foresight: an attack on the rows that the rule will see, if the server changes the rows first."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.base import AttackContext
from gyroscope.attacks.nested import Nested, call


@dataclasses.dataclass(frozen=True)
class Foresight(Nested):
    """Aim the inner attack at the rows that the rule will see, instead of those that are sent.

    A server that accumulates each worker's rows (`server-kept`, `adaptive`) shows the rule an honest worker's momentum,
    and adds to a Byzantine row what that worker sent before. This adversary knows that: it computes the inner attack
    among the accumulated honest rows, and subtracts from its own row what the server will add. Against `server-kept`
    that is the inner attack against `workers`, so keeping the momentum at the server gains nothing. If the server
    passes the rows on as they are, this is the inner attack.

    A row may change what the server does (`adaptive`). Then the attack aims a second time, at what the server does
    now, and sends that row whether it hits or misses.
    """

    name = "foresight"
    summary = "an inner attack on the rows as the rule will see them, if the server accumulates what is sent"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        if context.preview is None:
            return call(self.attack, honest, f, context)
        state, generator = dict(context.state), context.generator.get_state()
        # Sending zeros shows exactly what the server adds.
        shown, added = _foreseen(honest, honest.new_zeros(f, honest.shape[1]), context)
        sent = self._aimed(shown, added, context)
        shown_now, added_now = _foreseen(honest, sent, context)
        if torch.equal(shown_now[0], shown[0]):
            return sent
        context.state.clear()  # undo the first attempt
        context.state.update(state)
        context.generator.set_state(generator)
        return self._aimed(shown_now, added_now, context)

    def _aimed(self, shown: Tensor, added: Tensor, context: AttackContext) -> Tensor:
        """Return what to send so that the rule sees the inner attack's rows among these honest ones."""
        own = context.compute_gradients
        inner = dataclasses.replace(
            context,
            preview=None,
            moments=CachedMoments(shown),
            compute_gradients=None if own is None else lambda flipped: own(flipped) + added,
        )
        return call(self.attack, shown, len(added), inner) - added


def _foreseen(honest: Tensor, rows: Tensor, context: AttackContext) -> tuple[Tensor, Tensor]:
    """Return the honest rows as the rule will see them, and what the server will add to these Byzantine rows."""
    shown = context.shown(torch.cat([honest, rows]))
    return shown[: len(honest)], shown[len(honest) : len(honest) + len(rows)] - rows  # copies may follow

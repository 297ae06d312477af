"""Equivocation: send each server other rows."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.base import AttackContext
from gyroscope.attacks.nested import Nested, call


@dataclasses.dataclass(frozen=True)
class Equivocate(Nested):
    """Send every second server the inner attack's rows, and the others these rows mirrored at the honest mean.

    If several servers hold the model, this pulls them apart: the rows pass for noise at every server, but in opposite
    directions. With one server it is the inner attack.
    """

    name = "equivocate"
    summary = "an inner attack's rows for every second server, their mirror images for the others"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        rows = call(self.attack, honest, f, context)
        if context.server % 2 == 0:
            return rows
        mean = (context.moments or CachedMoments(honest)).moments.mean
        return (2 * mean.double() - rows.double()).to(honest.dtype)

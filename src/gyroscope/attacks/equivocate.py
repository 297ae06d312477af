"""Equivocation: another story for every server."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks import nested
from gyroscope.attacks.base import Attack, AttackContext


@dataclasses.dataclass(frozen=True)
class Equivocate(Attack):
    """To every second server the inner attack's rows, to the others these rows mirrored at the honest mean.

    Where several servers hold the model, this pulls them apart: what half of them take for noise in one direction is
    noise in the other for the rest. With one server it is the inner attack.
    """

    attack: Attack = nested.DEFAULT

    name = "equivocate"
    summary = "an inner attack's rows for every second server, their mirror images for the others"

    def __post_init__(self) -> None:
        nested.one(self, "attack")

    def check_feasible(self, n: int, f: int) -> None:
        self.attack.check_feasible(n, f)

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        rows = nested.call(self.attack, honest, f, context)
        if context.server % 2 == 0:
            return rows
        mean = (context.moments or CachedMoments(honest)).moments.mean
        return (2 * mean.double() - rows.double()).to(honest.dtype)

"""Equivocation: another story for every server."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope._linalg.moments import Described
from gyroscope.attacks import nested
from gyroscope.attacks.base import Attack, View


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

    def rows(self, honest: Tensor, f: int, view: View) -> Tensor:
        rows = nested.call(self.attack, honest, f, view)
        if view.server % 2 == 0:
            return rows
        mean = (view.honest or Described(honest)).moments.mean
        return (2 * mean.double() - rows.double()).to(honest.dtype)

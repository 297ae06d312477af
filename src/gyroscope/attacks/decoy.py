"""Decoy: one row so far out that it fixes the only direction a rule looks at, and covers for the others."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope.attacks.base import Attack, AttackContext, finite, to_unit_scale
from gyroscope.attacks.faults import SignFlip
from gyroscope.attacks.nested import Nested, call

_DEFAULT = SignFlip(scale=1000.0)


@dataclasses.dataclass(frozen=True)
class Decoy(Nested):
    """Let one worker send mean + D w, extremely far along a random direction w, and the others the inner attack's row
    plus a w, with a = D / (n - f + 1).

    A rule that looks at the direction in which rows spread most (`dnc`) then looks along w and nowhere else. There the
    mean of all n rows is at a: the f - 1 others deviate from it by next to nothing, and every honest row does. So the
    rule drops the decoy and honest rows, and keeps the others, whatever the inner attack sends. Two Byzantine
    workers are enough; a single one sends the decoy only.

    w has the same magnitude in every coordinate, so that it works on any part of them. distance: D, in multiples of the
    longest honest row. attack: `sign-flip:scale=1000` by default.
    """

    attack: Attack = _DEFAULT
    distance: float = registry.positive(1e6)

    name = "decoy"
    summary = "one row far out along a random direction hides the inner attack's rows from rules that look along one"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        unit, scale = to_unit_scale(honest)
        away = self.distance * float(torch.linalg.vector_norm(unit, dim=1).max()) / honest.shape[1] ** 0.5
        # At most half of what the dtype can hold, so that the others' part of it is exact also among huge rows.
        along = context.signs(unit[0]) * min(away * scale, torch.finfo(honest.dtype).max / 2)
        others = call(self.attack, honest, f, context)[: f - 1] + along / (len(honest) + 1)
        return finite(torch.cat([(unit.mean(dim=0) * scale + along).unsqueeze(0), others]), honest.dtype)

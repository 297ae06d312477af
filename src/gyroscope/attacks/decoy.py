"""Decoy: one row so far out that it fixes the only direction a rule looks at, and covers for the others."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope.attacks.base import Attack, AttackContext
from gyroscope.attacks.faults import SignFlip
from gyroscope.attacks.nested import Nested, call

_DEFAULT = SignFlip(scale=1000.0)


@dataclasses.dataclass(frozen=True)
class Decoy(Nested):
    """Let one worker send mean + D w, extremely far along a random direction w, and the others the inner attack's row
    plus a w, with a = D / (n - f + 1).

    A rule that looks at the direction in which rows spread most (`dnc`) then looks along w and nowhere else. There the
    mean of all n rows is exactly at a: the f - 1 others deviate from it by nothing, and every honest row deviates. So
    the rule drops the decoy and honest rows, and keeps the others, whatever the inner attack sends. Two Byzantine
    workers are enough; a single one sends the decoy only.

    w has the same magnitude in every coordinate, so that it works on any part of them. distance: D, in multiples of the
    largest distance of an honest row from their mean. attack: `sign-flip:scale=1000` by default.
    """

    attack: Attack = _DEFAULT
    distance: float = registry.positive(1e6)

    name = "decoy"
    summary = "one row far out along a random direction hides the inner attack's rows from rules that look along one"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        mean = honest.mean(dim=0)
        away = self.distance * torch.linalg.vector_norm(honest - mean, dim=1).max()
        signs = context.uniform(len(mean)).sub_(0.5).sign_().to(honest)
        along = signs * (away / len(mean) ** 0.5)
        others = call(self.attack, honest, f, context)[: f - 1] + along / (len(honest) + 1)
        return torch.cat([(mean + along).unsqueeze(0), others])

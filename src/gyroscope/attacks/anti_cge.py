"""Anti-CGE: against the honest rows, and just short enough to be among those that CGE keeps."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope.attacks.base import Attack, AttackContext, repeat, to_unit_scale

# Shorter than the honest row that must not be kept instead, also after rounding to float32.
_SHORTER = 1 - 1e-6


@dataclasses.dataclass(frozen=True)
class AntiCGE(Attack):
    """Point against the honest rows that CGE will keep, at the largest norm with which CGE keeps all Byzantine rows.

    CGE averages the n-f rows of smallest norm. If it is told f and f are Byzantine, it keeps all of these if they are
    shorter than the (h-f+1)-th shortest honest row, and beside them the h-f shortest: the attack is minus the mean of
    those (of all honest rows if none is left), at a norm 1e-6 below. If the rule is told f = 0 it keeps everything, and
    the attack takes the longest honest norm. It is zero if that mean vanishes. Cost: h norms.

    As in the released code of this library's paper, except for two details: there the shortest row counts twice, and
    the attack is NaN if more workers are Byzantine than the rule is told.
    """

    name = "anti-cge"
    summary = "against the shortest honest rows, just short enough for CGE to keep it"
    paper = "El Mhamdi, Guerraoui, Rouault 2020 (code)"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        unit, scale = to_unit_scale(honest)
        norms = torch.linalg.vector_norm(unit, dim=1)
        order = norms.argsort(stable=True)
        kept = max(0, len(honest) - context.declared_f)
        limit = float(norms[order[min(kept, len(honest) - 1)]])
        target = unit[order[:kept]].mean(dim=0) if kept else unit.mean(dim=0)
        length = float(torch.linalg.vector_norm(target))
        if length == 0:
            return repeat(torch.zeros_like(honest[0]), f)
        return repeat((target * (-limit * _SHORTER / length) * scale).to(honest.dtype), f)

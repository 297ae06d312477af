"""A stranger in every round: another attack each time."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope.attacks.anti_cge import AntiCGE
from gyroscope.attacks.base import Attack, AttackContext
from gyroscope.attacks.empire import Empire
from gyroscope.attacks.fang_krum import FangKrum
from gyroscope.attacks.fang_trimmed_mean import FangTrimmedMean
from gyroscope.attacks.faults import Gaussian, SignFlip, Zero
from gyroscope.attacks.hidden import Hidden
from gyroscope.attacks.little import Little
from gyroscope.attacks.min_max import MinMax
from gyroscope.attacks.min_sum import MinSum
from gyroscope.attacks.nested import Several, call


@dataclasses.dataclass(frozen=True)
class Stranger(Several):
    """Draw an attack uniformly from a list in each round, the same for all f workers.

    So a rule gains nothing from its state of earlier rounds. attacks: the list, written (little:factor=2/empire/nan);
    by default the attacks of the table that are finite, follow from the round's rows alone and need no search.
    """

    attacks: tuple[Attack, ...] = (
        Little(),
        Empire(),
        MinMax(),
        MinSum(),
        FangKrum(),
        FangTrimmedMean(),
        Hidden(),
        AntiCGE(),
        SignFlip(),
        Gaussian(),
        Zero(),
    )

    name = "stranger"
    summary = "another attack in every round, drawn from a list"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        drawn = torch.randint(len(self.attacks), (1,), generator=context.generator, device=context.generator.device)
        return call(self.attacks[int(drawn)], honest, f, context)

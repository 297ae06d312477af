"""Centered clipping: the mean of the rows, clipped around the last aggregate."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import matrix, order_statistics
from gyroscope.rules.base import Aggregate, ContextualRule, Property, RuleContext, RuleState


@dataclasses.dataclass(frozen=True)
class CenteredClipping(ContextualRule):
    """v <- v + the mean of the rows' differences from v, none longer than tau; v starts at the last aggregate.

    Needs n >= 2f + 1. Guarantee: an iteration moves v by at most tau, of which f arbitrary rows account for at most
    f/n. So if honest rows change little from round to round, as with momentum at the workers, an adversary gains
    little in each round and must keep pushing. This is a guarantee over many rounds: for a single round it only says
    that the result is finite.

    A row with a NaN or an infinity has no direction and moves nothing: it counts as a row at the centre. A row of 3e38
    pulls by tau, as any far row does. Cost: two passes over the rows per iteration. The state is one vector. No worker
    weights: the last aggregate has a share, too.

    Args:
        tau: the radius, or "median" (the default): the median distance of the rows from v (the lower of two), which
            with n >= 2f + 1 is at most that of the farthest honest row, and needs no tuning.
        iterations: how often v moves in a round. The paper uses one if v is the last aggregate.
        start: the centre of the first round. "median", the default, is the coordinate-wise median of the rows: the
            first result is then as good as later ones, and moves with the rows. The paper's zero vector
            (`start="zero"`) is as far from the rows as they are long: with a small tau it takes many rounds to approach
            them, and with a large one an adversary moves the first results by as much.
    """

    tau: float | Literal["median"] = registry.positive("median", or_one_of=("median",))
    iterations: int = registry.count(1)
    start: Literal["median", "zero"] = registry.choice("median", ("median", "zero"))

    name = "centered-clipping"
    aliases = ("cc", "cclip")
    summary = "the mean of the rows, clipped around the last aggregate"
    needs = "n >= 2f + 1"
    paper = "Karimireddy et al. 2021"
    uses = frozenset({"state"})
    unsupported: ClassVar = {"mean at f = 0": "the farther half of the rows is clipped for any f"}

    def __post_init__(self) -> None:
        super().__post_init__()
        unsupported: dict[Property, str] = dict(type(self).unsupported)
        if self.tau != "median":
            unsupported["scale"] = "tau is an absolute length"
        if self.start == "zero":
            unsupported["translation"] = "the first centre is the origin"
            unsupported["ties"] = "the first result may not reach them"
        vars(self).update(unsupported=unsupported)

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        centre = context.state.get("centre")
        if centre is None:
            centre = order_statistics.median(rows) if self.start == "median" else torch.zeros_like(rows[0])
        n = rows.shape[0]
        for _ in range(self.iterations):
            lengths = matrix.squared_lengths(rows, centre).sqrt_()
            radius = lengths.sort().values[(n - 1) // 2] if self.tau == "median" else float(self.tau)
            # v + sum of c_i (x_i - v) / n, where c_i is 1 within the radius, less beyond it, 0 for a non-finite row.
            clipped = torch.where(lengths > radius, radius / lengths, torch.ones_like(lengths))
            clipped = clipped.masked_fill(lengths.isinf(), 0.0)
            centre = matrix.weighted_sum(rows, clipped, float(n), centre, (n - clipped.sum()) / n)
        return Aggregate(centre, None), {"centre": centre.clone()}

"""Centered clipping: rows are clipped around the last aggregate, and averaged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import blockwise, order_statistics
from gyroscope._linalg.distances import squared_distances_to
from gyroscope.rules.base import Aggregate, ContextualRule, Property, RuleContext, RuleState


@dataclasses.dataclass(frozen=True)
class CenteredClipping(ContextualRule):
    """v <- v + the mean of the rows' differences from v, none longer than tau; v begins at the last aggregate.

    Needs n >= 2f + 1. Guarantee: an iteration moves v by at most tau, of which f rows, whatever they hold, have f/n.
    So where honest rows change little from round to round, as with momentum at the workers, an adversary gains little
    in each round and has to gain it over and over. That is a promise about many rounds: of a single one it says no more
    than that the result is finite.

    tau: the radius, or "median" (the default): the median distance of the rows from v (the lower one of two), which
        with n >= 2f + 1 is at most that of the farthest honest row, and needs no tuning.
    iterations: how often v moves in a round. The paper takes one where v is the last aggregate.
    start: the centre of the first round. "median", the default, is the coordinate-wise median of the rows: the first
        result is then as good as later ones, and moves with the rows. The paper's zero vector (`start="zero"`) is as
        far from the rows as they are long: with a small tau it takes many rounds to come near, and with a large one
        an adversary moves the first results by as much.

    A row that holds a NaN or an infinity lies in no direction, and moves nothing: it counts as one at the centre. A row
    of 3e38 pulls by tau, as any far row does. Cost: two passes over the rows per iteration. It remembers one vector. No
    worker weights: the last aggregate has a share, too.
    """

    tau: float | Literal["median"] = "median"
    iterations: int = 1
    start: Literal["median", "zero"] = "median"

    name = "centered-clipping"
    summary = "the mean of the rows, clipped around the last aggregate"
    needs = "n >= 2f + 1"
    paper = "Karimireddy et al. 2021"
    uses = frozenset({"state"})
    lacks: ClassVar[Mapping[Property, str]] = {"mean at f = 0": "the farther half of the rows is clipped whatever f is"}

    def __post_init__(self) -> None:
        number = isinstance(self.tau, (int, float)) and not isinstance(self.tau, bool)
        if self.tau != "median" and not (number and 0 < float(self.tau) < math.inf):
            raise ConfigError(f"CenteredClipping's tau must be a positive, finite number or 'median', got {self.tau!r}")
        if isinstance(self.iterations, bool) or not isinstance(self.iterations, int) or self.iterations < 1:
            raise ConfigError(
                f"CenteredClipping's iterations must be a whole number of at least 1, got {self.iterations!r}"
            )
        if self.start not in ("median", "zero"):
            raise ConfigError(f"CenteredClipping's start must be 'median' or 'zero', got {self.start!r}")
        lacks: dict[Property, str] = dict(type(self).lacks)
        if self.tau != "median":
            lacks["scale"] = "tau is an absolute length"
        if self.start == "zero":
            lacks["translation"] = "the first centre is the origin"
            lacks["ties"] = "the first result may not reach them"
        object.__setattr__(self, "lacks", lacks)

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        centre = context.state.get("centre")
        if centre is None:
            centre = order_statistics.median(rows) if self.start == "median" else torch.zeros_like(rows[0])
        for _ in range(self.iterations):
            centre = self._moved(rows, centre)
        return Aggregate(centre, None), {"centre": centre.clone()}

    def _moved(self, rows: Tensor, centre: Tensor) -> Tensor:
        n = rows.shape[0]
        distances = squared_distances_to(rows, centre).sqrt_()
        radius = distances.sort().values[(n - 1) // 2] if self.tau == "median" else float(self.tau)
        # v + sum of c_i (x_i - v) / n, where c_i is 1 within the radius, less beyond it, and 0 where there is no x_i.
        clipped = torch.where(distances > radius, radius / distances, torch.ones_like(distances))
        clipped = clipped.masked_fill(distances.isinf(), 0.0)
        count = torch.full((1,), float(n), dtype=torch.float64, device=rows.device)
        pull = blockwise.combined(rows, clipped.unsqueeze(0), count)[0]
        rest = (n - clipped.sum()) / n
        return (centre.to(torch.float64) * rest + pull.to(torch.float64)).to(rows.dtype)

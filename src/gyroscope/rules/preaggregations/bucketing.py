"""Bucketing: shuffle the rows into small buckets, and replace each bucket by its mean."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import matrix
from gyroscope.rules.base import RuleContext
from gyroscope.rules.composition import Preaggregation, Prepared


@dataclasses.dataclass(frozen=True)
class Bucketing(Preaggregation):
    """The means of buckets of s rows, drawn at random in each round. Leaves ceil(n/s) rows.

    If s does not divide n, the last bucket holds fewer rows.

    Guarantee (Karimireddy et al. 2022): the means vary s times less between honest workers, which helps if their data
    differ. In return f bad rows can spoil f buckets, so the rule must tolerate f of ceil(n/s) rows; for one that needs
    2f + 1 that is n/s > 2f.

    A bad row makes its bucket bad: a NaN or an infinity reaches the bucket's mean, and the rule then leaves it out
    together with the honest rows of that bucket. Cost: one pass over the rows. Linear: each worker gets an equal part
    of its bucket's weight.

    The paper recommends s = 2 if f is not known to be small; s = 1 only shuffles.
    """

    s: int = registry.number(2, "a whole number of rows of at least 1", lambda s: s >= 1, whole=True)

    name = "bucketing"
    aliases = ("resampling",)
    summary = "the means of random buckets of s rows; f of the ceil(n/s) may then be bad"
    needs = "ceil(n/s) rows for the rule"
    paper = "Karimireddy et al. 2022"
    uses = frozenset({"randomness"})
    keeps_range = True
    shuffles = True
    unsupported: ClassVar = {
        "permutation": "buckets are drawn by row number",
        "mean at f = 0": "the last bucket may hold fewer rows, which then count for more",
    }

    def min_workers(self, f: int, rows_needed: int = 1) -> int:
        return max(f + 1, self.s * (rows_needed - 1) + 1)

    def rows_left(self, n: int) -> int:
        return -(-n // self.s)

    def milder(self) -> list[Bucketing]:
        return [Bucketing(s) for s in range(self.s - 1, 1, -1)]

    def prepare(self, rows: Tensor, f: int, context: RuleContext) -> Prepared:
        n = rows.shape[0]
        order = torch.randperm(n, generator=context.generator("buckets")).to(rows.device)
        buckets = torch.split(order, self.s)
        means = rows.new_empty(len(buckets), rows.shape[1])
        shares = torch.zeros(len(buckets), n, dtype=torch.float64, device=rows.device)
        for place, bucket in enumerate(buckets):
            means[place] = matrix.mean_of(rows, bucket)
            shares[place].index_fill_(0, bucket, 1 / len(bucket))
        return Prepared(means, shares)

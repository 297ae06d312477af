"""Nearest-neighbour mixing: replace each row by the mean of its nearest rows."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gyroscope._linalg import matrix
from gyroscope._linalg.distances import mixed_distances, squared_distances
from gyroscope.rules.base import RuleContext
from gyroscope.rules.composition import Preaggregation, Prepared


@dataclasses.dataclass(frozen=True)
class NNM(Preaggregation):
    """Replace each row by the mean of its n-f nearest rows, itself included. Needs n >= 2f + 1.

    Guarantee (Allouah et al. 2023): the mixed honest rows are closer together, and with most rules behind it the error
    is of the best order possible, f/n times the honest variance; it matters most if workers' data differ. With n-f of n
    rows in every mean, a Byzantine row moves each honest one by at most f/(n-f) of its own distance.

    A row with a NaN or an infinity is infinitely far from all others: no other row's mean includes it, and it stays as
    it is, for the rule to leave out. (A row with fewer than n-f rows at a finite distance, which takes more than f bad
    ones, becomes the mean of those.) Ties go to the lowest row number. Rows with the same nearest rows become equal, so
    rules that choose rows have ties more often behind it, also between groups of equal rows.

    Cost: n(n-1)/2 distances and a product of an (n, n) matrix with the rows, O(n^2 d) both. Linear: the rule's weights
    are carried back to the workers.
    """

    name = "nnm"
    aliases = ("nearest-neighbour-mixing", "nearest-neighbor-mixing")
    summary = "each row becomes the mean of its n-f nearest rows, itself included"
    needs = "n >= 2f + 1"
    paper = "Allouah et al. 2023"
    reads = "distances"

    def min_workers(self, f: int, rows_needed: int = 1) -> int:
        return max(2 * f + 1, rows_needed)

    def prepare(self, rows: Tensor, f: int, context: RuleContext) -> Prepared:
        return self.mix(rows, f, squared_distances(rows))

    def mix(self, rows: Tensor, f: int, table: Tensor) -> Prepared:
        chosen, count, alone = self._neighbours(table, f)
        # A row without finite distances stays as it is; its line of the product is zero, and no other line includes it.
        mixed = matrix.combined(rows, chosen.masked_fill(alone, 0.0), count)
        torch.where(alone, rows, mixed, out=mixed)
        return Prepared(mixed, chosen / count.unsqueeze(1))

    def shares(self, table: Tensor, f: int) -> Tensor | None:
        chosen, count, alone = self._neighbours(table, f)
        return None if bool(alone.any()) else chosen / count.unsqueeze(1)

    def mixing(self, table: Tensor, f: int) -> tuple[Tensor, Tensor] | None:
        chosen, count, alone = self._neighbours(table, f)
        lost = alone | alone.T
        if not bool((table.isfinite() | lost).all()):  # finite rows, too far apart for a number
            return None
        shares = chosen / count.unsqueeze(1)
        mixed = mixed_distances(table, shares).masked_fill_(lost, torch.inf)
        return shares, mixed.fill_diagonal_(0.0)

    def _neighbours(self, table: Tensor, f: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return (n, n) which rows are each row's nearest, (n,) how many, and (n, 1) which rows have no others."""
        n = table.shape[0]
        # Each row is its own first neighbour, also if others are at distance zero.
        nearest = (table - torch.eye(n, dtype=table.dtype, device=table.device)).argsort(dim=1, stable=True)
        reached = table.isfinite().to(torch.float64)
        chosen = torch.zeros_like(reached).scatter_(1, nearest[:, : n - f], 1.0) * reached
        count = chosen.sum(dim=1)
        return chosen, count, (reached.sum(dim=1) == 1).unsqueeze(1)

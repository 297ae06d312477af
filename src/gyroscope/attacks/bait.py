"""How far along a direction Byzantine rows may lie so that Krum still takes them for the best of all."""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._linalg.distances import squared_distances
from gyroscope.attacks.base import AttackContext
from gyroscope.rules.krum import Krum, Scoring

_HALVINGS = 60
_DOUBLINGS = 6
_BISECTIONS = 24


class Bait:
    """f equal rows origin + length * direction among the honest ones, and Krum's ranking of all, for any length.

    Krum is the configured rule where that is Krum, with its score and the f that it is told; else the original one,
    which scores by squared distances. Distances between honest rows are computed once, and those to the Byzantine rows
    are quadratic in the length: a length is tried in O(n^2), whatever d is. Rows in float64.
    """

    def __init__(self, honest: Tensor, origin: Tensor, direction: Tensor, f: int, context: AttackContext) -> None:
        self.h, self.n = len(honest), len(honest) + f
        known = isinstance(context.rule, Krum)
        rule = context.rule if isinstance(context.rule, Krum) else Krum(squared=True)
        self.scoring = Scoring(rule.squared, rule.neighbours)
        self.f = context.declared_f if known else f
        away = honest - origin
        self.constant = away.square().sum(dim=1)
        self.linear = away @ direction
        self.square = torch.dot(direction, direction)
        self.table = torch.zeros(self.n, self.n, dtype=torch.float64, device=honest.device)
        self.table[: self.h, : self.h] = squared_distances(honest)

    def taken(self, length: float) -> bool:
        """Whether the row that Krum ranks first is Byzantine: then all copies of it rank before the honest rows."""
        squares = self.constant - 2 * length * self.linear + length * length * self.square
        squares.clamp_min_(0.0)
        self.table[: self.h, self.h :] = squares.unsqueeze(1)
        self.table[self.h :, : self.h] = squares
        return int(self.scoring.ranking(self.table, self.f)[0]) >= self.h

    def halve(self, length: float, threshold: float) -> float:
        """The first of length, length/2, length/4, ... that is taken; none below the threshold is tried."""
        while not self.taken(length) and length / 2 >= threshold:
            length /= 2
        return length

    def largest(self, length: float) -> float:
        """The largest length that is taken, to a relative 1e-7, found from any positive one; 0 if none is.

        It takes acceptance to end at one length, as it does but for ties. Where it does not end, because so many
        Byzantine rows are neighbours enough to each other, 64 times the given length.
        """
        for _ in range(_HALVINGS):
            if self.taken(length):
                break
            length /= 2
        else:
            return 0.0
        for _ in range(_DOUBLINGS):
            if not self.taken(2 * length):
                break
            length *= 2
        else:
            return length
        low, high = length, 2 * length
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.taken(middle) else (low, middle)
        return low

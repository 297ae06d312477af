"""How far along a direction Byzantine rows may be so that Krum still ranks them first: for `fang-krum` and `hidden`."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from gyroscope.attacks._line import Line
from gyroscope.attacks.base import AttackContext
from gyroscope.rules.krum import Krum

_SMALLEST = 2.0**-59
_DOUBLINGS = 6
_BISECTIONS = 24


class KrumAcceptance:
    """Krum's ranking of the honest rows and f equal rows origin + length * direction, for any length.

    Krum is the configured rule if that is Krum, with its score and the f that it is told; else the original one, which
    scores by squared distances. A length is tried in O(n^2), independent of d. Rows in float64.
    """

    def __init__(self, honest: Tensor, origin: Tensor, direction: Tensor, f: int, context: AttackContext) -> None:
        self.krum = context.rule if isinstance(context.rule, Krum) else Krum(squared=True)
        self.f = context.declared_f if self.krum is context.rule else f
        self.line = Line(honest, origin, direction, f)

    def accepts(self, length: float) -> bool:
        """Return whether Krum ranks a Byzantine row first: then all its copies rank before the honest rows."""
        return int(self.krum.ranking(self.line.tables(np.array([length]))[0], self.f)[0]) >= self.line.h

    def by_halving(self, length: float, threshold: float) -> float:
        """Return the first of length, length/2, length/4, ... that is accepted; none below the threshold is tried."""
        while not self.accepts(length) and length / 2 >= threshold:
            length /= 2
        return length

    def largest(self, length: float) -> float:
        """Return the largest accepted length, to a relative 1e-7, found from any positive one; 0 if there is none.

        The search assumes that acceptance ends at one length, which holds except for ties. If it does not end, because
        so many Byzantine rows are neighbours enough to each other, the result is 64 times the given length.
        """
        length = self.by_halving(length, length * _SMALLEST)
        if not self.accepts(length):
            return 0.0
        for _ in range(_DOUBLINGS):
            if not self.accepts(2 * length):
                break
            length *= 2
        else:
            return length
        low, high = length, 2 * length
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.accepts(middle) else (low, middle)
        return low

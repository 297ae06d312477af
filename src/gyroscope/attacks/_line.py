"""Equal rows somewhere on a line, and a rule that reads distances: each place costs nothing that depends on d."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg import distances, matrix
from gyroscope.rules import Rule
from gyroscope.rules._spectral import Array
from gyroscope.rules.base import SelectionRule
from gyroscope.rules.composition import Composed, Preaggregation
from gyroscope.rules.krum import Krum


class Weigh(NamedTuple):
    """How a rule weighs rows."""

    weights: Callable[[Tensor, int], Array]
    """From b tables of squared distances between n rows, (b, n, n), and f to each row's weight in the results, (b, n).
    """
    at_once: bool
    """Whether b tables take less time than b times one."""


_AT_ONCE = 2**18
"""So many distances are in the cache at a time."""
_LARGEST = 2.0**20
"""No search goes to a length beyond this one."""


class Line:
    """The honest rows and f equal ones at origin + length * direction, by their squared distances, for any length.

    Distances between honest rows do not depend on the length and are computed once; those to the f rows are quadratic
    in it, and one pass over the rows gives the coefficients. All rows and vectors have one dtype. What does not depend
    on d is on the host.
    """

    def __init__(self, honest: Tensor, origin: Tensor, direction: Tensor, f: int) -> None:
        self.honest, self.origin, self.direction = honest, origin, direction
        self.h, self.n = len(honest), len(honest) + f
        squares, products = matrix.squared_lengths_and_products(honest, direction, origin)
        self.constant, self.linear = squares.cpu().numpy(), products.cpu().numpy()
        self.square = float(matrix.squared_lengths(direction.unsqueeze(0)))
        self._tables = np.zeros((0, self.n, self.n))

    @functools.cached_property
    def between(self) -> Array:
        """(h, h): the squared distances between the honest rows."""
        return distances.squared_distances(self.honest).cpu().numpy()

    def tables(self, lengths: Array) -> Tensor:
        """Return (b, n, n): the squared distances between all rows, for each length; valid until the next call."""
        h, b = self.h, len(lengths)
        if b > len(self._tables):
            self._tables = np.zeros((b, self.n, self.n))
            self._tables[:, :h, :h] = self.between
        lengths = lengths[:, None]
        squares = self.constant + lengths * (lengths * self.square - 2 * self.linear)
        np.maximum(squares, 0.0, out=squares)
        self._tables[:b, :h, h:] = squares[:, :, None]
        self._tables[:b, h:, :h] = squares[:, None, :]
        return torch.from_numpy(self._tables[:b])

    def weights(self, weigh: Weigh, f: int, lengths: Sequence[float]) -> Array:
        """Return (b, n): how a rule that tolerates f Byzantine workers weighs the rows, for each length."""
        size = max(1, _AT_ONCE // self.n**2)
        parts = [np.array(lengths[start : start + size]) for start in range(0, len(lengths), size)]
        return np.concatenate([weigh.weights(self.tables(part), f) for part in parts])

    def coordinates(self, point: Tensor) -> Tensor | None:
        """Return the vectors in few coordinates that keep inner products; None if the table may not be finite.

        Args:
            point: a vector. If it is the origin itself, it costs no pass over the rows.

        Returns:
            (h + 2, h + 2): the honest rows less the origin, the direction itself, and the point less the origin.
        """
        h, products = self.h, np.zeros((self.h + 2, self.h + 2))
        if not (np.isfinite(self.constant).all() and np.isfinite(self.between).all()):
            return None
        products[:h, :h] = (self.constant[:, None] + self.constant - self.between) / 2
        products[h, :h], products[h, h] = self.linear, self.square
        if point is not self.origin:
            away = point - self.origin
            _, along = matrix.squared_lengths_and_products(self.honest, away, self.origin)
            square, across = matrix.squared_lengths_and_products(away.unsqueeze(0), self.direction)
            products[h + 1] = [*along.tolist(), float(across), float(square)]
        if not np.isfinite(products * _LARGEST**2).all():
            return None
        # Not by numpy, whose threads are others than torch's and would compete with them.
        values, axes = torch.linalg.eigh(torch.from_numpy(products))  # reads the lower triangle
        coordinates: Tensor = axes * values.clamp_min_(0.0).sqrt_()
        return coordinates


def weights_by_distances(rule: Rule | None) -> Weigh | None:
    """Return how the rule weighs rows, if it returns a sum of rows with weights that only distances decide.

    These are the rules that take the mean of chosen rows, by themselves or behind one stage that mixes rows.
    """
    if isinstance(rule, Composed):
        inner, stage = weights_by_distances(rule.rule), rule.stages[0]
        if inner is None or len(rule.stages) > 1 or type(stage).mixing is Preaggregation.mixing or stage.uses:
            return None

        def weigh_mixed(tables: Tensor, f: int) -> Array:
            weights = []
            for table in tables:
                known = stage.mixing(table, f)
                assert known is not None  # all distances are finite
                weights.append(inner.weights(known[1].unsqueeze(0), f)[0] @ known[0].numpy())
            return np.stack(weights)

        return Weigh(weigh_mixed, at_once=False)
    if not isinstance(rule, SelectionRule) or rule.reads != "distances" or rule.uses:
        return None
    if type(rule).combine is not SelectionRule.combine:
        return None
    at_once = type(rule) is Krum

    def weigh(tables: Tensor, f: int) -> Array:
        chosen = rule.choose(tables, f) if at_once else torch.stack([rule.choose(table, f) for table in tables])
        weights = np.zeros(tables.shape[:2])
        weights[np.arange(len(weights))[:, None], chosen.numpy()] = 1 / chosen.shape[1]
        return weights

    return Weigh(weigh, at_once)

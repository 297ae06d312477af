"""SMEA, the smallest maximum eigenvalue averaging: the mean of the n-f rows that spread least in any direction."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg.spectrum import centred, scatters
from gyroscope.rules._spectral import Array, comparable, spread, table_of
from gyroscope.rules.base import SelectionRule
from gyroscope.rules.median import Median

_TIE = 1e-10
"""Eigenvalues with a smaller relative difference are equal: they have rounding errors."""
_BATCH = 4096
"""Partial subsets per batch."""
_STEPS = 12
"""The most steps of the power method for a complete subset before its eigenvalue is computed."""


@dataclasses.dataclass(frozen=True)
class SMEA(SelectionRule):
    """The mean of the n-f rows whose covariance has the smallest largest eigenvalue. Needs n >= 2f + 1.

    An exact search finds these rows, if it ends within its budget. The search begins with the best of n+1 subsets: each
    row with its n-f-1 nearest ones, and the rows that are left if the one that deviates most along the direction of
    largest variance is removed, f times. After `limit` steps the rule takes the best subset found so far, so no rows
    can stop it. A step is a subset, partial ones included; an eigenvalue counts as 1 + (n-f)^3/1000 steps.

    Quality: if the search completes, the eigenvalue is the smallest. It completes for certain if the whole search tree
    is within the limit (n = 15 and f = 6, n = 25 and f = 5), and mostly if few directions dominate or Byzantine rows
    agree. If it does not, the eigenvalue is at most 2 min(d, n-f-1) times the smallest. For the best subset's total
    variance T is at most min(d, n-f-1) times its eigenvalue, and from one of its rows the squared distances to all have
    a mean of at most 2T. The row's nearest n-f rows have no larger mean, and their eigenvalue is at most that mean. For
    twelve draws of random rows with n = 30 and f = 10, the eigenvalue was the smallest in all but one, 0.3 % above.

    Guarantee: let R be the radius of the honest rows, their largest distance from their mean. If the search completes,
    the chosen rows spread at most as much, in any direction, as any n-f honest ones do, so their variance in a
    direction is at most R^2. If not, it is at most 4 R^2: the n-f rows nearest to an honest row are within 2 R of it,
    because all honest rows are. Removing a fraction e of the rows of a set moves its mean by at most sqrt(e/(1-e))
    standard deviations. At least n-2f of the chosen rows are honest, and either set, the chosen and the honest, has at
    most f rows besides these: the result is at most 2 sqrt(f/(n-2f)) R from the honest mean if the search completes for
    certain, and 3 sqrt(f/(n-2f)) R otherwise. A row with a NaN or an infinity is infinitely far from all others and
    never chosen.

    Cost: n(n-1)/2 distances, O(n^2 d), and the search, independent of d: milliseconds for n = 15 and f = 6, a second
    for n = 30 and f = 10, one or two at the limit. `caf` has a similar guarantee without a search.

    Weights: 1/(n-f) for the chosen rows. Of subsets with equal eigenvalues (to 1e-10) the rule takes, of those that it
    has found, the one with the lowest row numbers, compared from the first.

    Other implementations: ByzFL takes one step of the power method from a random vector in place of the eigenvalue, so
    its choice is random; here it is the subset of the definition.
    """

    limit: int = registry.count(1_000_000)

    name = "smea"
    aliases = ("smallest-maximum-eigenvalue-averaging",)
    summary = "the mean of the n-f rows whose covariance has the smallest largest eigenvalue; by a search with a limit"
    needs = "n >= 2f + 1"
    paper = "Allouah et al. 2023"
    fallback = Median
    guarantee = "distance"
    unsupported: ClassVar = {"asynchronous": "the host searches"}

    def bound_factor(self, n: int, f: int) -> float:
        # The search decides on one row after the other and refuses at most f of them.
        tree = sum(math.comb(n + 1, refused + 1) for refused in range(f + 1)) + _steps(n - f) * math.comb(n, f)
        return (2 if tree <= self.limit else 3) * math.sqrt(f / (n - 2 * f))

    def choose(self, table: Tensor, f: int) -> Tensor:
        return torch.from_numpy(smallest_scatter(table_of(table), len(table) - f, self.limit)).to(table.device)


def smallest_scatter(table: Array, size: int, limit: int) -> Array:
    """Return the numbers, in order, of the `size` rows whose scatter has the smallest top eigenvalue.

    Of equal subsets the one with the lowest row numbers is returned, and the lowest rows if every subset has an
    infinite distance.

    The scatter of some rows is the sum of the squares (outer products) of their deviations from their mean. A further
    row only adds to it, so its top eigenvalue never falls as rows join: that of the rows chosen so far is a lower bound
    for every subset that contains them. The search cuts off branches whose bound is above the best subset known.

    The bound need not be the eigenvalue itself: any vector's Rayleigh quotient is below it. The search carries a vector
    from each partial subset to the next and improves it by one step of the power method as a row joins, for thousands
    of partial subsets in one matrix product. It computes the eigenvalues only of the few complete subsets that survive.

    Args:
        table: The squared distances between all rows, infinite for a row that must not be chosen.
        size: How many rows to choose.
        limit: How many steps the search may take before it returns the best subset found.
    """
    first = _good(table, size)
    if first is None:
        return np.arange(size)
    if size == len(table):
        return first
    return _Search(table, first).run(limit)


def _good(table: Array, size: int) -> Array | None:
    """Return the best of some subsets, to begin with; None if all have an infinite distance.

    They are each row with its nearest ones, and what is left of all rows after removing outliers one by one.
    """
    candidates = np.sort(np.argsort(table, axis=1, kind="stable")[:, :size], axis=1)
    left = comparable(table)
    while len(left) > size:
        deviations = spread(table, np.full(len(left), 1 / len(left)), left).outlyingness
        left = np.delete(left, int(np.argmax(deviations)))
    if len(left) == size:
        candidates = np.vstack([candidates, left])
    lost = np.isinf(table)
    if lost.any():
        blocks = lost[candidates[:, :, None], candidates[:, None, :]]
        candidates = candidates[~blocks.any(axis=(1, 2))]
        if len(candidates) == 0:
            return None
    best: Array = candidates[int(np.argmin(scatters(table, candidates)))]
    return best


def _steps(size: int) -> int:
    """Return as how many steps an eigenvalue counts, by the time that it takes."""
    return 1 + size**3 // 1000


@dataclasses.dataclass
class _Nodes:
    """Partial subsets, one per row of each array. Those of one batch have decided on the same rows."""

    chosen: Array
    """(m, n) of bool."""
    refused: Array
    """(m, n) of bool: never to be chosen below this node."""
    images: Array
    """(m, n): the products of the carried vector with all rows of the table."""
    bounds: Array
    """(m,): a lower bound for every subset below the node."""

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, which: Array | slice) -> _Nodes:
        return _Nodes(*(array[which] for array in vars(self).values()))

    @staticmethod
    def together(first: _Nodes, second: _Nodes) -> _Nodes:
        pairs = zip(vars(first).values(), vars(second).values(), strict=True)
        return _Nodes(*(np.concatenate(pair) for pair in pairs))


class _Search:
    """Branch and bound. The search chooses or refuses one row after the other, those far out first."""

    def __init__(self, table: Array, first: Array) -> None:
        n = len(table)
        _, exponent = np.frexp(table[np.ix_(first, first)].max())
        table = np.ldexp(table, -exponent)  # by a power of two: the same numbers at every scale
        self.size, self.spare = len(first), n - len(first)
        equal = np.full(self.size, 1 / self.size)
        values = np.linalg.eigvalsh(centred(table[np.ix_(first, first)], equal))
        self.best = float(values[-1].clip(min=0))
        # The power method converges faster if the other eigenvalues are smaller beside the largest, so their common
        # part is subtracted. (The smallest of all is 0, because the sum of the deviations is.)
        self.shift = float(values[1].clip(min=0)) if self.size > 1 else 0.0
        self.found: list[tuple[float, tuple[int, ...]]] = [(self.best, tuple(first.tolist()))]
        # Two rows alone have the scatter D/2. So rows that are farther apart than the limit are never both chosen, and
        # the distance between them, which may be infinite, is not needed.
        self.apart = table / 2 > self.limit
        self.table = np.where(self.apart, 0.0, table)
        # Of equal rows the search chooses the lowest numbers: a refused row takes the later copies with it.
        self.copies = np.triu(table == 0, k=1)
        original = (table == 0).argmax(axis=1)
        far = np.where(self.apart, 2 * self.limit, table).sum(axis=1)[original]
        self.order = np.argsort(-far, kind="stable")
        self.steps = 0

    @property
    def limit(self) -> float:
        """The largest eigenvalue that a subset may have to be as good as the best."""
        return self.best * (1 + _TIE)

    def run(self, limit: int) -> Array:
        n = len(self.table)
        root = _Nodes(np.zeros((1, n), bool), np.zeros((1, n), bool), np.zeros((1, n)), np.zeros(1))
        stack, complete = [(0, root)], root[:0]
        while stack and self.steps < limit:
            depth, nodes = stack.pop()
            nodes = nodes[nodes.bounds <= self.limit]
            if len(nodes) > _BATCH:
                stack += [(depth, nodes[_BATCH:]), (depth, nodes[:_BATCH])]
                continue
            self.steps += len(nodes)
            full = nodes.refused.sum(axis=1) == self.spare
            complete = _Nodes.together(complete, nodes[full])
            nodes = nodes[~full]
            if len(complete) > _BATCH // 8:
                self._finish(complete)
                complete = complete[:0]
            if len(nodes) > 0:
                stack.append((depth + 1, self._branch(nodes, int(self.order[depth]))))
        self._finish(complete)
        equal = [subset for value, subset in self.found if value <= self.limit]
        return np.array(min(equal))

    def _branch(self, nodes: _Nodes, row: int) -> _Nodes:
        """Return the nodes below, in which the row is chosen or refused."""
        free = ~nodes.refused[:, row]
        having = nodes[free]
        refused = nodes.refused.copy()
        refused[free] |= self.copies[row]
        refused[:, row] = True
        without = dataclasses.replace(nodes, refused=refused)
        having = dataclasses.replace(having, chosen=having.chosen.copy(), refused=having.refused | self.apart[row])
        having.chosen[:, row] = True
        complete = having.chosen.sum(axis=1) == self.size
        having.refused[complete] = ~having.chosen[complete]
        # A node that refuses more rows than can be spared leads to no subset.
        having = having[having.refused.sum(axis=1) <= self.spare]
        without = without[without.refused.sum(axis=1) <= self.spare]
        return _Nodes.together(without, self._improve(having, row))

    def _improve(self, nodes: _Nodes, row: int | None = None) -> _Nodes:
        """Make one step of the power method among the chosen rows; `row` is the one that has just joined."""
        mask = nodes.chosen
        count = mask.sum(axis=1, keepdims=True)
        vectors = np.where(mask, nodes.images, 0.0)
        if row is not None:  # a vector that has vanished starts again from the row that has joined
            vectors[~vectors.any(axis=1), row] = 1.0
        vectors -= mask * (vectors.sum(axis=1, keepdims=True) / count)
        squares = np.einsum("ij,ij->i", vectors, vectors)
        vectors /= np.sqrt(squares, out=np.ones_like(squares), where=squares > 0)[:, None]
        images = vectors @ self.table
        images *= -0.5
        quotients = np.einsum("ij,ij->i", vectors, images)
        images -= self.shift * vectors
        return dataclasses.replace(nodes, images=images, bounds=np.maximum(nodes.bounds, quotients))

    def _finish(self, nodes: _Nodes) -> None:
        """Compute the eigenvalues of complete subsets: those in which every row that is not refused is chosen."""
        chosen = ~nodes.refused
        clashes = chosen.astype(np.float64) @ self.apart.astype(np.float64) * chosen
        nodes = dataclasses.replace(nodes, chosen=chosen)[~np.asarray(clashes.any(axis=1))]
        for _ in range(_STEPS):
            if len(nodes) <= 8:
                break
            nodes = self._improve(nodes)
            nodes = nodes[nodes.bounds <= self.limit]
        nodes = nodes[np.argsort(nodes.bounds, kind="stable")]
        while len(nodes) > 0:  # lowest bounds first: they lower the limit for the others
            some, nodes = nodes[:16], nodes[16:]
            self.steps += _steps(self.size) * len(some)
            subsets = some.chosen.nonzero()[1].reshape(len(some), self.size)
            for value, subset in zip(scatters(self.table, subsets).tolist(), subsets.tolist(), strict=True):
                if value <= self.limit:
                    self.best = min(self.best, value)
                    self.found.append((value, tuple(subset)))
            nodes = nodes[nodes.bounds <= self.limit]

"""Sums over rows and vectors that measures and attacks need, in as few passes over memory as there can be.

On a CPU the kernels do it in one pass each; elsewhere plain torch operations do, and they are the reference.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gyroscope._linalg import _kernels

Vector = _kernels.Vector
"""A vector, or the difference of two."""


class Moments(NamedTuple):
    """Of (n, d) rows."""

    mean: Tensor
    """(d,): the mean of each column."""
    std: Tensor | None
    """(d,): the standard deviation of each column (ddof = 1), if asked for. NaN for a single row."""
    squares: float
    """The sum of all squared deviations from the columns' means."""


class Products(NamedTuple):
    """Of k vectors."""

    dots: list[list[float]]
    """Inner products, accumulated in float64; squared norms on the diagonal, NaN for pairs not asked for."""
    largest: list[float]
    """The largest absolute coordinate of each."""


class CachedMoments:
    """Rows that several want to know the moments of: computed when first asked for, and then kept.

    The columns' deviations, which few ask for, are computed only if they are; asked for first, they cost no pass of
    their own.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @functools.cached_property
    def moments(self) -> Moments:
        return moments(self.rows)

    @functools.cached_property
    def std(self) -> Tensor:
        """(d,): the standard deviation of each column (ddof = 1)."""
        self.moments = moments(self.rows, std=True)
        assert self.moments.std is not None
        return self.moments.std


def moments(rows: Tensor, std: bool = False) -> Moments:
    """Mean, total squared deviation and, if asked for, the columns' standard deviations."""
    if _kernels.usable(rows):
        found = _kernels.column_moments(rows, std)
        return Moments(found.mean, found.std, found.squares)
    return plain_moments(rows, std)


def products(vectors: Sequence[Vector], pairs: Iterable[tuple[int, int]] | None = None) -> Products:
    """Inner products of all pairs of vectors, or of the given ones, with norms and largest coordinates.

    A pair of vectors stands for their difference, which is taken in float64.
    """
    parts = [part for vector in vectors for part in (vector if isinstance(vector, tuple) else (vector,))]
    if all(_kernels.usable(part) and part.dtype == parts[0].dtype for part in parts):
        found = _kernels.gram(vectors, pairs)
        return Products(found.dots.tolist(), found.largest.tolist())
    return plain_products(vectors, pairs)


def plain_moments(rows: Tensor, std: bool = False) -> Moments:
    """The reference, and the path of other devices."""
    mean = rows.mean(dim=0)
    # In float64, because squares of float32 values overflow above 1e19 and vanish below 1e-19.
    squares = (rows.to(torch.float64) - mean).square_().sum(dim=0)
    deviation = squares.div(len(rows) - 1).sqrt_().to(rows.dtype) if std else None
    return Moments(mean, deviation, float(squares.sum()))


def plain_products(vectors: Sequence[Vector], pairs: Iterable[tuple[int, int]] | None = None) -> Products:
    """The reference, and the path of other devices."""
    k = len(vectors)
    doubles = [
        vector[0].to(torch.float64) - vector[1] if isinstance(vector, tuple) else vector.to(torch.float64)
        for vector in vectors
    ]
    dots = [[float("nan")] * k for _ in range(k)]
    wanted = itertools.combinations(range(k), 2) if pairs is None else pairs
    for i, j in [*((i, i) for i in range(k)), *wanted]:
        dots[i][j] = dots[j][i] = float(torch.dot(doubles[i], doubles[j]))
    return Products(dots, [float(vector.abs().max()) for vector in doubles])

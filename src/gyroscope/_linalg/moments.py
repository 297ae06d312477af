"""Column means, deviations and inner products: the sums that metrics and attacks need, in as few passes as possible."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gyroscope._linalg._kernels import accelerated_by, sums, usable
from gyroscope._linalg._kernels.sums import ColumnMoments, Products, Vector

__all__ = ["CachedMoments", "ColumnMoments", "Products", "Vector", "moments", "products"]


class CachedMoments:
    """A matrix whose moments are computed when first read, and then kept.

    The standard deviations, which few callers read, are computed on demand; if they are read first, they cost no pass
    of their own.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @functools.cached_property
    def moments(self) -> ColumnMoments:
        return moments(self.rows)

    @functools.cached_property
    def std(self) -> Tensor:
        """(d,): the standard deviation of each column (ddof = 1)."""
        self.moments = moments(self.rows, std=True)
        assert self.moments.std is not None
        return self.moments.std


@accelerated_by(sums.moments)
def moments(rows: Tensor, std: bool = False) -> ColumnMoments:
    """Return the column means, the total squared deviation and, on request, the columns' standard deviations."""
    # In float64, because sums of large float32 values overflow, and squares do above 1e19 and vanish below 1e-19.
    doubles = rows.to(torch.float64)
    mean = doubles.mean(dim=0).to(rows.dtype)
    squares = (doubles - mean).square_().sum(dim=0)
    deviation = squares.div(len(rows) - 1).sqrt_().to(rows.dtype) if std else None
    return ColumnMoments(mean, deviation, float(squares.sum()))


def _of_one_type(vectors: Sequence[Vector], pairs: object = None) -> bool:
    return usable(*(part for each in vectors for part in (each if isinstance(each, tuple) else (each,))))


@accelerated_by(sums.products, _of_one_type)
def products(vectors: Sequence[Vector], pairs: Iterable[tuple[int, int]] | None = None) -> Products:
    """Return the inner products of the given pairs of vectors (of all pairs by default), norms and largest coordinates.

    A tuple of two vectors means their difference, which is taken in float64.
    """
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

"""Means, deviations and inner products: float64 sums in one pass. Plain paths: gyroscope._linalg.moments, .matrix."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg._kernels import compiled, threads
from gyroscope._linalg._kernels.compiled import addresses, flat

Vector = Tensor | tuple[Tensor, Tensor]
"""A vector, or the difference of two."""


class ColumnMoments(NamedTuple):
    """Moments of the columns of an (n, d) matrix."""

    mean: Tensor
    """(d,)"""
    std: Tensor | None
    """(d,), on request: the standard deviations (ddof = 1, so NaN for a single row)."""
    squares: float
    """The sum of all squared deviations from the means. Divided by n - 1, the total variance."""


class Products(NamedTuple):
    """Inner products of k vectors, accumulated in float64."""

    dots: list[list[float]]
    """(k, k): squared norms on the diagonal, NaN for pairs that were not requested."""
    largest: list[float]
    """(k,): the largest absolute coordinate of each vector, NaN if it has a NaN."""


def moments(rows: Tensor, std: bool = False) -> ColumnMoments:
    """Return the column means, the total squared deviation and, on request, the columns' standard deviations."""
    n, d = rows.shape
    bounds = threads.pieces(n, d, compiled.lanes.WIDE)
    means, deviations = (torch.empty(size, dtype=rows.dtype) for size in (d, d if std else 0))
    squares = np.zeros(len(bounds) - 1)
    arrays = means.numpy(), deviations.numpy(), squares
    threads.spread(compiled.sum_loops.moments, len(squares), flat(rows), n, rows.stride(0), bounds, *arrays)
    return ColumnMoments(means, deviations if std else None, float(squares.sum()))


def mean_of(rows: Tensor, chosen: Tensor | Sequence[int]) -> Tensor:
    """Return the mean of the rows with the chosen indices. The other rows are never read."""
    indices = np.array(chosen.tolist() if isinstance(chosen, Tensor) else chosen, dtype=np.int64)
    if indices.size == 0 or indices.min() < 0 or indices.max() >= len(rows):
        raise ValueError(f"the chosen must be some of the rows 0 to {len(rows) - 1}, got {indices.tolist()}")
    return _weighted(rows, indices, np.ones(indices.size), indices.size)


def weighted_sum(
    rows: Tensor, factors: Tensor, divisor: Tensor | float = 1.0, origin: Tensor | None = None,
    share: Tensor | float = 1.0,
) -> Tensor:  # fmt: skip
    """Return the sum of the rows times their factors, divided; plus the origin times its share."""
    known = factors.numpy().astype(np.float64, copy=False)
    chosen = np.flatnonzero(known)  # NaN is not zero
    if chosen.size == 0:
        return torch.zeros_like(rows[0]) if origin is None else (origin.double() * share).to(rows.dtype)
    return _weighted(rows, chosen, known[chosen], float(divisor), origin, float(share))


def _weighted(
    rows: Tensor, chosen: Any, factors: Any, divisor: float, origin: Tensor | None = None, share: float = 0.0
) -> Tensor:
    n, d = rows.shape
    bounds = threads.pieces(chosen.size, d, compiled.lanes.WIDE)
    out, values = torch.empty(d, dtype=rows.dtype), flat(rows)
    also = values[:0] if origin is None else flat(origin)
    arguments = values, chosen, factors, float(divisor), also, share, n, rows.stride(0), out.numpy()
    threads.spread_pieces(compiled.sum_loops.weighted_sum, bounds, *arguments)
    return out


def squared_lengths(rows: Tensor, origin: Tensor | None = None) -> Tensor:
    """Return the (n,) squared distances of the rows from zero or another origin; inf for a row that is not finite."""
    return _row_sums(rows, origin, None)[0]


def squared_lengths_and_products(rows: Tensor, vector: Tensor, origin: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return `squared_lengths`, and the (n,) products of the rows (less the origin) with a vector, in one pass."""
    return _row_sums(rows, origin, vector)


def _row_sums(rows: Tensor, origin: Tensor | None, vector: Tensor | None) -> tuple[Tensor, Tensor]:
    n, d = rows.shape
    bounds = threads.pieces(n, d, compiled.lanes.WIDE)
    values = flat(rows)
    others = [values[:0] if other is None else flat(other) for other in (origin, vector)]
    squares, dots = np.empty((len(bounds) - 1, n)), np.empty((len(bounds) - 1, n))
    threads.spread(compiled.sum_loops.row_sums, len(squares), values, n, rows.stride(0), *others, bounds, squares, dots)
    lengths, products = (torch.from_numpy(parts.sum(axis=0)) for parts in (squares, dots))
    return lengths.nan_to_num_(nan=torch.inf, posinf=torch.inf), products


def products(vectors: Sequence[Vector], pairs: Iterable[tuple[int, int]] | None = None) -> Products:
    """Return the inner products of vectors of one length and dtype, and their norms and largest coordinates.

    The difference of a tuple of two vectors is never stored as a whole.
    """
    differences = [vector if isinstance(vector, tuple) else (vector, None) for vector in vectors]
    first = differences[0][0]
    k, d = len(vectors), first.shape[0]
    terms = [part for each in differences for part in each if part is not None]
    if any(part.shape != (d,) or part.dtype != first.dtype for part in terms):
        raise ValueError("the vectors must have one length and one type")
    which = np.array([*(itertools.combinations(range(k), 2) if pairs is None else pairs)], dtype=np.int64)
    which = which.reshape(-1, 2)
    bounds = threads.pieces(k, d, compiled.sum_loops.WIDTH)
    norms, most, dots = (np.zeros((len(bounds) - 1, size)) for size in (k, k, len(which)))
    arguments = *map(addresses, zip(*differences, strict=True)), flat(first), bounds, which, norms, dots, most
    threads.spread(compiled.sum_loops.products, len(dots), *arguments)
    table = np.full((k, k), np.nan)
    table[which[:, 0], which[:, 1]] = table[which[:, 1], which[:, 0]] = dots.sum(axis=0)
    np.fill_diagonal(table, norms.sum(axis=0))
    largest = np.where(np.isnan(table.diagonal()), np.nan, most.max(axis=0))
    return Products(table.tolist(), largest.tolist())

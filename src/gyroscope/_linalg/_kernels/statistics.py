"""What the measures and the attacks need of the rows' mean: moments, norms, inner products, in one pass each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg._kernels import memory, threads

Vector = Tensor | tuple[Tensor, Tensor]
"""A vector, or the difference of two."""


class Moments(NamedTuple):
    mean: Tensor
    """The mean of each column."""
    std: Tensor | None
    """The standard deviation of each column (ddof = 1, so NaN for a single row), if asked for."""
    squares: float
    """The sum of all squared deviations from the columns' means. Divided by n - 1, the total variance."""
    norm: float
    """The Euclidean norm of the mean."""
    largest: float
    """The largest magnitude in the mean; NaN if there is a NaN."""


class Products(NamedTuple):
    dots: Tensor
    """(k, k) in float64: the inner products; squared norms on the diagonal."""
    largest: Tensor
    """(k,) in float64: the largest magnitude in each vector; NaN if there is a NaN."""


def column_moments(rows: Tensor, std: bool = False) -> Moments:
    """Means and deviations of (n, d) rows."""
    from gyroscope._linalg._kernels.compiled import lanes, moments

    n, d = rows.shape
    bounds = threads.pieces(n, d, lanes.WIDE)
    means = torch.empty(d, dtype=rows.dtype)
    deviations = torch.empty(d if std else 0, dtype=rows.dtype)
    numbers = np.zeros((len(bounds) - 1, 3))
    matrix, stride, target, other = memory.flat(rows), rows.stride(0), means.numpy(), deviations.numpy()

    def work(begin: int, end: int) -> None:
        moments.moments(matrix, n, stride, bounds, begin, end, target, other, numbers)

    threads.spread(work, len(numbers))
    squares, norm2 = float(numbers[:, 0].sum()), float(numbers[:, 1].sum())
    largest = float("nan") if np.isnan(norm2) else float(numbers[:, 2].max())
    return Moments(means, deviations if std else None, squares, float(np.sqrt(norm2)), largest)


def mean_of(rows: Tensor, chosen: Tensor | Sequence[int]) -> Tensor:
    """The mean of the rows with the chosen numbers. The others are not looked at, so they may hold anything."""
    from gyroscope._linalg._kernels.compiled import lanes, moments

    n, d = rows.shape
    numbers = np.array(chosen.tolist() if isinstance(chosen, Tensor) else chosen, dtype=np.int64)
    if numbers.size == 0 or numbers.min() < 0 or numbers.max() >= n:
        raise ValueError(f"the chosen must be some of the rows 0 to {n - 1}, got {numbers.tolist()}")
    bounds = threads.pieces(numbers.size, d, lanes.WIDE)
    out = torch.empty(d, dtype=rows.dtype)
    matrix, stride, target = memory.flat(rows), rows.stride(0), out.numpy()

    def work(begin: int, end: int) -> None:
        moments.mean_of(matrix, numbers, n, stride, bounds[begin], bounds[end], target)

    threads.spread(work, len(bounds) - 1)
    return out


def shift_and_clip(rows: Tensor, shift: Tensor | None, limit: float) -> None:
    """Add a vector to every row, then shorten every row longer than the limit to it. In place."""
    from gyroscope._linalg._kernels.compiled import moments

    n, d = rows.shape
    matrix, stride = memory.flat(rows), rows.stride(0)
    vector = matrix[:0] if shift is None else memory.flat(shift)
    bounds = threads.pieces(d, n, 1)  # whole rows

    def work(begin: int, end: int) -> None:
        moments.shift_and_clip(matrix, stride, d, bounds[begin], bounds[end], vector, limit)

    threads.spread(work, len(bounds) - 1)


def gram(vectors: Sequence[Vector], pairs: Iterable[tuple[int, int]] | None = None) -> Products:
    """Inner products of k vectors of one length and type, and their norms and largest magnitudes.

    Of all pairs, or of the given ones: then the others are NaN (but the squared norms are always there). A pair of
    vectors stands for their difference, which is taken in float64 and never stored as a whole.
    """
    from gyroscope._linalg._kernels.compiled import moments

    differences = [vector if isinstance(vector, tuple) else (vector, None) for vector in vectors]
    first = differences[0][0]
    k, d = len(vectors), first.shape[0]
    terms = [part for each in differences for part in each if part is not None]
    if any(part.shape != (d,) or part.dtype != first.dtype for part in terms):
        raise ValueError("the vectors must have one length and one type")
    which = np.array([*(itertools.combinations(range(k), 2) if pairs is None else pairs)], dtype=np.int64)
    which = which.reshape(-1, 2)
    bounds = threads.pieces(k, d, moments.WIDTH)
    norms, most, dots = (np.zeros((len(bounds) - 1, size)) for size in (k, k, len(which)))
    # Plain addresses: numba would compile anew for each number of arrays. `vectors` keeps the memory alive.
    addresses = np.array([_address(left) for left, _ in differences], dtype=np.int64)
    subtracted = np.array([_address(right) for _, right in differences], dtype=np.int64)
    like = memory.flat(first)

    def work(begin: int, end: int) -> None:
        moments.products(addresses, subtracted, like, bounds, begin, end, which, norms, dots, most)

    threads.spread(work, len(dots))
    table = np.full((k, k), np.nan)
    table[which[:, 0], which[:, 1]] = table[which[:, 1], which[:, 0]] = dots.sum(axis=0)
    np.fill_diagonal(table, norms.sum(axis=0))
    largest = np.where(np.isnan(table.diagonal()), np.nan, most.max(axis=0))
    return Products(torch.from_numpy(table), torch.from_numpy(largest))


def _address(vector: Tensor | None) -> int:
    return 0 if vector is None else vector.data_ptr()

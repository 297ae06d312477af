"""Exact distances between all pairs of rows. Plain path: gyroscope._linalg.distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyroscope._linalg._kernels import compiled, threads
from gyroscope._linalg._kernels.compiled import flat

_SMALL = 2.0**-100
"""Below this mean square per column, float32 squares may have underflowed."""

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]


def squared_distances(rows: Tensor) -> Tensor:
    """Return the (n, n) float64 matrix of squared Euclidean distances.

    If the last rows are copies of one another, as those of colluders in a simulation are, they cost as much as one.
    """
    n, d = rows.shape
    # Rows that differ do so within a few columns, so the search costs next to nothing where there are no copies.
    bits = flat(rows).view(np.int32 if rows.dtype == torch.float32 else np.int64)
    distinct = n + 1 - int(compiled.pairwise_loops.copies_at_the_end(bits, n, rows.stride(0), d))
    bounds = threads.pieces(n, d, 256, most=32)  # a multiple of the kernels' WIDTH
    table = _squares(rows[:distinct], bounds)
    if distinct < n:
        index = np.minimum(np.arange(n), distinct - 1)
        table = table[np.ix_(index, index)]
        known = distinct > 1 and bool(np.isfinite(table[0, -1]))
        if not known and not _is_finite(rows[distinct - 1]):
            table[distinct - 1 :, distinct - 1 :] = np.inf
            np.fill_diagonal(table, 0)
    return torch.from_numpy(table)


def mixed_distances(table: Tensor, shares: Tensor) -> Tensor:
    """Return the (m, m) squared distances between mixed rows, from the (n, n) ones between the rows."""
    out = np.empty((len(shares), len(shares)))
    compiled.mixture_loops.mixed_distances(table.contiguous().numpy(), shares.contiguous().numpy(), out)
    return torch.from_numpy(out)


def _squares(rows: Tensor, bounds: Int64Array) -> Float64Array:
    n, d = rows.shape
    table, single, loops = np.empty((n, n)), rows.dtype == torch.float32, compiled.pairwise_loops
    by_piece = _by_piece(loops.squares, rows, bounds, loops.tiles(n), n * n)
    if loops.added_up(by_piece, _SMALL * d * single, table):
        if single:
            _repair(table, rows, bounds)
        table[np.isnan(table)] = np.inf
    return table


def _repair(table: Float64Array, rows: Tensor, bounds: Int64Array) -> None:
    """Compute again, in float64, the squares that overflowed or underflowed in float32."""
    n, d = rows.shape
    off = ~np.eye(n, dtype=bool)
    large = ~np.isfinite(table) & off
    small = (table < _SMALL * d) & off
    # A row that is infinitely far from all others may itself not be finite; one that is near to another surely is.
    lost = np.array([bool(n > 1 and large[i][off[i]].all() and not _is_finite(rows[i])) for i in range(n)])
    table[lost[:, None] & off | lost & off] = np.inf
    # Colluders send copies: the result for the first of them holds for the others.
    first = np.arange(n)
    for j in range(1, n):
        i = int(np.argmin(table[:j, j]))
        if table[i, j] == 0 and np.array_equal(flat(rows[first[i]]), flat(rows[j])):
            first[j] = first[i]
    again = np.triu((large & ~lost & ~lost[:, None]) | small)
    pairs = sorted({(*sorted((int(first[i]), int(first[j]))),) for i, j in zip(*again.nonzero(), strict=True)})
    pairs = [(i, j) for i, j in pairs if i != j]
    if pairs:
        which = np.array(pairs, dtype=np.int64)
        left, right = which.T
        squares = _by_piece(compiled.pairwise_loops.exact_squares, rows, bounds, which, len(pairs)).sum(axis=0)
        table[left, right] = table[right, left] = squares
    table[:] = table[np.ix_(first, first)]


def _by_piece(kernel: Callable[..., None], rows: Tensor, bounds: Int64Array, which: Any, size: int) -> Float64Array:
    """Return what a kernel computes for each piece of the columns, one row per piece."""
    totals = np.zeros((len(bounds) - 1, size))
    threads.spread(kernel, len(totals), flat(rows), rows.shape[0], rows.stride(0), bounds, which, totals)
    return totals


def _is_finite(row: Tensor) -> bool:
    return bool(np.isfinite(flat(row)).all())  # numpy: unlike the kernels, torch's threads do not survive a fork

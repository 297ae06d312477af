"""Exact distances between all pairs of rows. Plain path: gyroscope._linalg.distances."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyroscope._linalg._kernels import compiled, threads
from gyroscope._linalg._kernels.compiled import flat

_SMALL = 2.0**-100
"""Below this mean square per column, float32 squares may have underflowed."""

_PIECES_OF_A_PART = 4
"""Of each of several parts of the columns: enough for some threads, and each a few blocks wide."""
_MANY = 1 << 16
"""From this many products on it is worth while to share them among threads."""

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]


def squared_distances(rows: Tensor) -> Tensor:
    """Return the (n, n) float64 matrix of squared Euclidean distances.

    If the last rows are copies of one another, as those of colluders in a simulation are, they cost as much as one.
    """
    distinct, bounds = rows[: _distinct(rows)], _pieces(rows)
    return torch.from_numpy(_with_copies(_added_up(_squares(distinct, bounds), distinct, bounds), rows))


def squared_distances_by_parts(rows: Tensor, parts: int) -> list[Tensor]:
    """Return the squared distances in each of `parts` equal ranges of columns."""
    width = rows.shape[1] // parts
    distinct = _distinct(rows)
    bounds, count = _pieces_of_parts(rows, parts)
    by_piece = _squares(rows[:distinct], bounds)
    tables = []
    for part in range(parts):
        columns = rows[:, part * width : (part + 1) * width]
        here = slice(part * count, (part + 1) * count)
        within = bounds[part * count : (part + 1) * count + 1] - part * width
        tables.append(_with_copies(_added_up(by_piece[here], columns[:distinct], within), columns))
    return [torch.from_numpy(table) for table in tables]


def scaled_distances(
    rows: Tensor, factors: Tensor, origin: Tensor | None = None, parts: int = 1
) -> list[Tensor | None]:
    """Return the squared distances between the differences of the rows from an origin, times factors, in each part.

    The scaled rows are never stored. Where squares overflow or vanish, the result is None.

    Args:
        rows: (n, d).
        factors: (parts, n).
        origin: (d,).
        parts: into how many equal ranges to divide the columns.
    """
    bounds, count = _pieces_of_parts(rows, parts)
    by_part = factors.numpy().astype(np.float64, copy=False)
    n = max(_distinct(rows), _distinct_factors(by_part))
    by_piece = _squares(rows[:n], bounds, np.repeat(by_part[:, :n], count, axis=0), origin)
    index = np.minimum(np.arange(len(rows)), n - 1)
    small = _SMALL * rows.shape[1] / parts * (rows.dtype == torch.float32)
    tables: list[Tensor | None] = []
    for part in range(parts):
        table = np.empty((n, n))
        suspicious = compiled.pairwise_loops.added_up(by_piece[part * count : (part + 1) * count], small, table)
        lost = suspicious or n < min(2, len(rows))  # of copies of one row nothing tells whether it is finite
        tables.append(None if lost else torch.from_numpy(table[np.ix_(index, index)]))
    return tables


def mixed_distances(table: Tensor, shares: Tensor) -> Tensor:
    """Return the (m, m) squared distances between mixed rows, from the (n, n) ones between the rows."""
    m, n = shares.shape
    out, known = np.empty((m, m)), table.numpy()
    arguments = np.where(known < np.inf, known, 0.0), shares.contiguous().numpy(), out
    if m * m * n >= _MANY:
        threads.spread(compiled.mixture_loops.mixed_distances, m, *arguments)
    else:
        compiled.mixture_loops.mixed_distances(*arguments, 0, m)
    return torch.from_numpy(out)


def _distinct(rows: Tensor) -> int:
    """Return how many rows there are if copies of the last one at the end count once."""
    # Rows that differ do so within a few columns, so the search costs next to nothing where there are no copies.
    bits = flat(rows).view(np.int32 if rows.dtype == torch.float32 else np.int64)
    n, d = rows.shape
    return n + 1 - int(compiled.pairwise_loops.copies_at_the_end(bits, n, rows.stride(0), d))


def _distinct_factors(factors: Float64Array) -> int:
    """Return the same for the columns of (parts, n) factors."""
    different = (factors != factors[:, -1:]).any(axis=0)
    return int(different.nonzero()[0][-1]) + 2 if different.any() else 1


def _with_copies(table: Float64Array, rows: Tensor) -> Float64Array:
    """Return the table of all rows, from that of those before the copies at the end and the first of these."""
    n, distinct = len(rows), len(table)
    if distinct == n:
        return table
    index = np.minimum(np.arange(n), distinct - 1)
    table = table[np.ix_(index, index)]
    known = distinct > 1 and bool(np.isfinite(table[0, -1]))
    if not known and not _is_finite(rows[distinct - 1]):
        table[distinct - 1 :, distinct - 1 :] = np.inf
        np.fill_diagonal(table, 0)
    return table


def _pieces(rows: Tensor) -> Int64Array:
    bounds: Int64Array = threads.pieces(rows.shape[0], rows.shape[1], 256, most=32)  # a multiple of the kernels' WIDTH
    return bounds


def _pieces_of_parts(rows: Tensor, parts: int) -> tuple[Int64Array, int]:
    """Return the bounds of all pieces, and how many pieces each part has: enough to keep all threads busy."""
    d = rows.shape[1]
    width = d // parts
    if parts == 1:
        bounds = _pieces(rows)
    else:
        step = max(1, -(-width // (256 * _PIECES_OF_A_PART))) * 256
        starts = [*range(0, width, step)]
        bounds = np.array([part * width + start for part in range(parts) for start in starts] + [d], dtype=np.int64)
    return bounds, (len(bounds) - 1) // parts


def _added_up(by_piece: Float64Array, rows: Tensor, bounds: Int64Array) -> Float64Array:
    """Return the table of rows from those of the pieces. Squares that float32 does not hold are computed again."""
    n, d = rows.shape
    table, single = np.empty((n, n)), rows.dtype == torch.float32
    if compiled.pairwise_loops.added_up(by_piece, _SMALL * d * single, table):
        if single:
            _repair(table, rows, bounds)
        table[np.isnan(table)] = np.inf
    return table


def _squares(
    rows: Tensor, bounds: Int64Array, factors: Float64Array | None = None, origin: Tensor | None = None
) -> Float64Array:
    """Return the (n, n) squares of each piece, as a line."""
    n, values = len(rows), flat(rows)
    totals = np.zeros((len(bounds) - 1, n * n))
    scaling = np.empty((0, 0)) if factors is None else np.ascontiguousarray(factors), values[:0]
    if origin is not None:
        scaling = scaling[0], flat(origin)
    loops = compiled.pairwise_loops
    arguments = values, n, rows.stride(0), bounds, loops.tiles(n), totals, *scaling
    threads.spread(loops.squares, len(totals), *arguments)
    return totals


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
        totals = np.zeros((len(bounds) - 1, len(pairs)))
        arguments = flat(rows), n, rows.stride(0), bounds, which, totals
        threads.spread(compiled.pairwise_loops.exact_squares, len(totals), *arguments)
        squares = totals.sum(axis=0)
        table[left, right] = table[right, left] = squares
    table[:] = table[np.ix_(first, first)]


def _is_finite(row: Tensor) -> bool:
    return bool(np.isfinite(flat(row)).all())  # numpy: unlike the kernels, torch's threads do not survive a fork

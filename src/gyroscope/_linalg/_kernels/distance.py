"""Exact distances between all pairs of rows. The plain path is gyroscope._linalg.matrix.distances."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyroscope._linalg._kernels import memory, threads

_SMALL = 2.0**-100
"""Below this mean square per column, float32 squares may have vanished."""

_WIDTH = 256
"""Pieces of the columns are a multiple of this: the width of the kernels' blocks."""

Table = NDArray[np.float64]
Bounds = NDArray[np.int64]


def distances(rows: Tensor) -> Tensor:
    """The (n, n) table of Euclidean distances: see `squared_distances`."""
    table = squared_distances(rows)
    values = table.numpy()
    np.sqrt(values, out=values)  # torch's root of even a small table uses MKL's threads: it hangs in a forked child
    return table


def squared_distances(rows: Tensor) -> Tensor:
    """The (n, n) table of squared Euclidean distances, in float64.

    Differences are taken before squaring, so near-identical rows with a large common offset keep their distance. A
    NaN or an infinity anywhere in a row puts that row infinitely far from every other. The diagonal is zero. Where
    the last rows are copies of one another, as those of colluders in a simulation are, they cost as much as one.
    """
    n = rows.shape[0]
    distinct = n - _copies_at_the_end(rows) + 1
    bounds = threads.pieces(n, rows.shape[1], _WIDTH, most=32)
    table = _squares(rows[:distinct], bounds)
    if distinct < n:
        index = np.minimum(np.arange(n), distinct - 1)
        table = table[np.ix_(index, index)]
        known = distinct > 1 and bool(np.isfinite(table[0, -1]))
        if not known and not _is_finite(rows[distinct - 1]):
            table[distinct - 1 :, distinct - 1 :] = np.inf
            np.fill_diagonal(table, 0)
    return torch.from_numpy(table)


def _copies_at_the_end(rows: Tensor) -> int:
    """How many of the last rows are the same to the last bit, the last one included. Others differ within a few
    columns, so looking costs next to nothing where there are none."""
    from gyroscope._linalg._kernels.compiled import pairwise

    n, d = rows.shape
    words = memory.flat(rows).view(np.int32 if rows.dtype == torch.float32 else np.int64)
    return int(pairwise.copies_at_the_end(words, n, rows.stride(0), d))


def _squares(rows: Tensor, bounds: Bounds) -> Table:
    """All squared distances."""
    from gyroscope._linalg._kernels.compiled import pairwise

    n, d = rows.shape
    table, single = np.empty((n, n)), rows.dtype == torch.float32
    if pairwise.added_up(_by_piece(pairwise.squares, rows, bounds, _tiles(n), n * n), _SMALL * d * single, table):
        if single:
            _repair(table, rows, bounds)
        table[np.isnan(table)] = np.inf
    return table


def _repair(table: Table, rows: Tensor, bounds: Bounds) -> None:
    """Compute again, in float64, what float32 may have got wrong: squares too large or too small for it."""
    from gyroscope._linalg._kernels.compiled import pairwise

    n, d = rows.shape
    off = ~np.eye(n, dtype=bool)
    large = ~np.isfinite(table) & off
    small = (table < _SMALL * d) & off
    # A row that is far from all others may itself not be finite; one that is near to another surely is.
    lost = np.array([bool(n > 1 and large[i][off[i]].all() and not _is_finite(rows[i])) for i in range(n)])
    table[lost[:, None] & off | lost & off] = np.inf
    # Colluders send copies: whatever is true of the first of them is true of the others.
    first = np.arange(n)
    for j in range(1, n):
        i = int(np.argmin(table[:j, j]))
        if table[i, j] == 0 and np.array_equal(memory.flat(rows[first[i]]), memory.flat(rows[j])):
            first[j] = first[i]
    again = np.triu((large & ~lost & ~lost[:, None]) | small)
    pairs = sorted({(*sorted((int(first[i]), int(first[j]))),) for i, j in zip(*again.nonzero(), strict=True)})
    pairs = [(i, j) for i, j in pairs if i != j]
    if pairs:
        left, right = np.array(pairs).T
        table[left, right] = table[right, left] = _by_piece(
            pairwise.exact_squares, rows, bounds, np.array(pairs, dtype=np.int64), len(pairs)
        ).sum(axis=0)
    table[:] = table[np.ix_(first, first)]


def _by_piece(kernel: Callable[..., None], rows: Tensor, bounds: Bounds, which: Any, size: int) -> Table:
    """What a kernel computes for each piece of the columns, one row per piece."""
    n = rows.shape[0]
    totals = np.zeros((len(bounds) - 1, size))
    matrix, stride = memory.flat(rows), rows.stride(0)

    def work(begin: int, end: int) -> None:
        kernel(matrix, n, stride, bounds, begin, end, which, totals)

    threads.spread(work, len(totals))
    return totals


def _is_finite(row: Tensor) -> bool:
    return bool(np.isfinite(memory.flat(row)).all())  # numpy: torch's threads do not survive a fork, the kernels do


@functools.lru_cache(maxsize=64)
def _tiles(n: int) -> Any:
    from gyroscope._linalg._kernels.compiled import pairwise

    return pairwise.tiles(n)

"""Loops that sum the squared differences between all pairs of rows.

A block of columns of all rows stays in the cache while the kernel works on all tiles of pairs. Within a block (WIDTH
columns, so 32 per lane) float32 squares accumulate in float32, which costs at most 1e-6 of the root of their sum;
blocks accumulate in float64.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper, kernel
from gyroscope._linalg._kernels.compiled.lanes import (
    WIDE,
    aligned,
    broadcast_wide,
    load_wide,
    multiply,
    narrow,
    padded,
    prefetch_far,
    store,
    subtract,
)
from gyroscope._linalg._kernels.compiled.unrolled import TILES, add_squares

WIDTH = 256
TILE = 3
_LANES = 4
_PAIRS = TILE * TILE
_LINE = 64  # bytes per cache line


@functools.lru_cache(maxsize=64)
def tiles(n: int) -> Any:
    """Return (tiles, 3): the first left row, the first right row and the shape of each tile. They cover all pairs once.

    Every other sweep over the right rows goes backwards: it begins with the rows that the last sweep left in the cache.
    """
    found = []
    for left in range(0, n, TILE):
        here = min(TILE, n - left)
        if here > 1:
            found.append((left, left, TILES.index((here, 0))))
        rights = range(left + TILE, n, TILE)
        for right in rights if left // TILE % 2 else reversed(rights):
            found.append((left, right, TILES.index((TILE, min(TILE, n - right)))))
    return np.array(found, dtype=np.int64).reshape(-1, 3)


@kernel
def squares(
    rows: Any, n: int, stride: int, bounds: Any, tiles: Any, tables: Any, factors: Any, origin: Any, first: int,
    last: int,
) -> None:  # fmt: skip
    """Write the squared distances of rows i < j of rows[row * stride + column] to tables[piece, i * n + j].

    Each piece is a range of columns that starts at a bound; this call computes pieces first, ..., last - 1. Unless
    there are no factors, they are the distances between the differences of the rows from the origin (unless empty, for
    zero), times factors[piece, row]; a row with the factor 0 counts as zero, whatever it holds.
    """
    sums = np.empty(tiles.shape[0] * _PAIRS * _LANES)
    block = aligned(n * WIDTH if factors.size else 0, rows)
    for piece in range(first, last):
        sums[:] = 0.0
        begin, end = bounds[piece], bounds[piece + 1]
        for start in range(begin, end, WIDTH):
            source, at, step = rows, start, stride
            if factors.size:
                _scale(rows, n, stride, start, min(start + WIDTH, end), factors[piece], origin, block)
                source, at, step = block, 0, WIDTH
            elif start + WIDTH > end:
                source, at, step = padded(rows, n, stride, start, end, WIDTH), 0, WIDTH
            for tile in range(tiles.shape[0]):
                for row in range(tile, n, tiles.shape[0]):  # prefetch the next block, some rows with each tile
                    for column in range(0, WIDTH, _LINE // rows.itemsize):
                        prefetch_far(rows, row * stride + start + WIDTH + column)
                left, right = at + tiles[tile, 0] * step, at + tiles[tile, 1] * step
                add_squares(source, left, right, step, WIDTH, tiles[tile, 2], sums, tile * _PAIRS * _LANES)
        for tile in range(tiles.shape[0]):
            left, right = tiles[tile, 0], tiles[tile, 1]
            place = tile * _PAIRS * _LANES
            for i in range(min(TILE, n - left)):
                for j in range(i + 1 if left == right else 0, min(TILE, n - right)):
                    tables[piece, (left + i) * n + right + j] = sums[place : place + _LANES].sum()
                    place += _LANES


@helper
def _scale(rows: Any, n: int, stride: int, start: int, end: int, factors: Any, origin: Any, block: Any) -> None:
    """Write factor * (row - origin) in columns start, ..., end - 1 to a block of WIDTH columns, padded with zeros."""
    whole = end - (end - start) % WIDE
    for row in range(n):
        at, to, factor = row * stride, row * WIDTH - start, factors[row]
        if factor == 0:
            block[row * WIDTH : (row + 1) * WIDTH] = 0
            continue
        wide = broadcast_wide(factor)
        for column in range(start, whole, WIDE):
            value = load_wide(rows, at + column)
            if origin.size:
                value = subtract(value, load_wide(origin, column))
            store(block, to + column, narrow(rows, multiply(value, wide)))
        for column in range(whole, end):
            rest = np.float64(rows[at + column])
            if origin.size:
                rest -= origin[column]
            block[to + column] = rest * factor
        if end < start + WIDTH:
            block[to + end : (row + 1) * WIDTH] = 0


@kernel
def added_up(tables: Any, small: float, table: Any) -> bool:
    """Add up the tables of all pieces to a symmetric (n, n) table with a zero diagonal.

    Returns:
        Whether some squares need a closer look: those that are not finite, or smaller than `small`.
    """
    n, suspicious = table.shape[0], False
    for i in range(n):
        table[i, i] = 0.0
        for j in range(i + 1, n):
            total = 0.0
            for piece in range(tables.shape[0]):
                total += tables[piece, i * n + j]
            table[i, j] = table[j, i] = total
            suspicious |= not small <= total < np.inf
    return suspicious


@kernel
def copies_at_the_end(words: Any, n: int, stride: int, d: int) -> int:
    """Return how many of the last of n rows, given as integers, equal the last one, itself included."""
    last = (n - 1) * stride
    for copies in range(1, n):
        row = last - copies * stride
        for start in range(0, d, WIDTH):
            width = min(WIDTH, d - start)
            left, right = words[row + start : row + start + width], words[last + start : last + start + width]
            different = False
            for column in range(width):  # no early exit, so that LLVM vectorises it
                different |= left[column] != right[column]
            if different:
                return copies
    return n


@kernel
def exact_squares(rows: Any, n: int, stride: int, bounds: Any, pairs: Any, totals: Any, first: int, last: int) -> None:
    """Compute `squares` for some pairs (i, j) of float32 rows in float64, which no square overflows or underflows."""
    block = np.zeros(n * WIDTH)
    for piece in range(first, last):
        sums = np.zeros(pairs.shape[0] * _LANES)
        for start in range(bounds[piece], bounds[piece + 1], WIDTH):
            filled = min(WIDTH, bounds[piece + 1] - start)
            for row in range(n):
                at, source = row * WIDTH, row * stride + start
                block[at : at + filled] = rows[source : source + filled]
                block[at + filled : at + WIDTH] = 0.0
            for pair in range(pairs.shape[0]):
                left, right = pairs[pair, 0] * WIDTH, pairs[pair, 1] * WIDTH
                add_squares(block, left, right, WIDTH, WIDTH, 0, sums, pair * _LANES)
        for pair in range(pairs.shape[0]):
            totals[piece, pair] = sums[pair * _LANES : (pair + 1) * _LANES].sum()

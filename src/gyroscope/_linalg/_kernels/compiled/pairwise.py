"""Sums of squared differences between all pairs of rows, compiled.

A block of columns of all rows stays in the cache while the tiles of pairs go over it. Within a block (WIDTH columns,
so 32 per lane) float32 squares gather in float32, which costs at most 1e-6 of the root of their sum; blocks gather in
float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.blocks import padded
from gyroscope._linalg._kernels.compiled.build import helper, kernel
from gyroscope._linalg._kernels.compiled.lanes import prefetch
from gyroscope._linalg._kernels.compiled.unrolled import TILES, add_squares

WIDTH = 256
TILE = 3
_LANES = 4
_PAIRS = TILE * TILE
_LINE = 64  # bytes of a cache line


def tiles(n: int) -> Any:
    """(tiles, 3): the first left row, the first right row and the shape of each tile; together all pairs once.

    Every other sweep over the right rows goes backwards: it begins with those that the last one has left in the cache.
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
def squares(rows: Any, n: int, stride: int, bounds: Any, first: int, last: int, tiles: Any, tables: Any) -> None:
    """Sums of squares over the columns of rows[row * stride + column], to tables[piece, i * n + j], i < j: over each
    of the pieces first, ..., last - 1, which lie between the bounds."""
    for piece in range(first, last):
        _squares(rows, n, stride, bounds[piece], bounds[piece + 1], tiles, tables[piece])


@helper
def _squares(rows: Any, n: int, stride: int, begin: int, end: int, tiles: Any, table: Any) -> None:
    sums = np.zeros(tiles.shape[0] * _PAIRS * _LANES)
    for start in range(begin, end, WIDTH):
        source, at, step = rows, start, stride
        if start + WIDTH > end:
            source, at, step = padded(rows, n, stride, start, end, WIDTH), 0, WIDTH
        for tile in range(tiles.shape[0]):
            for row in range(tile, n, tiles.shape[0]):  # ask for the next block, a bit at a time
                for column in range(0, WIDTH, _LINE // rows.itemsize):
                    prefetch(rows, row * stride + start + WIDTH + column)
            left, right = at + tiles[tile, 0] * step, at + tiles[tile, 1] * step
            add_squares(source, left, right, step, WIDTH, tiles[tile, 2], sums, tile * _PAIRS * _LANES)
    for tile in range(tiles.shape[0]):
        left, right = tiles[tile, 0], tiles[tile, 1]
        place = tile * _PAIRS * _LANES
        for i in range(min(TILE, n - left)):
            for j in range(i + 1 if left == right else 0, min(TILE, n - right)):
                table[(left + i) * n + right + j] = _total(sums, place)
                place += _LANES


@kernel
def added_up(tables: Any, small: float, table: Any) -> bool:
    """The sum of what `squares` found in all pieces, for every pair in either order, in an (n, n) table with zeros on
    its diagonal. Whether some of it must be looked at again: what is not finite, or smaller than `small`."""
    n, strange = table.shape[0], False
    for i in range(n):
        table[i, i] = 0.0
        for j in range(i + 1, n):
            total = 0.0
            for piece in range(tables.shape[0]):
                total += tables[piece, i * n + j]
            table[i, j] = table[j, i] = total
            strange |= not small <= total < np.inf
    return strange


@kernel
def copies_at_the_end(words: Any, n: int, stride: int, d: int) -> int:
    """How many of the last of n rows, given as whole numbers, are the same as the last one, itself included."""
    last = (n - 1) * stride
    for copies in range(1, n):
        row = last - copies * stride
        for start in range(0, d, WIDTH):
            width = min(WIDTH, d - start)
            left, right = words[row + start : row + start + width], words[last + start : last + start + width]
            different = False
            for column in range(width):  # without a way out in the middle, so that it is done by vectors
                different |= left[column] != right[column]
            if different:
                return copies
    return n


@kernel
def exact_squares(rows: Any, n: int, stride: int, bounds: Any, first: int, last: int, pairs: Any, totals: Any) -> None:
    """The same for some pairs (i, j) of float32 rows, all in float64, where no float overflows or vanishes."""
    for piece in range(first, last):
        _exact_squares(rows, n, stride, bounds[piece], bounds[piece + 1], pairs, totals[piece])


@helper
def _exact_squares(rows: Any, n: int, stride: int, begin: int, end: int, pairs: Any, totals: Any) -> None:
    sums = np.zeros(pairs.shape[0] * _LANES)
    block = np.zeros(n * WIDTH)
    for start in range(begin, end, WIDTH):
        filled = min(WIDTH, end - start)
        for row in range(n):
            source, target = rows[row * stride + start :], block[row * WIDTH :]
            for column in range(filled):
                target[column] = source[column]
            for column in range(filled, WIDTH):
                target[column] = 0.0
        for pair in range(pairs.shape[0]):
            add_squares(block, pairs[pair, 0] * WIDTH, pairs[pair, 1] * WIDTH, WIDTH, WIDTH, 0, sums, pair * _LANES)
    for pair in range(pairs.shape[0]):
        totals[pair] = _total(sums, pair * _LANES)


@helper
def _total(sums: Any, place: int) -> float:
    total = 0.0
    for lane in range(_LANES):
        total += sums[place + lane]
    return total

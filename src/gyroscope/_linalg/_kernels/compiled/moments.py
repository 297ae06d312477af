"""Means, deviations and inner products, compiled: one pass over the matrix, everything summed in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.blocks import padded
from gyroscope._linalg._kernels.compiled.build import helper, kernel, numba
from gyroscope._linalg._kernels.compiled.lanes import (
    WIDE,
    add,
    add_product,
    count,
    divide,
    fill,
    fill_wide,
    if_less,
    load,
    load_wide,
    magnitude,
    multiply,
    narrow,
    pointer,
    prefetch,
    root,
    store,
    subtract,
)

WIDTH = 256
"""Columns of the vectors that stay in the cache while all pairs of them are multiplied."""

_SMALL = 2.0**-100
"""Below this mean square per column, float32 squares may have vanished."""

_NEAR = 2 * WIDE
"""How many columns ahead of its use memory is asked for, to be in the first cache by then."""

_LINES = 16
"""So many times WIDE columns of all rows are a block. While it is worked on, the next one is asked for, and is in the
second cache by then: row by row, which main memory answers much faster than column by column. (Of float64 every other
line: the processor adds the neighbours.)"""


@kernel
def moments(
    rows: Any, n: int, stride: int, bounds: Any, first: int, last: int, mean: Any, std: Any, numbers: Any
) -> None:
    """Of the columns of rows[row * stride + column]: the means, and if `std` has room the deviations.

    Pieces first, ..., last - 1 of them, which lie between the bounds. Of each piece, numbers[piece, 0], [1], [2]: the
    squares of all deviations from the means, the means' squares, the largest mean. WIDE columns are gone through twice
    while they are in the cache, so nothing is lost to a large common offset.
    """
    for piece in range(first, last):
        _piece(rows, n, stride, bounds[piece], bounds[piece + 1], mean, std, numbers[piece])


@helper
def _piece(rows: Any, n: int, stride: int, begin: int, end: int, mean: Any, std: Any, numbers: Any) -> None:
    whole = end - (end - begin) % WIDE
    _moments(rows, n, stride, begin, whole, mean, std, begin, numbers)
    if whole == end:
        return
    # Beside the loop, not in it: to choose between two arrays for every few columns costs as much as four rows.
    rest, rest_std, more = np.empty(WIDE, rows.dtype), np.empty(WIDE if std.size else 0, rows.dtype), np.zeros(3)
    _moments(padded(rows, n, stride, whole, end, WIDE), n, WIDE, 0, WIDE, rest, rest_std, 0, more)
    for column in range(whole, end):
        mean[column] = rest[column - whole]
        if std.size:
            std[column] = rest_std[column - whole]
    numbers[0], numbers[1], numbers[2] = numbers[0] + more[0], numbers[1] + more[1], max(numbers[2], more[2])


@helper
def _moments(rows: Any, n: int, stride: int, begin: int, end: int, mean: Any, std: Any, to: int, numbers: Any) -> None:
    """`moments` of a whole number of WIDE columns; their means are written from mean[to] on."""
    squares, norm, largest = fill_wide(0.0), fill_wide(0.0), fill_wide(0.0)
    for start in range(begin, end, WIDE):
        total = fill_wide(0.0)
        part = (start - begin) // WIDE % _LINES
        for row in range(n):
            which, line = _in_next_block(part, n, row)
            prefetch(rows, start + which * stride + line)
            prefetch(rows, start + row * stride + _NEAR)
            total = add(total, load_wide(rows, start + row * stride))
        middle = divide(total, fill_wide(n))
        spread = fill_wide(0.0)
        for row in range(n):
            difference = subtract(load_wide(rows, start + row * stride), middle)
            spread = add_product(difference, difference, spread)
        squares = add(squares, spread)
        at = to + start - begin
        store(mean, at, narrow(rows, middle))
        if std.size:
            store(std, at, narrow(rows, root(divide(spread, fill_wide(n - 1)))))
        rounded = load_wide(mean, at)
        norm = add_product(rounded, rounded, norm)
        largest = _larger(largest, magnitude(rounded))
    numbers[0], numbers[1], numbers[2] = _total(squares), _total(norm), _most(largest)


@helper
def _in_next_block(part: int, n: int, row: int) -> tuple[int, int]:
    """What to ask for when this part of a block of n rows comes to this row: the row and, from the part on, the
    columns. BatchedGradients they are the whole next block, in order."""
    number = part * n + row
    return number // _LINES, (_LINES - part + number % _LINES) * WIDE


@kernel
def mean_of(rows: Any, chosen: Any, height: int, stride: int, begin: int, end: int, out: Any) -> None:
    """The mean of the chosen among `height` rows, in columns begin, ..., end - 1 of rows[row * stride + column]."""
    rest = np.empty(WIDE, rows.dtype)
    for start in range(begin, end, WIDE):
        source, at, step, target, to = rows, start, stride, out, start
        if start + WIDE > end:
            source, at, step, target, to = padded(rows, height, stride, start, end, WIDE), 0, WIDE, rest, 0
        total = fill_wide(0.0)
        part = (start - begin) // WIDE % _LINES
        for index in range(chosen.size):
            which, line = _in_next_block(part, chosen.size, index)
            prefetch(source, at + chosen[which] * step + line)
            prefetch(source, at + chosen[index] * step + _NEAR)
            total = add(total, load_wide(source, at + chosen[index] * step))
        store(target, to, narrow(rows, divide(total, fill_wide(chosen.size))))
        if start + WIDE > end:
            for column in range(end - start):
                out[start + column] = rest[column]


@kernel
def shift_and_clip(rows: Any, stride: int, d: int, begin: int, end: int, shift: Any, limit: float) -> None:
    """`shift_and_clip_row` for rows begin, ..., end - 1 of rows[row * stride + column]."""
    for row in range(begin, end):
        shift_and_clip_row(rows, row * stride, d, shift, limit)


@helper
def shift_and_clip_row(rows: Any, at: int, d: int, shift: Any, limit: float) -> None:
    """Add the shift, if there is one, to the row of d values at rows[at]; then, if it is longer than the limit, shorten
    it. The second pass finds it in the cache.

    Within a block squares gather in the rows' own type, which costs at most 1e-6 of their sum; blocks in float64. Where
    they may have overflowed or vanished, the row is gone through again in float64.
    """
    if limit == np.inf and shift.size == 0:
        return
    squares = _shifted_squares(rows, at, d, shift)
    if limit == np.inf:
        return
    if not _SMALL * d < squares < np.inf:
        squares = _exact_squares(rows, at, d)
    scale = limit / np.sqrt(squares)
    if scale >= 1:  # NaN goes on: such a row becomes NaN as a whole
        return
    whole = d - d % WIDE
    wide_scale = fill_wide(scale)
    for column in range(0, whole, WIDE):
        store(rows, at + column, narrow(rows, multiply(load_wide(rows, at + column), wide_scale)))
    for column in range(whole, d):
        rows[at + column] *= scale


@helper
def _shifted_squares(rows: Any, at: int, d: int, shift: Any) -> float:
    """Shift a row; the sum of its squares."""
    step = count(rows)
    wide = 2 * step
    whole = d - d % wide
    total = 0.0
    places = np.empty(wide, rows.dtype)
    for start in range(0, whole, WIDTH):
        a = b = fill(rows, 0.0)
        for column in range(start, min(start + WIDTH, whole), wide):
            x, y = load(rows, at + column), load(rows, at + column + step)
            if shift.size:
                x, y = add(x, load(shift, column)), add(y, load(shift, column + step))
                store(rows, at + column, x)
                store(rows, at + column + step, y)
            a, b = add_product(x, x, a), add_product(y, y, b)
        store(places, 0, a)
        store(places, step, b)
        for place in range(wide):
            total += places[place]
    for column in range(whole, d):
        if shift.size:
            rows[at + column] += shift[column]
        total += np.float64(rows[at + column]) ** 2
    return total


@helper
def _exact_squares(rows: Any, at: int, d: int) -> float:
    total = 0.0
    for column in range(d):
        total += np.float64(rows[at + column]) ** 2
    return total


@kernel
def products(
    addresses: Any, subtracted: Any, like: Any, bounds: Any, first: int, last: int, pairs: Any, norms: Any, dots: Any,
    most: Any,
) -> None:  # fmt: skip
    """In pieces first, ..., last - 1 of some vectors: squared norms, inner products of the pairs, largest magnitudes.

    The pieces lie between the bounds, and each has a row of results. The vectors are given by their addresses, and by
    an array of their type. From each of them another may be subtracted first (0: none), in float64.
    """
    for piece in range(first, last):
        begin, end = bounds[piece], bounds[piece + 1]
        _products(addresses, subtracted, like, begin, end, pairs, norms[piece], dots[piece], most[piece])


@helper
def _products(
    addresses: Any, subtracted: Any, like: Any, begin: int, end: int, pairs: Any, norms: Any, dots: Any, most: Any
) -> None:
    squares, tops = np.zeros(addresses.size * WIDE), np.zeros(addresses.size * WIDE)
    sums = np.zeros(pairs.shape[0] * WIDE)
    block = np.zeros(addresses.size * WIDTH)
    for start in range(begin, end, WIDTH):
        for i in range(addresses.size):
            _take(addresses[i], like, start, end, block, i)
            if subtracted[i]:
                _take_away(subtracted[i], like, start, end, block, i)
            square, top = load_wide(squares, i * WIDE), load_wide(tops, i * WIDE)
            for column in range(i * WIDTH, (i + 1) * WIDTH, WIDE):
                value = load_wide(block, column)
                square = add_product(value, value, square)
                top = _larger(top, magnitude(value))
            store(squares, i * WIDE, square)
            store(tops, i * WIDE, top)
        for pair in range(pairs.shape[0]):
            left, right = pairs[pair, 0] * WIDTH, pairs[pair, 1] * WIDTH
            total = load_wide(sums, pair * WIDE)
            for column in range(0, WIDTH, WIDE):
                total = add_product(load_wide(block, left + column), load_wide(block, right + column), total)
            store(sums, pair * WIDE, total)
    for i in range(addresses.size):
        norms[i], most[i] = _total(load_wide(squares, i * WIDE)), _most(load_wide(tops, i * WIDE))
    for pair in range(pairs.shape[0]):
        dots[pair] = _total(load_wide(sums, pair * WIDE))


@helper
def _take(address: int, like: Any, start: int, end: int, block: Any, i: int) -> None:
    """Write WIDTH elements of the vector at this address into place i of the block; beyond its end, zeros."""
    source = numba.carray(pointer(address), (end,), like.dtype)
    if start + WIDTH > end:
        for column in range(WIDTH):
            block[i * WIDTH + column] = source[start + column] if start + column < end else 0.0
        return
    for column in range(0, WIDTH, WIDE):
        prefetch(source, start + column + WIDTH)
        store(block, i * WIDTH + column, load_wide(source, start + column))


@helper
def _take_away(address: int, like: Any, start: int, end: int, block: Any, i: int) -> None:
    """Subtract WIDTH elements of the vector at this address from place i of the block."""
    source = numba.carray(pointer(address), (end,), like.dtype)
    if start + WIDTH > end:
        for column in range(end - start):
            block[i * WIDTH + column] -= source[start + column]
        return
    for column in range(0, WIDTH, WIDE):
        prefetch(source, start + column + WIDTH)
        at = i * WIDTH + column
        store(block, at, subtract(load_wide(block, at), load_wide(source, start + column)))


@helper
def _larger(left: Any, right: Any) -> Any:
    """The larger in each lane; NaN on the right counts for nothing."""
    return if_less(left, right, right, left)


@helper
def _total(lanes: Any) -> float:
    places = np.empty(WIDE)
    store(places, 0, lanes)
    total = 0.0
    for lane in range(WIDE):
        total += places[lane]
    return total


@helper
def _most(lanes: Any) -> float:
    places = np.empty(WIDE)
    store(places, 0, lanes)
    most = 0.0
    for lane in range(WIDE):
        most = max(most, places[lane])
    return most

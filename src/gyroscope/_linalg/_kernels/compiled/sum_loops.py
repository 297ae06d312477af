"""Loops that sum over rows or columns in float64: column means and deviations, inner products."""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper, kernel, numba
from gyroscope._linalg._kernels.compiled.lanes import (
    WIDE,
    absolute,
    add,
    broadcast_wide,
    copy,
    divide,
    load_wide,
    multiply_add,
    narrow,
    padded,
    pointer,
    prefetch,
    prefetch_far,
    sqrt,
    store,
    subtract,
    where_less,
)

WIDTH = 256
"""Columns of the vectors that stay in the cache while all pairs of them are multiplied."""

_LINES = 64
"""A block is this many times WIDE columns of all rows. While the kernel works on a block, it prefetches the next one.
(Of float64 rows it prefetches every other cache line: the hardware adds the neighbours.)"""


@kernel
def moments(
    rows: Any, n: int, stride: int, bounds: Any, mean: Any, std: Any, squares: Any, first: int, last: int
) -> None:
    """Compute the means of the columns of rows[row * stride + column] and, unless `std` is empty, their deviations.

    For the columns of pieces first, ..., last - 1, which start at the bounds. squares[piece] is the sum of all squared
    deviations from the means. Every WIDE columns are read twice while they are in the cache, so a large common offset
    costs no accuracy.
    """
    for piece in range(first, last):
        begin, end = bounds[piece], bounds[piece + 1]
        whole = end - (end - begin) % WIDE
        squares[piece] = _moments(rows, n, stride, begin, whole, mean, std, begin)
        # Outside the loop: choosing between two arrays for every WIDE columns costs as much as four rows.
        if whole < end:
            rest, rest_std = np.empty(WIDE, rows.dtype), np.empty(WIDE if std.size else 0, rows.dtype)
            block = padded(rows, n, stride, whole, end, WIDE)
            squares[piece] += _moments(block, n, WIDE, 0, WIDE, rest, rest_std, 0)
            copy(rest, 0, mean, whole, end - whole)
            if std.size:
                copy(rest_std, 0, std, whole, end - whole)


@helper
def _moments(rows: Any, n: int, stride: int, begin: int, end: int, mean: Any, std: Any, to: int) -> float:
    """Compute `moments` of a multiple of WIDE columns, to mean[to] and so on; return the sum of squared deviations."""
    squares = broadcast_wide(0.0)
    for start in range(begin, end, WIDE):
        total = broadcast_wide(0.0)
        part = (start - begin) // WIDE % _LINES
        for row in range(n):
            which, line = _in_next_block(part, n, row)
            prefetch_far(rows, start + which * stride + line)
            total = add(total, load_wide(rows, start + row * stride))
        middle = divide(total, broadcast_wide(n))
        spread = broadcast_wide(0.0)
        for row in range(n):
            difference = subtract(load_wide(rows, start + row * stride), middle)
            spread = multiply_add(difference, difference, spread)
        squares = add(squares, spread)
        at = to + start - begin
        store(mean, at, narrow(rows, middle))
        if std.size:
            store(std, at, narrow(rows, sqrt(divide(spread, broadcast_wide(n - 1)))))
    return _lanes(squares).sum()  # type: ignore[no-any-return]


@helper
def _in_next_block(part: int, n: int, row: int) -> tuple[int, int]:
    """Return the row, and the columns from this part on, to prefetch when this part of a block comes to this row.

    All parts and rows together prefetch the whole next block in order.
    """
    number = part * n + row
    return number // _LINES, (_LINES - part + number % _LINES) * WIDE


@kernel
def weighted_sum(
    rows: Any, chosen: Any, factors: Any, divisor: float, origin: Any, share: float, height: int, stride: int, out: Any,
    begin: int, end: int,
) -> None:  # fmt: skip
    """Add up the chosen of `height` rows times their factors, divide, add the origin (unless empty) times its share.

    In columns begin, ..., end - 1 of rows[row * stride + column].
    """
    whole = end - (end - begin) % WIDE
    _weighted_sum(rows, chosen, factors, divisor, origin, share, stride, begin, whole, out, begin)
    if whole < end:
        rest, block = np.empty(WIDE, rows.dtype), padded(rows, height, stride, whole, end, WIDE)
        centre = padded(origin, 1, 0, whole, end, WIDE) if origin.size else origin
        wide = np.int64(WIDE)  # numba would compile the function again for literals
        _weighted_sum(block, chosen, factors, divisor, centre, share, wide, 0 * wide, wide, rest, 0 * wide)
        copy(rest, 0, out, whole, end - whole)


@helper
def _weighted_sum(
    rows: Any, chosen: Any, factors: Any, divisor: float, origin: Any, share: float, stride: int, begin: int, end: int,
    out: Any, to: int,
) -> None:  # fmt: skip
    """Compute `weighted_sum` of a multiple of WIDE columns, to out[to] and the following elements."""
    n = chosen.size
    for start in range(begin, end, WIDE):
        part = (start - begin) // WIDE % _LINES
        total = broadcast_wide(0.0)
        for index in range(n):
            which, line = _in_next_block(part, n, index)
            prefetch_far(rows, start + chosen[which] * stride + line)
            total = multiply_add(load_wide(rows, start + chosen[index] * stride), broadcast_wide(factors[index]), total)
        total = divide(total, broadcast_wide(divisor))
        if origin.size:
            total = multiply_add(load_wide(origin, start), broadcast_wide(share), total)
        store(out, to + start - begin, narrow(rows, total))


@kernel
def row_sums(
    rows: Any, n: int, stride: int, origin: Any, vector: Any, bounds: Any, squares: Any, dots: Any, first: int,
    last: int,
) -> None:  # fmt: skip
    """Add up the squares of all rows, and their products with a vector (unless empty): less the origin, unless empty.

    For the columns of pieces first, ..., last - 1, which start at the bounds; squares[piece] and dots[piece] have a
    value per row.
    """
    for piece in range(first, last):
        begin, end = bounds[piece], bounds[piece + 1]
        whole = end - (end - begin) % WIDE
        for row in range(0, n, 2):  # two rows at once: the origin and the vector are converted once for both
            other = min(row + 1, n - 1)
            at, also = row * stride, other * stride
            square = dot = other_square = other_dot = broadcast_wide(0.0)
            for column in range(begin, whole, WIDE):
                value, other_value = load_wide(rows, at + column), load_wide(rows, also + column)
                if origin.size:
                    centre = load_wide(origin, column)
                    value, other_value = subtract(value, centre), subtract(other_value, centre)
                if vector.size:
                    factor = load_wide(vector, column)
                    dot, other_dot = multiply_add(value, factor, dot), multiply_add(other_value, factor, other_dot)
                square = multiply_add(value, value, square)
                other_square = multiply_add(other_value, other_value, other_square)
            squares[piece, row], dots[piece, row] = _lanes(square).sum(), _lanes(dot).sum()
            squares[piece, other], dots[piece, other] = _lanes(other_square).sum(), _lanes(other_dot).sum()
        for row in range(n):
            at = row * stride
            for column in range(whole, end):
                rest = np.float64(rows[at + column])
                if origin.size:
                    rest -= origin[column]
                if vector.size:
                    dots[piece, row] += rest * vector[column]
                squares[piece, row] += rest * rest


@kernel
def products(
    minuends: Any, subtrahends: Any, like: Any, bounds: Any, pairs: Any, norms: Any, dots: Any, most: Any, first: int,
    last: int,
) -> None:  # fmt: skip
    """Compute squared norms, inner products of pairs and largest magnitudes in pieces first, ..., last - 1 of vectors.

    The pieces start at the bounds, and each has a row of results. The vectors are given by the addresses of arrays like
    `like`; a vector with a subtrahend (0: none) is the difference of the two, in float64.
    """
    for piece in range(first, last):
        begin, end = bounds[piece], bounds[piece + 1]
        _products(minuends, subtrahends, like, begin, end, pairs, norms[piece], dots[piece], most[piece])


@helper
def _products(
    minuends: Any, subtrahends: Any, like: Any, begin: int, end: int, pairs: Any, norms: Any, dots: Any, most: Any
) -> None:
    squares, tops = _aligned(minuends.size * WIDE), _aligned(minuends.size * WIDE)
    sums = _aligned(pairs.shape[0] * WIDE)
    block = _aligned(minuends.size * WIDTH)
    for start in range(begin, end, WIDTH):
        for i in range(minuends.size):
            _widen(minuends[i], subtrahends[i], like, start, end, block, i * WIDTH)
            square, top = load_wide(squares, i * WIDE), load_wide(tops, i * WIDE)
            for column in range(i * WIDTH, (i + 1) * WIDTH, WIDE):
                value = load_wide(block, column)
                square = multiply_add(value, value, square)
                size = absolute(value)
                top = where_less(top, size, size, top)  # NaN counts for nothing
            store(squares, i * WIDE, square)
            store(tops, i * WIDE, top)
        for pair in range(pairs.shape[0]):
            left, right = pairs[pair, 0] * WIDTH, pairs[pair, 1] * WIDTH
            total = load_wide(sums, pair * WIDE)
            for column in range(0, WIDTH, WIDE):
                total = multiply_add(load_wide(block, left + column), load_wide(block, right + column), total)
            store(sums, pair * WIDE, total)
    for i in range(minuends.size):
        norms[i], most[i] = _lanes(load_wide(squares, i * WIDE)).sum(), _lanes(load_wide(tops, i * WIDE)).max()
    for pair in range(pairs.shape[0]):
        dots[pair] = _lanes(load_wide(sums, pair * WIDE)).sum()


@helper
def _widen(minuend: int, subtrahend: int, like: Any, start: int, end: int, block: Any, at: int) -> None:
    """Write WIDTH elements of a vector, less the subtrahend if there is one, to block[at]; beyond the end, zeros."""
    source = numba.carray(pointer(minuend), (end,), like.dtype)
    other = numba.carray(pointer(subtrahend), (end,), like.dtype)
    if start + WIDTH > end:
        for column in range(WIDTH):
            value = np.float64(source[start + column]) if start + column < end else 0.0
            if subtrahend and start + column < end:
                value -= other[start + column]
            block[at + column] = value
        return
    for column in range(0, WIDTH, WIDE):
        prefetch(source, start + column + WIDTH)
        values = load_wide(source, start + column)
        if subtrahend:
            prefetch(other, start + column + WIDTH)
            values = subtract(values, load_wide(other, start + column))
        store(block, at + column, values)


@helper
def _lanes(vector: Any) -> Any:
    """Return the elements of a wide vector as an array."""
    lanes = np.empty(WIDE)
    store(lanes, 0, vector)
    return lanes


@helper
def _aligned(size: int) -> Any:
    """Return float64 zeros that begin at a cache line: a load across two lines takes twice as long."""
    zeros = np.zeros(size + 8)
    return zeros[-zeros.ctypes.data % 64 // 8 :]

"""Loops over the values of one row at a time: finite copies, clipping, the momentum recursion."""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper, kernel
from gyroscope._linalg._kernels.compiled.lanes import (
    WIDE,
    add,
    broadcast,
    broadcast_wide,
    copy,
    lane_count,
    load,
    load_wide,
    multiply,
    multiply_add,
    narrow,
    padded,
    prefetch,
    store,
    subtract,
)

_WIDTH = 256
"""Columns per block of squares."""
_AHEAD = 48
"""Places that are prefetched before their use: the hardware does not foresee them."""
_SMALL = 2.0**-100
"""Below this mean square per column, float32 squares may have underflowed."""


@kernel
def copy_finite(source: Any, target: Any) -> bool:
    """Copy a vector to another one of its length and type; return whether all of it is finite."""
    step, zero = lane_count(source), broadcast(source, 0.0)
    even = odd = zero
    whole = source.size - source.size % (2 * step)
    for k in range(0, whole, 2 * step):
        left, right = load(source, k), load(source, k + step)
        store(target, k, left)
        store(target, k + step, right)
        even, odd = multiply_add(left, zero, even), multiply_add(right, zero, odd)
    finite = _is_zero(source, even, odd)
    for k in range(whole, source.size):
        target[k] = source[k]
        finite &= bool(np.isfinite(source[k]))
    return finite


@helper
def _is_zero(like: Any, even: Any, odd: Any) -> bool:
    """Return whether two sums of zero times a value are zero: they are NaN if a value is NaN or infinite."""
    total = np.empty(lane_count(like), like.dtype)
    store(total, 0, add(even, odd))
    return bool(total.sum() == 0)


@kernel
def check_and_gather(
    rows: Any, n: int, stride: int, bounds: Any, places: Any, cuts: Any, out: Any, finite: Any, first: int, last: int
) -> None:
    """Find out which rows are finite, and copy their values at some places, while these are in the cache.

    For the columns of pieces first, ..., last - 1, which start at the bounds. finite[piece] has a value per row. There
    are several sorted sequences of places, one after the other. Those of sequence i that are in a piece begin at
    places[cuts[piece, i]], and out[row * places.size + k] is the row's value at places[k].
    """
    step, zero = lane_count(rows), broadcast(rows, 0.0)
    for piece in range(first, last):
        begin, end = bounds[piece], bounds[piece + 1]
        whole = end - (end - begin) % (4 * step)
        for row in range(n):
            at = row * stride
            a = b = c = d = zero
            for k in range(at + begin, at + whole, 4 * step):
                a, b = multiply_add(load(rows, k), zero, a), multiply_add(load(rows, k + step), zero, b)
                c = multiply_add(load(rows, k + 2 * step), zero, c)
                d = multiply_add(load(rows, k + 3 * step), zero, d)
            good = _is_zero(rows, add(a, b), add(c, d))
            for k in range(at + whole, at + end):
                good &= bool(np.isfinite(rows[k]))
            finite[piece, row] = good
            for sequence in range(cuts.shape[1]):
                begin_here, end_here = cuts[piece, sequence], cuts[piece + 1, sequence]
                target = out[row * places.size + begin_here : row * places.size + end_here]
                some = places[begin_here:end_here]
                for k in range(some.size):
                    target[k] = rows[np.uint64(at + some[k])]


@kernel
def gather(rows: Any, stride: int, places: Any, out: Any, begin: int, end: int) -> None:
    """Copy the values at these places of rows begin, ..., end - 1 to the same rows of `out`, side by side."""
    count = places.size
    for row in range(begin, end):
        for k in range(count):
            if k + _AHEAD < count:
                prefetch(rows, row * stride + places[k + _AHEAD])
            out[row * count + k] = rows[np.uint64(row * stride + places[k])]


@kernel
def shift_and_clip(rows: Any, stride: int, d: int, shift: Any, limit: float, begin: int, end: int) -> None:
    """Call `shift_and_clip_row` for rows begin, ..., end - 1 of rows[row * stride + column]."""
    for row in range(begin, end):
        shift_and_clip_row(rows, row * stride, d, shift, limit)


@helper
def shift_and_clip_row(rows: Any, at: int, d: int, shift: Any, limit: float) -> None:
    """Add the shift (unless it is empty) to the d values at rows[at], then scale them to the limit if they are longer.

    The second pass finds the row in the cache. Squares accumulate in the rows' own type within a block, which costs at
    most 1e-6 of their sum, and blocks in float64. Where they may have overflowed or underflowed, another pass
    accumulates all of them in float64.
    """
    if limit == np.inf and shift.size == 0:
        return
    squares = _shifted_squares(rows, at, d, shift)
    if limit == np.inf:
        return
    if not _SMALL * d < squares < np.inf:
        squares = 0.0
        for column in range(d):
            squares += np.float64(rows[at + column]) ** 2
    scale = limit / np.sqrt(squares) if squares < np.inf else np.nan
    if scale >= 1:  # not so for NaN: a row that is not finite becomes NaN as a whole
        return
    whole = d - d % WIDE
    wide_scale = broadcast_wide(scale)
    for column in range(0, whole, WIDE):
        store(rows, at + column, narrow(rows, multiply(load_wide(rows, at + column), wide_scale)))
    for column in range(whole, d):
        rows[at + column] *= scale


@helper
def _shifted_squares(rows: Any, at: int, d: int, shift: Any) -> float:
    """Shift a row; return the sum of its squares."""
    step = lane_count(rows)
    wide = 2 * step
    whole = d - d % wide
    total = 0.0
    places = np.empty(wide, rows.dtype)
    for start in range(0, whole, _WIDTH):
        a = b = broadcast(rows, 0.0)
        for column in range(start, min(start + _WIDTH, whole), wide):
            x, y = load(rows, at + column), load(rows, at + column + step)
            if shift.size:
                x, y = add(x, load(shift, column)), add(y, load(shift, column + step))
                store(rows, at + column, x)
                store(rows, at + column + step, y)
            a, b = multiply_add(x, x, a), multiply_add(y, y, b)
        store(places, 0, a)
        store(places, step, b)
        for place in range(wide):
            total += places[place]
    for column in range(whole, d):
        if shift.size:
            rows[at + column] += shift[column]
        total += np.float64(rows[at + column]) ** 2
    return total


@kernel
def scale(
    rows: Any, stride: int, d: int, factors: Any, origin: Any, out: Any, out_stride: int, begin: int, end: int
) -> None:
    """out[row] = factor * (rows[row] - origin) for rows begin, ..., end - 1; the origin may be empty, for zero.

    Zeros where the factor is zero, whatever the row holds.
    """
    for row in range(begin, end):
        at, to, factor = row * stride, row * out_stride, factors[row]
        if factor == 0:
            out[to : to + d] = 0
            continue
        wide, whole = broadcast_wide(factor), d - d % WIDE
        for column in range(0, whole, WIDE):
            value = load_wide(rows, at + column)
            if origin.size:
                value = subtract(value, load_wide(origin, column))
            store(out, to + column, narrow(out, multiply(value, wide)))
        for column in range(whole, d):
            rest = np.float64(rows[at + column])
            if origin.size:
                rest -= origin[column]
            out[to + column] = rest * factor


@kernel
def sign_counts(rows: Any, stride: int, places: Any, counts: Any, begin: int, end: int) -> None:
    """Count the positive, other and negative values of rows begin, ..., end - 1 at some places."""
    for row in range(begin, end):
        positive = negative = 0
        for place in places:
            value = rows[row * stride + place]
            positive += value > 0
            negative += value < 0
        counts[row, 0], counts[row, 1], counts[row, 2] = positive, places.size - positive - negative, negative


@kernel
def accumulate(
    memory: Any, stride: int, gradient: Any, gradient_stride: int, d: int, mu: float, gain: float, finite: Any,
    begin: int, end: int,
) -> None:  # fmt: skip
    """memory[row] = mu * memory[row] + gain * gradient[row] for rows begin, ..., end - 1, if all sums are finite.

    Row i starts at memory[i * stride] and gradient[i * gradient_stride]. finite[row] tells whether its sums are finite.
    The second pass finds most of the row in the cache.
    """
    for row in range(begin, end):
        at, other = row * stride, row * gradient_stride
        finite[row] = _sums_are_finite(memory, at, gradient, other, d, mu, gain)
        if finite[row]:
            _write_sums(memory, at, gradient, other, d, mu, gain)


@kernel
def check_sums(
    memory: Any, gradient: Any, mu: float, gain: float, bounds: Any, finite: Any, begin: int, end: int
) -> None:
    """For pieces begin, ..., end - 1 of one row, which start at the bounds: find out whether their sums are finite."""
    for piece in range(begin, end):
        at, width = bounds[piece], bounds[piece + 1] - bounds[piece]
        finite[piece] = _sums_are_finite(memory, at, gradient, at, width, mu, gain)


@kernel
def write_sums(memory: Any, gradient: Any, mu: float, gain: float, begin: int, end: int) -> None:
    """memory[i] = mu * memory[i] + gain * gradient[i] for i from begin to end - 1."""
    _write_sums(memory, begin, gradient, begin, end - begin, mu, gain)


@helper
def _sums_are_finite(memory: Any, at: int, gradient: Any, other: int, width: int, mu: float, gain: float) -> bool:
    """Return whether the sums of `width` values from memory[at] and gradient[other] on are finite."""
    step, zero = lane_count(memory), broadcast(memory, 0.0)
    whole = width - width % (2 * step)
    even = odd = zero
    for k in range(0, whole, 2 * step):
        even = multiply_add(_sum(memory, at + k, gradient, other + k, mu, gain), zero, even)
        odd = multiply_add(_sum(memory, at + k + step, gradient, other + k + step, mu, gain), zero, odd)
    if whole < width:
        left, right = _rest(memory, at + whole, at + width), _rest(gradient, other + whole, other + width)
        even = multiply_add(_sum(left, 0, right, 0, mu, gain), zero, even)
        odd = multiply_add(_sum(left, step, right, step, mu, gain), zero, odd)
    return _is_zero(memory, even, odd)


@helper
def _write_sums(memory: Any, at: int, gradient: Any, other: int, width: int, mu: float, gain: float) -> None:
    """Write these sums to memory, from the last to the first: the values checked last are still in the L1 cache."""
    step = lane_count(memory)
    whole = width - width % (2 * step)
    if whole < width:
        left, right = _rest(memory, at + whole, at + width), _rest(gradient, other + whole, other + width)
        store(left, 0, _sum(left, 0, right, 0, mu, gain))
        store(left, step, _sum(left, step, right, step, mu, gain))
        copy(left, 0, memory, at + whole, width - whole)
    for k in range(whole - 2 * step, -1, -2 * step):
        store(memory, at + k, _sum(memory, at + k, gradient, other + k, mu, gain))
        store(memory, at + k + step, _sum(memory, at + k + step, gradient, other + k + step, mu, gain))


@helper
def _sum(memory: Any, at: int, gradient: Any, other: int, mu: float, gain: float) -> Any:
    added = multiply(load(gradient, other), broadcast(memory, gain))
    return multiply_add(load(memory, at), broadcast(memory, mu), added)


@helper
def _rest(values: Any, begin: int, end: int) -> Any:
    """Return the last values of a row, padded to two vectors, so that they are rounded like all others."""
    return padded(values, 1, 0, begin, end, 2 * lane_count(values))

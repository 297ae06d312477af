"""Order statistics of each column: a block of columns goes through a network of comparators between rows.

The network takes NaN for +inf, which sorts correctly but loses the difference between the two. So each column whose
result is not finite is computed again by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper, kernel
from gyroscope._linalg._kernels.compiled.lanes import (
    add,
    added_lanes,
    aligned,
    broadcast,
    copy,
    divide,
    lane_count,
    load,
    maximum,
    minimum,
    multiply,
    multiply_add,
    padded,
    prefetch,
    prefetch_far,
    store,
    subtract,
    where_less,
)
from gyroscope._linalg._kernels.compiled.unrolled import VECTORS, add_rows, merge_runs, sort_run


@kernel
def columns(
    rows: Any, n: int, stride: int, width: int, leaves: Any, merges: Any, wires: Any, order: Any, candidates: Any,
    bounds: Any, ranks: Any, first: int, last: int, nearest: int, shares: Any, share_rows: Any, share_bounds: Any,
    nested: bool, used: Any, origins: Any, step_bounds: Any, step_rows: Any, weights: Any, targets: Any, scales: Any,
    out: Any, begin: int, end: int,
) -> None:  # fmt: skip
    """Compute columns begin, ..., end - 1 of the matrix rows[row * stride + column], in blocks of `width` columns.

    The result is, for each column in sorted order, the values of the given ranks (one row of `out` each); or if there
    are none, the mean of ranks first, ..., last - 1; or if `nearest` > 0, the mean of as many values nearest to that
    mean. There is one kernel for all of these, because the network takes long to compile.

    If there are mixtures, they are the network's inputs instead of the rows, computed block by block: mixture i is the
    sum of shares[k] times row share_rows[k] over k from share_bounds[i] to share_bounds[i + 1] - 1. Nested mixtures are
    means of ever fewer rows: mixture i is shares[i] times the sum of the rows share_rows[i:]. Where there are steps,
    `_mix_by_steps` computes the same with fewer operations.
    """
    d, results = out.size // max(1, ranks.size), max(1, ranks.size)
    height = share_bounds.size - 1 if share_bounds.size > 1 else n
    whole = end - (end - begin) % width
    _columns(
        rows, n, height, stride, width, leaves, merges, wires, order, candidates, bounds, ranks, first, last, nearest,
        shares, share_rows, share_bounds, nested, used, origins, step_bounds, step_rows, weights, targets, scales,
        out, d, begin, whole, begin,
    )  # fmt: skip
    if whole < end:  # a block of its own: choosing between two arrays in each block costs as much as a row
        zero = 0 * width  # numba would compile the function again for a literal
        block, part = padded(rows, n, stride, whole, end, width), np.empty(results * width, rows.dtype)
        _columns(
            block, n, height, width, width, leaves, merges, wires, order, candidates, bounds, ranks, first, last,
            nearest, shares, share_rows, share_bounds, nested, used, origins, step_bounds, step_rows, weights, targets,
            scales, part, width, zero, width, zero,
        )  # fmt: skip
        for value in range(results):
            copy(part, value * width, out, value * d + whole, end - whole)


@helper
def _columns(
    rows: Any, n: int, height: int, stride: int, width: int, leaves: Any, merges: Any, wires: Any, order: Any,
    candidates: Any, bounds: Any, ranks: Any, first: int, last: int, nearest: int, shares: Any, share_rows: Any,
    share_bounds: Any, nested: bool, used: Any, origins: Any, step_bounds: Any, step_rows: Any, weights: Any,
    targets: Any, scales: Any, out: Any, d: int, begin: int, end: int, to: int,
) -> None:  # fmt: skip
    """Compute whole blocks of `columns`, to out[to] and the following elements, and for the next rank d further on."""
    mixed = share_bounds.size > 1
    mixtures = np.empty(height * width if mixed else 0, rows.dtype)
    scratch = np.empty(height * width, rows.dtype)
    zero = 0 * width
    for start in range(begin, end, width):
        if mixed:
            if nested:
                _mix_nested(rows, start, stride, mixtures, width, shares, share_rows)
            elif not origins.size or not _mix_by_steps(
                rows, start, stride, mixtures, width, used, origins, step_bounds, step_rows, weights, targets, scales,
            ):  # fmt: skip
                _mix(rows, start, stride, mixtures, width, shares, share_rows, share_bounds)
            _network(mixtures, zero, width, scratch, width, leaves, merges, wires)
        else:
            _network(rows, start, stride, scratch, width, leaves, merges, wires)
        for value in range(max(1, ranks.size)):
            at = to + value * d + start - begin
            if ranks.size:
                _select(scratch, width, candidates, bounds[value], bounds[value + 1], out, at)
            else:
                _mean(scratch, width, order, first, last, out, at)
                if nearest:
                    _nearest(scratch, width, order, nearest, out, at)
            if _all_finite(out, at, width):
                continue
            for place in range(width):
                if np.isfinite(out[at + place]):
                    continue
                lost = _nans(mixtures, height, width, place) if mixed else _nans(rows, n, stride, start + place)
                if not ranks.size:
                    out[at + place] = _around(scratch, order, width, place, height - lost, first, last, nearest)
                elif ranks[value] >= height - lost:
                    out[at + place] = np.nan


@helper
def _around(
    scratch: Any, order: Any, width: int, place: int, known: int, first: int, last: int, nearest: int
) -> Any:  # fmt: skip
    """Compute the result of one column, the last values of which are NaN: all but the `known` first ones."""
    column = np.empty(order.size, scratch.dtype)
    for rank in range(order.size):
        column[rank] = scratch[order[rank] * width + place] if rank < known else np.nan
    center = _mean_of(column, first, last)
    if nearest:
        left = _window(column, center, nearest)
        center = _mean_of(column, left, left + nearest)
    return center


@helper
def _network(source: Any, at: int, stride: int, scratch: Any, width: int, leaves: Any, merges: Any, wires: Any) -> None:
    """Send a block of source[at + row * stride + column] through a network, to scratch[wire * width + column]."""
    for leaf in range(leaves.shape[0]):
        wire, size = leaves[leaf, 0], leaves[leaf, 1]
        for column in range(0, width, lane_count(source)):
            sort_run(source, at + wire * stride + column, stride, scratch, wire * width + column, width, size)
    for merge in range(merges.shape[0]):
        merge_runs(scratch, width, wires, merges[merge, 0], merges[merge, 1], merges[merge, 2])


@helper
def _mix(
    source: Any, at: int, stride: int, mixtures: Any, width: int, shares: Any, share_rows: Any, share_bounds: Any
) -> None:
    step = lane_count(source)
    for mixture in range(share_bounds.size - 1):
        to = mixture * width
        for column in range(0, width, 4 * step):  # four sums at once hide the latency of an addition
            a = b = c = d = broadcast(source, 0.0)
            for k in range(share_bounds[mixture], share_bounds[mixture + 1]):
                share, place = broadcast(source, shares[k]), at + share_rows[k] * stride + column
                if mixture == 0:  # it usually has all the rows that the others have: prefetch the next block
                    prefetch(source, place + width)
                    prefetch(source, place + width + 2 * step)
                a = multiply_add(share, load(source, place), a)
                b = multiply_add(share, load(source, place + step), b)
                c = multiply_add(share, load(source, place + 2 * step), c)
                d = multiply_add(share, load(source, place + 3 * step), d)
            store(mixtures, to + column, a)
            store(mixtures, to + column + step, b)
            store(mixtures, to + column + 2 * step, c)
            store(mixtures, to + column + 3 * step, d)


@helper
def _mix_by_steps(
    source: Any, at: int, stride: int, mixtures: Any, width: int, used: Any, origins: Any, bounds: Any, step_rows: Any,
    weights: Any, targets: Any, scales: Any,
) -> bool:  # fmt: skip
    """Compute mixtures from a sum of common rows, and from each other, by adding and subtracting few rows.

    Step i begins with zero, with the result of step 0, with that of the step before, or with both of these, if
    origins[i] is 0, 1, 2 or 3. It adds weights[k] times row step_rows[k] for k from bounds[i] to bounds[i + 1] - 1, at
    least one. If targets[i] is a mixture and not -1, that is the sum times scales[i]. A sum times 1 is written there
    only: no later step may begin with it. Returns whether all are finite: a row that is not spoils mixtures without it.
    """
    step, last = lane_count(source), 2 * width
    sums, lost = aligned(3 * width, source), np.zeros(step, source.dtype)
    for i in range(origins.size):
        for k in range(i, used.size, origins.size):  # prefetch the next block, some rows with each step
            for column in range(0, width, 2 * step):
                prefetch_far(source, at + used[k] * stride + column + width)
        origin, result, to = min(origins[i], 2) * width, last if i else width, targets[i] * width
        if origins[i] == 3:
            for column in range(0, width, step):
                store(sums, last + column, add(load(sums, last + column), load(sums, width + column)))
        first, end = bounds[i], bounds[i + 1]
        for column in range(0, width, VECTORS * step):
            place, begin = at + column, origin + column
            if to >= 0 and scales[i] == 1:
                add_rows(
                    source, place, stride, step_rows, weights, first, end, sums, begin, mixtures, to + column, lost
                )
            else:
                add_rows(
                    source, place, stride, step_rows, weights, first, end, sums, begin, sums, result + column, lost
                )
        if to >= 0 and scales[i] != 1:
            scale = broadcast(source, scales[i])
            for column in range(0, width, 4 * step):
                a, b, c, d = _four(sums, result + column)
                a, b, c, d = multiply(scale, a), multiply(scale, b), multiply(scale, c), multiply(scale, d)
                _store_four(mixtures, to + column, a, b, c, d)
    return bool(lost.sum() == 0)


@helper
def _mix_nested(source: Any, at: int, stride: int, mixtures: Any, width: int, shares: Any, share_rows: Any) -> None:
    """Add one row after the other, the last first: each mixture costs one addition more than the one after it.

    The sums are those of the rows times a power of two, so that they are no larger than the largest value.
    """
    step = lane_count(source)
    part = 1.0
    while part * share_rows.size > 1.0:
        part /= 2
    power = broadcast(source, part)
    for column in range(0, width, 4 * step):
        a = b = c = d = broadcast(source, 0.0)
        for k in range(share_rows.size - 1, -1, -1):
            place = at + share_rows[k] * stride + column
            prefetch(source, place + width)
            prefetch(source, place + width + 2 * step)
            a = multiply_add(power, load(source, place), a)
            b = multiply_add(power, load(source, place + step), b)
            c = multiply_add(power, load(source, place + 2 * step), c)
            d = multiply_add(power, load(source, place + 3 * step), d)
            if k < shares.size:
                share, to = broadcast(source, shares[k] / part), k * width + column
                store(mixtures, to, multiply(share, a))
                store(mixtures, to + step, multiply(share, b))
                store(mixtures, to + 2 * step, multiply(share, c))
                store(mixtures, to + 3 * step, multiply(share, d))


@helper
def _four(scratch: Any, at: int) -> Any:
    """Return four vectors. Four sums at once hide the latency of an addition."""
    step = lane_count(scratch)
    return load(scratch, at), load(scratch, at + step), load(scratch, at + 2 * step), load(scratch, at + 3 * step)


@helper
def _store_four(result: Any, to: int, a: Any, b: Any, c: Any, d: Any) -> None:
    step = lane_count(result)
    store(result, to, a)
    store(result, to + step, b)
    store(result, to + 2 * step, c)
    store(result, to + 3 * step, d)


@helper
def _select(scratch: Any, width: int, candidates: Any, begin: int, end: int, result: Any, to: int) -> None:
    for column in range(0, width, 4 * lane_count(scratch)):
        a, b, c, d = _larger(scratch, width, candidates, begin, column)
        for pair in range(begin + 1, end):
            e, f, g, h = _larger(scratch, width, candidates, pair, column)
            a, b, c, d = minimum(a, e), minimum(b, f), minimum(c, g), minimum(d, h)
        _store_four(result, to + column, a, b, c, d)


@helper
def _larger(scratch: Any, width: int, candidates: Any, pair: int, column: int) -> Any:
    """Return the larger key of a pair of wires, in four vectors."""
    a, b, c, d = _four(scratch, candidates[pair, 0] * width + column)
    e, f, g, h = _four(scratch, candidates[pair, 1] * width + column)
    return maximum(a, e), maximum(b, f), maximum(c, g), maximum(d, h)


@helper
def _mean(scratch: Any, width: int, order: Any, first: int, last: int, result: Any, to: int) -> None:
    divisor = broadcast(result, last - first)
    for column in range(0, width, 4 * lane_count(scratch)):
        a, b, c, d = _four(scratch, order[first] * width + column)
        for rank in range(first + 1, last):
            e, f, g, h = _four(scratch, order[rank] * width + column)
            a, b, c, d = add(a, e), add(b, f), add(c, g), add(d, h)
        a, b, c, d = divide(a, divisor), divide(b, divisor), divide(c, divisor), divide(d, divisor)
        _store_four(result, to + column, a, b, c, d)


@helper
def _nearest(scratch: Any, width: int, order: Any, size: int, result: Any, to: int) -> None:
    """Replace each `result` by the mean of the `size` values nearest to it.

    The window moves right past value i while that is farther from the center than value i + size, which it would gain.
    If it moves past value i, value i is out and value i + size is in: two selects per value, which are added in order
    of rank. For an infinite center such differences are NaN: so is the result, and the column is computed again.
    """
    n, zero, divisor = order.size, broadcast(result, 0.0), broadcast(result, size)
    for column in range(0, width, 4 * lane_count(scratch)):
        p, q, r, s = _four(result, to + column)
        a = b = c = d = zero
        for rank in range(n):
            e, f, g, h = _four(scratch, order[rank] * width + column)
            t, u, v, w = e, f, g, h
            if rank < n - size:
                i, j, k, m = _four(scratch, order[rank + size] * width + column)
                t, u = _where_nearer(i, p, e, zero, e), _where_nearer(j, q, f, zero, f)
                v, w = _where_nearer(k, r, g, zero, g), _where_nearer(m, s, h, zero, h)
            if rank >= size:
                i, j, k, m = _four(scratch, order[rank - size] * width + column)
                t, u = _where_nearer(e, p, i, t, zero), _where_nearer(f, q, j, u, zero)
                v, w = _where_nearer(g, r, k, v, zero), _where_nearer(h, s, m, w, zero)
            a, b, c, d = add(a, t), add(b, u), add(c, v), add(d, w)
        a, b = _where_finite(p, divide(a, divisor)), _where_finite(q, divide(b, divisor))
        c, d = _where_finite(r, divide(c, divisor)), _where_finite(s, divide(d, divisor))
        _store_four(result, to + column, a, b, c, d)


@helper
def _all_finite(result: Any, at: int, width: int) -> bool:
    zero = broadcast(result, 0.0)
    nothing = zero
    for column in range(0, width, lane_count(result)):
        nothing = multiply_add(zero, load(result, at + column), nothing)
    return bool(added_lanes(nothing) == 0)


@helper
def _where_nearer(above: Any, center: Any, below: Any, then: Any, otherwise: Any) -> Any:
    """Return `then` where the value above the center is nearer to it than the one below, else `otherwise`."""
    return where_less(subtract(above, center), subtract(center, below), then, otherwise)


@helper
def _where_finite(center: Any, value: Any) -> Any:
    """Return the value where the center is finite, else NaN."""
    return add(value, subtract(center, center))


@helper
def _nans(rows: Any, n: int, stride: int, column: int) -> int:
    nans = 0
    for row in range(n):
        nans += np.isnan(rows[row * stride + column])
    return nans


@helper
def _window(column: Any, center: Any, size: int) -> int:
    """Return where the window of the `size` values nearest to the center begins in a sorted column."""
    first = 0
    for rank in range(column.size - size):
        first += center - column[rank] > column[rank + size] - center
    return first


@helper
def _mean_of(column: Any, first: int, last: int) -> Any:
    total = column[first]
    for rank in range(first + 1, last):
        total += column[rank]
    return total / column.dtype.type(last - first)

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
    broadcast,
    divide,
    lane_count,
    load,
    maximum,
    minimum,
    multiply,
    multiply_add,
    padded,
    prefetch,
    store,
    subtract,
    where_less,
)
from gyroscope._linalg._kernels.compiled.unrolled import MIXED, MIXED_VECTORS, add_mixtures, merge_runs, sort_run


@kernel
def columns(
    rows: Any, n: int, stride: int, width: int, leaves: Any, merges: Any, wires: Any, order: Any, candidates: Any,
    bounds: Any, ranks: Any, first: int, last: int, nearest: int, shares: Any, share_rows: Any, share_bounds: Any,
    nested: bool, dense: Any, dense_rows: Any, common: int, out: Any, begin: int, end: int,
) -> None:  # fmt: skip
    """Compute columns begin, ..., end - 1 of the matrix rows[row * stride + column], in blocks of `width` columns.

    The result is, for each column in sorted order, the values of the given ranks (one row of `out` each); or if there
    are none, the mean of ranks first, ..., last - 1; or if `nearest` > 0, the mean of as many values nearest to that
    mean. There is one kernel for all of these, because the network takes long to compile.

    If there are mixtures, they are the network's inputs instead of the rows, computed block by block: mixture i is the
    sum of shares[k] times row share_rows[k] over k from share_bounds[i] to share_bounds[i + 1] - 1. Nested mixtures are
    means of ever fewer rows: mixture i is shares[i] times the sum of the rows share_rows[i:]. If most shares are not
    zero, `dense` holds all of them, as `_mix_dense` takes them.
    """
    d = out.size // max(1, ranks.size)
    mixed = share_bounds.size > 1
    height, n = n, share_bounds.size - 1 if mixed else n
    mixtures = np.empty(n * width if mixed else 0, rows.dtype)
    scratch = np.empty(n * width, rows.dtype)
    column = np.empty(n, rows.dtype)
    result = np.empty(width, rows.dtype)
    for start in range(begin, end, width):
        filled = min(width, end - start)
        source, at, step = rows, start, stride
        if filled < width:
            source, at, step = padded(rows, height, stride, start, end, width), 0, width
        if mixed:
            if nested:
                _mix_nested(source, at, step, mixtures, width, shares, share_rows)
            elif not dense.size or not _mix_dense(source, at, step, mixtures, width, dense, dense_rows, common, n):
                _mix(source, at, step, mixtures, width, shares, share_rows, share_bounds)
            source, at, step = mixtures, 0, width
        _network(source, at, step, scratch, width, leaves, merges, wires)
        for value in range(max(1, ranks.size)):
            if ranks.size:
                _select(scratch, width, candidates, bounds[value], bounds[value + 1], result)
            else:
                _mean(scratch, width, order, first, last, result)
                if nearest:
                    _nearest(scratch, width, order, nearest, result)
            target = out[value * d + start : value * d + start + filled]
            not_finite = 0
            for place in range(filled):
                target[place] = result[place]
                not_finite += not abs(result[place]) < np.inf
            if not_finite == 0:
                continue
            for place in range(filled):
                if np.isfinite(result[place]):
                    continue
                nans = _nans(source, n, step, at + place)
                if ranks.size:
                    if ranks[value] >= n - nans:
                        target[place] = np.nan
                    continue
                for rank in range(n):
                    column[rank] = scratch[order[rank] * width + place] if rank < n - nans else np.nan
                target[place] = _mean_of(column, first, last)
                if nearest:
                    left = _window(column, target[place], nearest)
                    target[place] = _mean_of(column, left, left + nearest)


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
def _mix_dense(
    source: Any, at: int, stride: int, mixtures: Any, width: int, shares: Any, share_rows: Any, common: int, count: int
) -> bool:
    """Compute several mixtures of all of share_rows at once: every value is read for up to MIXED of them.

    The first `common` rows have the same share in all mixtures, shares[k]: their sum is computed once. The shares of
    mixture i in the other rows follow, from shares[common + i * (share_rows.size - common)] on. Returns whether all
    mixtures are finite: here a row that is not spoils also mixtures in which it has no share.
    """
    lanes = lane_count(source)
    base, lost = np.zeros(width, source.dtype), np.zeros(lanes, source.dtype)
    others = share_rows[common:]
    tiles = -(-count // MIXED)
    for column in range(0, width, MIXED_VECTORS * lanes):
        if common:
            add_mixtures(
                shares, 0, source, at + column, stride, share_rows, common, width, base, column, base, column, width,
                lost, 1,
            )  # fmt: skip
        first = 0
        for tile in range(tiles):  # of nearly equal size: a tile of one mixture takes almost as long as a full one
            size = (count - first) // (tiles - tile)
            add_mixtures(
                shares, common + first * others.size, source, at + column, stride, others, others.size,
                0 if tile else width, base, column, mixtures, first * width + column, width, lost, size,
            )  # fmt: skip
            first += size
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
def _select(scratch: Any, width: int, candidates: Any, begin: int, end: int, result: Any) -> None:
    step = lane_count(scratch)
    for column in range(0, width, 4 * step):  # four at once: computing the addresses costs as much as comparing
        a = b = c = d = broadcast(scratch, np.inf)
        for pair in range(begin, end):
            left, right = candidates[pair, 0] * width + column, candidates[pair, 1] * width + column
            a = minimum(a, maximum(load(scratch, left), load(scratch, right)))
            b = minimum(b, maximum(load(scratch, left + step), load(scratch, right + step)))
            c = minimum(c, maximum(load(scratch, left + 2 * step), load(scratch, right + 2 * step)))
            d = minimum(d, maximum(load(scratch, left + 3 * step), load(scratch, right + 3 * step)))
        store(result, column, a)
        store(result, column + step, b)
        store(result, column + 2 * step, c)
        store(result, column + 3 * step, d)


@helper
def _mean(scratch: Any, width: int, order: Any, first: int, last: int, result: Any) -> None:
    step = lane_count(scratch)
    divisor = broadcast(scratch, last - first)
    for column in range(0, width, 4 * step):  # four sums at once hide the latency of an addition
        at = order[first] * width + column
        a, b = load(scratch, at), load(scratch, at + step)
        c, d = load(scratch, at + 2 * step), load(scratch, at + 3 * step)
        for rank in range(first + 1, last):
            at = order[rank] * width + column
            a, b = add(a, load(scratch, at)), add(b, load(scratch, at + step))
            c, d = add(c, load(scratch, at + 2 * step)), add(d, load(scratch, at + 3 * step))
        store(result, column, divide(a, divisor))
        store(result, column + step, divide(b, divisor))
        store(result, column + 2 * step, divide(c, divisor))
        store(result, column + 3 * step, divide(d, divisor))


@helper
def _nearest(scratch: Any, width: int, order: Any, size: int, result: Any) -> None:
    """Replace each `result` by the mean of the `size` values nearest to it.

    The window moves right past value i while that is farther from the center than value i + size, which it would gain.
    If it moves past value i, value i is out and value i + size is in: two selects per value, which are added in order
    of rank. For an infinite center such differences are NaN: the result is inf, so the column is computed again.
    """
    n, step = order.size, lane_count(scratch)
    zero, infinity, divisor = broadcast(scratch, 0.0), broadcast(scratch, np.inf), broadcast(scratch, size)
    for column in range(0, width, 2 * step):  # two sums at once hide the latency of their additions
        left, right = load(result, column), load(result, column + step)
        left_total = right_total = zero
        for rank in range(n):
            at = order[rank] * width + column
            left_kept, right_kept = load(scratch, at), load(scratch, at + step)
            if rank < n - size:
                gained = order[rank + size] * width + column
                left_kept = _where_nearer(load(scratch, gained), left, left_kept, zero, left_kept)
                right_kept = _where_nearer(load(scratch, gained + step), right, right_kept, zero, right_kept)
            if rank >= size:
                passed = order[rank - size] * width + column
                left_kept = _where_nearer(load(scratch, at), left, load(scratch, passed), left_kept, zero)
                right_kept = _where_nearer(
                    load(scratch, at + step), right, load(scratch, passed + step), right_kept, zero
                )
            left_total, right_total = add(left_total, left_kept), add(right_total, right_kept)
        store(result, column, _where_finite(left, divide(left_total, divisor), zero, infinity))
        store(result, column + step, _where_finite(right, divide(right_total, divisor), zero, infinity))


@helper
def _where_nearer(above: Any, center: Any, below: Any, then: Any, otherwise: Any) -> Any:
    """Return `then` where the value above the center is nearer to it than the one below, else `otherwise`."""
    return where_less(subtract(above, center), subtract(center, below), then, otherwise)


@helper
def _where_finite(center: Any, value: Any, zero: Any, infinity: Any) -> Any:
    """Return the value where the center is finite, else infinity."""
    return where_less(subtract(zero, center), infinity, where_less(center, infinity, value, infinity), infinity)


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

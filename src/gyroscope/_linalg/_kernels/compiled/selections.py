"""Order statistics of each column, compiled: a block of columns goes through a network of row-wise comparisons.

In the network NaN is +inf, which sorts right but for the difference between the two. So whatever comes out as not
finite is looked at again, column by column.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.blocks import padded
from gyroscope._linalg._kernels.compiled.build import helper, kernel
from gyroscope._linalg._kernels.compiled.lanes import (
    add,
    add_product,
    count,
    divide,
    fill,
    if_less,
    larger,
    load,
    prefetch,
    smaller,
    store,
    subtract,
)
from gyroscope._linalg._kernels.compiled.unrolled import merge_runs, sort_run

SELECT, MEAN, NEAREST, NEAREST_TO_MEAN = 0, 1, 2, 3
"""What is made of a column in order: values of given ranks; the mean of the ranks from `first` to `last` - 1; the mean
of the `last` values nearest to the lower median, or to the mean of the ranks from `first` to n - `first` - 1."""


@kernel
def columns(
    finish: int,
    rows: Any,
    n: int,
    stride: int,
    begin: int,
    end: int,
    width: int,
    leaves: Any,
    merges: Any,
    wires: Any,
    order: Any,
    candidates: Any,
    bounds: Any,
    ranks: Any,
    first: int,
    last: int,
    shares: Any,
    share_rows: Any,
    share_bounds: Any,
    out: Any,
) -> None:
    """Columns begin, ..., end - 1 of the matrix rows[row * stride + column], in blocks of `width` columns.

    `out` has one value per column, or for SELECT one row of values per rank, one row after the other. One kernel for
    all kinds of finish, because the network is what takes long to compile.

    Where there are mixtures, the network's n inputs are not the rows but these, made block by block: number i
    is the sum of shares[k] times row share_rows[k] over k from share_bounds[i] to share_bounds[i + 1] - 1.
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
            _mix(source, at, step, mixtures, width, shares, share_rows, share_bounds)
            source, at, step = mixtures, 0, width
        _network(source, at, step, scratch, width, leaves, merges, wires)
        for value in range(max(1, ranks.size)):
            if finish == SELECT:
                _select(scratch, width, candidates, bounds[value], bounds[value + 1], result)
            elif finish == MEAN:
                _mean(scratch, width, order, first, last, result)
            else:
                if finish == NEAREST:
                    _middle(scratch, width, order, result)
                else:
                    _mean(scratch, width, order, first, n - first, result)
                _nearest(scratch, width, order, last, result)
            target = out[value * d + start : value * d + start + filled]
            strange = 0
            for place in range(filled):
                target[place] = result[place]
                strange += not abs(result[place]) < np.inf
            if strange == 0:
                continue
            for place in range(filled):
                if np.isfinite(result[place]):
                    continue
                nans = _nans(source, n, step, at + place)
                if finish == SELECT:
                    if ranks[value] >= n - nans:
                        target[place] = np.nan
                    continue
                for rank in range(n):
                    column[rank] = scratch[order[rank] * width + place] if rank < n - nans else np.nan
                if finish == MEAN:
                    target[place] = _mean_of(column, first, last)
                else:
                    center = column[(n - 1) // 2] if finish == NEAREST else _mean_of(column, first, n - first)
                    begin_of_window = _window(column, center, last)
                    target[place] = _mean_of(column, begin_of_window, begin_of_window + last)


@helper
def _network(source: Any, at: int, stride: int, scratch: Any, width: int, leaves: Any, merges: Any, wires: Any) -> None:
    """Send a block of source[at + row * stride + column] through a network, to scratch[wire * width + column]."""
    for leaf in range(leaves.shape[0]):
        wire, size = leaves[leaf, 0], leaves[leaf, 1]
        for column in range(0, width, count(source)):
            sort_run(source, at + wire * stride + column, stride, scratch, wire * width + column, width, size)
    for merge in range(merges.shape[0]):
        merge_runs(scratch, width, wires, merges[merge, 0], merges[merge, 1], merges[merge, 2])


@helper
def _mix(
    source: Any, at: int, stride: int, mixtures: Any, width: int, shares: Any, share_rows: Any, share_bounds: Any
) -> None:
    step = count(source)
    for mixture in range(share_bounds.size - 1):
        to = mixture * width
        for column in range(0, width, 4 * step):  # four sums at once, so that none waits for its last addition
            a = b = c = d = fill(source, 0.0)
            for k in range(share_bounds[mixture], share_bounds[mixture + 1]):
                share, place = fill(source, shares[k]), at + share_rows[k] * stride + column
                if mixture == 0:  # which usually has all the rows that the others have: ask for the next block
                    prefetch(source, place + width)
                    prefetch(source, place + width + 2 * step)
                a = add_product(share, load(source, place), a)
                b = add_product(share, load(source, place + step), b)
                c = add_product(share, load(source, place + 2 * step), c)
                d = add_product(share, load(source, place + 3 * step), d)
            store(mixtures, to + column, a)
            store(mixtures, to + column + step, b)
            store(mixtures, to + column + 2 * step, c)
            store(mixtures, to + column + 3 * step, d)


@helper
def _select(scratch: Any, width: int, candidates: Any, begin: int, end: int, result: Any) -> None:
    step = count(scratch)
    for column in range(0, width, 4 * step):  # four at once: to find the places costs as much as to compare
        a = b = c = d = fill(scratch, np.inf)
        for pair in range(begin, end):
            left, right = candidates[pair, 0] * width + column, candidates[pair, 1] * width + column
            a = smaller(a, larger(load(scratch, left), load(scratch, right)))
            b = smaller(b, larger(load(scratch, left + step), load(scratch, right + step)))
            c = smaller(c, larger(load(scratch, left + 2 * step), load(scratch, right + 2 * step)))
            d = smaller(d, larger(load(scratch, left + 3 * step), load(scratch, right + 3 * step)))
        store(result, column, a)
        store(result, column + step, b)
        store(result, column + 2 * step, c)
        store(result, column + 3 * step, d)


@helper
def _mean(scratch: Any, width: int, order: Any, first: int, last: int, result: Any) -> None:
    for column in range(0, width, count(scratch)):
        total = load(scratch, order[first] * width + column)
        for rank in range(first + 1, last):
            total = add(total, load(scratch, order[rank] * width + column))
        store(result, column, divide(total, fill(scratch, last - first)))


@helper
def _middle(scratch: Any, width: int, order: Any, result: Any) -> None:
    for column in range(0, width, count(scratch)):
        store(result, column, load(scratch, order[(order.size - 1) // 2] * width + column))


@helper
def _nearest(scratch: Any, width: int, order: Any, size: int, result: Any) -> None:
    """The mean of the `size` values nearest to the `result`, which it replaces.

    The window moves right past value i while i is farther from there than i + size, the one it would gain. So i is
    out if the window moved past it, and i + size is in if it did: two choices per value, and the sum stays in the order
    of rank. Where the place itself is infinite such differences are NaN: left to the slow path.
    """
    n = order.size
    zero, infinity, divisor = fill(scratch, 0.0), fill(scratch, np.inf), fill(scratch, size)
    for column in range(0, width, count(scratch)):
        middle = load(result, column)
        total = zero
        for rank in range(n):
            value = load(scratch, order[rank] * width + column)
            kept = value
            if rank < n - size:
                gained = load(scratch, order[rank + size] * width + column)
                kept = if_less(subtract(gained, middle), subtract(middle, value), zero, kept)
            if rank >= size:
                passed = load(scratch, order[rank - size] * width + column)
                kept = if_less(subtract(value, middle), subtract(middle, passed), kept, zero)
            total = add(total, kept)
        finite = if_less(middle, infinity, divide(total, divisor), infinity)
        store(result, column, if_less(subtract(zero, middle), infinity, finite, infinity))


@helper
def _nans(rows: Any, n: int, stride: int, column: int) -> int:
    nans = 0
    for row in range(n):
        nans += np.isnan(rows[row * stride + column])
    return nans


@helper
def _window(column: Any, middle: Any, size: int) -> int:
    """Where the window of the `size` values nearest to a place begins, in a column in order."""
    first = 0
    for rank in range(column.size - size):
        first += middle - column[rank] > column[rank + size] - middle
    return first


@helper
def _mean_of(column: Any, first: int, last: int) -> Any:
    total = column[first]
    for rank in range(first + 1, last):
        total += column[rank]
    return total / column.dtype.type(last - first)

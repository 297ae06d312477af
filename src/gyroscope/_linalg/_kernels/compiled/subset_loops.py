"""The search for the rows of smallest diameter, for up to 64 rows: a set of rows is the bits of one integer.

gyroscope.rules.mda explains the search; this takes the same steps in the same order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper, kernel

_ONE = np.uint64(1)


@kernel
def smallest_diameter(table: Any, candidates: Any, size: int, limit: int, chosen: Any) -> bool:
    """Write the lowest `size` rows of smallest diameter, which is one of the candidates; False if steps run out."""
    n = table.shape[0]
    far, steps = np.zeros(n, np.uint64), np.array([limit])
    everyone = ~np.uint64(0) >> np.uint64(64 - n)
    first, last = 0, candidates.size - 1
    while first < last:
        middle = (first + last) // 2
        _join(table, candidates[middle], far)
        if _coverable(far, everyone, n - size, steps):
            last = middle
        else:
            first = middle + 1
        if steps[0] < 0:
            return False
    _join(table, candidates[first], far)
    left, spare, count = everyone, n - size, 0
    for row in range(n):
        if count == size:
            break
        bit = _ONE << np.uint64(row)
        if not left & bit:
            continue
        left &= ~bit
        partners = far[row] & left
        if _coverable(far, left & ~partners, spare - _count(partners), steps):
            chosen[count] = row
            count += 1
            left &= ~partners
            spare -= _count(partners)
        else:
            spare -= 1
        if steps[0] < 0:
            return False
    return True


@helper
def _join(table: Any, limit: float, far: Any) -> None:
    """Write, for each row, the rows that are farther from it than the limit."""
    n = table.shape[0]
    for row in range(n):
        bits = np.uint64(0)
        for other in range(n):
            if table[row, other] > limit:
                bits |= _ONE << np.uint64(other)
        far[row] = bits


@helper
def _coverable(far: Any, rows: Any, spare: int, steps: Any) -> bool:
    """Return whether leaving out at most `spare` of these rows leaves no two that are too far apart.

    Counts `steps` down; below zero there are none left, and the answer means nothing.
    """
    n = far.size
    degrees, ranking = np.empty(n, np.int64), np.empty(n + 1, np.int64)
    later_rows, later_spare, later = np.empty(n + 1, np.uint64), np.empty(n + 1, np.int64), 0
    while True:
        if spare < 0:
            if later == 0:
                return False
            later -= 1  # the last choice was wrong: make the other one
            rows, spare = later_rows[later], later_spare[later]
            continue
        steps[0] -= 1
        if steps[0] < 0:
            return False
        joined, total, top, leaf = np.uint64(0), 0, -1, -1
        for row in range(n):
            degrees[row] = 0
            if rows & (_ONE << np.uint64(row)):
                degrees[row] = _count(far[row] & rows)
                total += degrees[row]
                if degrees[row]:
                    joined |= _ONE << np.uint64(row)
                if top < 0 or degrees[row] > degrees[top]:
                    top = row
                if leaf < 0 and degrees[row] == 1:
                    leaf = row
        rows = joined
        if not rows:
            return True
        if total // 2 > _largest_sum(degrees, spare, ranking):
            spare = -1  # more edges than any `spare` rows touch
        elif degrees[top] <= 2:
            if _cost_of_paths(far, rows) <= spare:
                return True
            spare = -1
        elif leaf >= 0:  # leaving out its partner is at least as good
            rows &= ~far[leaf]
            spare -= 1
        else:
            bit, degree = _ONE << np.uint64(top), degrees[top]
            without = rows & ~bit
            if degree <= spare:  # either all its partners go, or the row itself
                later_rows[later], later_spare[later] = without, spare - 1
                later += 1
                rows, spare = without & ~far[top], spare - degree
            else:
                rows, spare = without, spare - 1


@helper
def _largest_sum(degrees: Any, count: int, ranking: Any) -> int:
    """Return the sum of the `count` largest degrees."""
    ranking[:] = 0
    for degree in degrees:
        ranking[degree] += 1
    total = 0
    for degree in range(degrees.size, 0, -1):
        taken = min(count, ranking[degree])
        total += taken * degree
        count -= taken
    return total


@helper
def _cost_of_paths(far: Any, rows: Any) -> int:
    """Return how many rows must go if no row has more than two edges: half of each path or cycle."""
    cost = 0
    while rows:
        piece, grown = np.uint64(0), rows & (~rows + _ONE)
        while grown != piece:
            piece = grown
            for row in range(far.size):
                if piece & (_ONE << np.uint64(row)):
                    grown |= far[row] & rows
        ends = 0
        for row in range(far.size):
            if piece & (_ONE << np.uint64(row)):
                ends += _count(far[row] & piece)
        length = _count(piece)
        cost += (length + 1) // 2 if ends // 2 == length else length // 2
        rows &= ~piece
    return cost


@helper
def _count(rows: Any) -> int:
    """Return how many bits are set."""
    count = 0
    while rows:
        rows &= rows - _ONE
        count += 1
    return count

"""The largest eigenvalue of a symmetric matrix of some 50 rows, with its vector: LAPACK finds all of them.

The matrix becomes tridiagonal by Householder's reflections; a search by nine parts finds the largest eigenvalue of
that, inverse iteration its vector, and the reflections bring it back. Matrices are flat, and their rows are padded with
zeros to whole vectors, so that no loop has a rest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper, kernel
from gyroscope._linalg._kernels.compiled.lanes import (
    added_lanes,
    broadcast,
    divide,
    lane_count,
    load,
    multiply_add,
    store,
    subtract,
    where_less,
)

_NOTHING = 2.0**-80
"""Elements that are smaller than this part of the largest one count as zero."""
_SOLVES = 3
"""Steps of inverse iteration: one is usually enough."""
_POINTS = 8
"""Places of one step of the search for an eigenvalue: the processor divides for all of them at once."""


@kernel
def top_eigenpair(matrix: Any, vector: Any) -> float:
    """Return the largest eigenvalue of a symmetric float64 matrix, and write its unit vector."""
    n = matrix.shape[0]
    width = _width(n)
    flat = np.zeros(n * width)
    for i in range(n):
        flat[i * width : i * width + n] = matrix[i]
    return _top_eigenpair(flat, n, width, vector)


@kernel
def scatters(table: Any, subsets: Any, values: Any, begin: int, end: int) -> None:
    """Write the largest eigenvalue of the scatter of subsets begin, ..., end - 1 to values.

    subsets: (m, k) row numbers. The table has the squared distances between all rows.
    """
    size = subsets.shape[1]
    width = _width(size)
    matrix, shares = np.zeros(size * width), np.full(size, 1 / size)
    diagonal, beside, scales = np.empty(size), np.empty(size), np.empty(size)
    for which in range(begin, end):
        exponent = _products(table, subsets[which], shares, matrix, width)
        largest = matrix[0]
        if size > 1:
            _reduce(matrix, size, width, diagonal, beside, scales)
            largest = _largest(diagonal, beside)
        values[which] = math.ldexp(max(largest, 0.0), exponent)


@kernel
def spread(table: Any, among: Any, shares: Any, outlyingness: Any) -> float:
    """Return the variance of some rows along the direction of the largest one, and write their `outlyingness`.

    among: (k,) row numbers, whose distances in the table are finite; shares: (k,), all positive.
    """
    k = among.size
    width = _width(k)
    matrix = np.zeros(k * width)
    exponent = _products(table, among, shares, matrix, width)
    products, roots, vector = matrix.copy(), np.sqrt(shares), np.empty(k)
    for i in range(k):
        for j in range(k):
            matrix[i * width + j] = products[i * width + j] * roots[i] * roots[j]
    largest = _top_eigenpair(matrix, k, width, vector)
    outlyingness[:] = 0.0
    if largest <= 0:
        return 0.0
    for j in range(k):  # the products are symmetric
        factor = roots[j] * vector[j]
        for i in range(k):
            outlyingness[i] += products[j * width + i] * factor
    most = 0.0
    for i in range(k):  # squared, because the sign of an eigenvector is arbitrary
        vector[i] = outlyingness[i] * outlyingness[i]
        most = max(most, vector[i])
    for i in range(k):  # equal rows deviate equally, to the last bit
        first = 0
        while table[among[i], among[first]] != 0.0:
            first += 1
        outlyingness[i] = vector[first] / most
    return math.ldexp(largest, exponent)


@helper
def _width(n: int) -> int:
    """Return the length of a padded row."""
    return -(-n // 8) * 8


@helper
def _products(table: Any, among: Any, shares: Any, matrix: Any, width: int) -> int:
    """Write the inner products of some rows' deviations from their weighted mean, divided by a power of two.

    Returns:
        The exponent of that power. It changes no digit: the result is the same at every scale, and nothing overflows.
    """
    k, tops = among.size, np.zeros(among.size)
    for i in range(k):
        line = table[among[i]]
        for j in range(k):
            value = line[among[j]]
            matrix[i * width + j] = value
            tops[j] = value if value > tops[j] else tops[j]
    _, exponent = math.frexp(tops.max())
    half = -exponent // 2
    one, other = math.ldexp(1.0, half), math.ldexp(1.0, -exponent - half)  # their product may be infinite
    means = np.zeros(k)
    for i in range(k):
        for j in range(k):
            matrix[i * width + j] = matrix[i * width + j] * one * other
        for j in range(k):
            means[j] += shares[i] * matrix[i * width + j]
    total = 0.0
    for i in range(k):
        total += shares[i] * means[i]
    for i in range(k):
        here = means[i]
        for j in range(k):
            matrix[i * width + j] = (here + means[j] - matrix[i * width + j] - total) / 2
    return exponent


@helper
def _top_eigenpair(matrix: Any, n: int, width: int, vector: Any) -> float:
    """Return the largest eigenvalue of a padded matrix, and write its unit vector. Destroys the matrix."""
    if n == 1:
        vector[0] = 1.0
        return matrix[0]  # type: ignore[no-any-return]
    diagonal, beside, scales = np.empty(n), np.empty(n), np.empty(n)
    _reduce(matrix, n, width, diagonal, beside, scales)
    largest = _largest(diagonal, beside)
    whole = np.zeros(width)
    _inverse_iteration(diagonal, beside, largest, whole[:n])
    lanes = lane_count(matrix)
    for k in range(n - 3, -1, -1):
        if scales[k] == 0.0:
            continue
        start = (k + 1) // lanes * lanes
        product = broadcast(matrix, 0.0)
        for j in range(start, width, lanes):
            product = multiply_add(load(matrix, k * width + j), load(whole, j), product)
        factor = broadcast(matrix, -scales[k] * added_lanes(product))
        for j in range(start, width, lanes):
            store(whole, j, multiply_add(factor, load(matrix, k * width + j), load(whole, j)))
    vector[:] = whole[:n]
    return largest


@helper
def _reduce(matrix: Any, n: int, width: int, diagonal: Any, beside: Any, scales: Any) -> None:
    """Make a matrix tridiagonal. Row k keeps the vector of reflection k; scales[k] is 2 by its squared length.

    Reflection k changes the rows after k: matrix[i] -= v[i] * w + w[i] * v. The product of the next vector with a row
    is computed as soon as that row has changed.
    """
    lanes, zero = lane_count(matrix), broadcast(matrix, 0.0)
    v, w, following, sums = np.zeros(width), np.zeros(width), np.zeros(width), np.zeros(width)
    largest = 0.0
    for element in matrix:
        largest = max(largest, abs(element))
    # Far less than a rounding of the largest element, and the inverse of its square may be no number.
    nothing = (largest * _NOTHING) ** 2
    beside[n - 1] = 0.0
    for k in range(n):  # the first vector has not been subtracted yet: v and w are zero
        at, start = k * width, k // lanes * lanes
        one, other = broadcast(matrix, -v[k]), broadcast(matrix, -w[k])
        for j in range(start, width, lanes):
            changed = multiply_add(one, load(w, j), load(matrix, at + j))
            store(matrix, at + j, multiply_add(other, load(v, j), changed))
        diagonal[k] = matrix[at + k]
        scales[k] = 0.0
        if k == n - 1:
            return
        for j in range(start, k + 1):
            matrix[at + j] = 0.0
        beside[k] = first = matrix[at + k + 1]
        rest = 0.0
        if k < n - 2:
            matrix[at + k + 1] = 0.0
            squares = zero
            for j in range(start, width, lanes):
                value = load(matrix, at + j)
                squares = multiply_add(value, value, squares)
            rest = added_lanes(squares)
        if rest > nothing:
            length = math.sqrt(first * first + rest)
            beside[k] = -length if first > 0 else length
            matrix[at + k + 1] = first - beside[k]
            scales[k] = 2 / (matrix[at + k + 1] * matrix[at + k + 1] + rest)
        start = (k + 1) // lanes * lanes
        for j in range(start, width, lanes):
            store(following, j, load(matrix, at + j) if scales[k] != 0.0 else zero)
        for i in range(k + 1, n):
            one, other, product = broadcast(matrix, -v[i]), broadcast(matrix, -w[i]), zero
            for j in range(start, width, lanes):
                changed = multiply_add(one, load(w, j), load(matrix, i * width + j))
                changed = multiply_add(other, load(v, j), changed)
                store(matrix, i * width + j, changed)
                product = multiply_add(changed, load(following, j), product)
            sums[i] = scales[k] * added_lanes(product)
        for j in range(start, k + 1):
            sums[j] = 0.0
        # w = scale * A v, less the part along v that both halves of the update would count
        along = zero
        for j in range(start, width, lanes):
            along = multiply_add(load(following, j), load(sums, j), along)
        half = broadcast(matrix, -scales[k] / 2 * added_lanes(along))
        for j in range(start, width, lanes):
            value = load(following, j)
            store(w, j, multiply_add(half, value, load(sums, j)))
            store(v, j, value)


@helper
def _largest(diagonal: Any, beside: Any) -> float:
    """Return the largest eigenvalue of a tridiagonal matrix, found until no number is between the bounds."""
    n = diagonal.size
    low, high = diagonal[0], -np.inf
    squares = np.empty(n)
    for i in range(n):
        low = max(low, diagonal[i])  # an eigenvalue is at least as large as any diagonal element
        high = max(high, diagonal[i] + abs(beside[i]) + (abs(beside[i - 1]) if i > 0 else 0.0))
        squares[i] = beside[i] * beside[i]
    lanes, zero, one = lane_count(diagonal), broadcast(diagonal, 0.0), broadcast(diagonal, 1.0)
    points, found = np.empty(_POINTS), np.empty(_POINTS)
    while True:
        step = (high - low) / (_POINTS + 1)
        for i in range(_POINTS):
            points[i] = low + (i + 1) * step
        if not (low < points[0] and points[_POINTS - 1] < high):
            break
        left, right = load(points, 0), load(points, lanes)
        first = broadcast(diagonal, diagonal[0])
        pivots, others = subtract(first, left), subtract(first, right)
        # zero as long as all pivots are negative: then all eigenvalues are below the point
        here, there = where_less(pivots, zero, zero, one), where_less(others, zero, zero, one)
        for i in range(1, n):
            value, square = broadcast(diagonal, diagonal[i]), broadcast(diagonal, squares[i - 1])
            pivots = subtract(subtract(value, left), divide(square, pivots))
            others = subtract(subtract(value, right), divide(square, others))
            here, there = where_less(pivots, zero, here, one), where_less(others, zero, there, one)
        store(found, 0, here)
        store(found, lanes, there)
        for i in range(_POINTS - 1, -1, -1):
            if found[i] != 0.0:
                low = points[i]
                break
            high = points[i]
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:
            return high
        if _all_below(diagonal, squares, middle):
            high = middle
        else:
            low = middle


@helper
def _all_below(diagonal: Any, squares: Any, value: float) -> bool:
    """Return whether all eigenvalues of a tridiagonal matrix are below a value: then all pivots are negative."""
    pivot = diagonal[0] - value
    for i in range(1, diagonal.size):
        if not pivot < 0:
            return False
        pivot = diagonal[i] - value - squares[i - 1] / pivot
    return bool(pivot < 0)


@helper
def _inverse_iteration(diagonal: Any, beside: Any, value: float, vector: Any) -> None:
    """Write the unit vector of an eigenvalue of a tridiagonal matrix: solve (T - value) x = b, by turns."""
    n = diagonal.size
    smallest = 0.0
    for i in range(n):
        smallest = max(smallest, abs(diagonal[i]) + abs(beside[i]))
    smallest *= 2.0**-52
    if smallest == 0.0:
        smallest = 2.0**-1000
    pivots, first, second, factors = np.empty(n), np.zeros(n), np.zeros(n), np.zeros(n)
    swapped = np.zeros(n, np.bool_)
    pivot, right = diagonal[0] - value, beside[0]
    for i in range(n - 1):  # elimination with row exchanges
        below, middle, last = beside[i], diagonal[i + 1] - value, beside[i + 1] if i + 2 < n else 0.0
        if abs(pivot) >= abs(below):
            if abs(pivot) < smallest:
                pivot = smallest
            factors[i] = below / pivot
            pivots[i], first[i], second[i] = pivot, right, 0.0
            pivot, right = middle - factors[i] * right, last
        else:
            swapped[i] = True
            factors[i] = pivot / below
            pivots[i], first[i], second[i] = below, middle, last
            pivot, right = right - factors[i] * middle, -factors[i] * last
    pivots[n - 1] = pivot if abs(pivot) >= smallest else smallest
    for i in range(n):
        vector[i] = 1.0 + 0.5 * (i * 0.618033988749895 % 1.0)  # no symmetry that an eigenvector could be orthogonal to
    for _ in range(_SOLVES):
        for i in range(n - 1):
            if swapped[i]:
                vector[i], vector[i + 1] = vector[i + 1], vector[i]
            vector[i + 1] -= factors[i] * vector[i]
        largest = 0.0
        for i in range(n - 1, -1, -1):
            value_here = vector[i]
            if i + 1 < n:
                value_here -= first[i] * vector[i + 1]
            if i + 2 < n:
                value_here -= second[i] * vector[i + 2]
            vector[i] = value_here / pivots[i]
            largest = max(largest, abs(vector[i]))
        square = 0.0
        for i in range(n):
            vector[i] /= largest
            square += vector[i] * vector[i]
        for i in range(n):
            vector[i] /= np.sqrt(square)

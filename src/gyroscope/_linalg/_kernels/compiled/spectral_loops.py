"""The largest eigenvalue of a symmetric matrix of some 50 rows, with its vector: LAPACK finds all of them.

The matrix becomes tridiagonal by Householder's reflections; bisection finds the largest eigenvalue of that, inverse
iteration its vector, and the reflections bring it back. Every loop that takes long adds to a whole row, so that the
compiler can use vector instructions without changing the order of any sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper, kernel

_NOTHING = 2.0**-80
"""Elements that are smaller than this part of the largest one count as zero."""
_SOLVES = 3
"""Steps of inverse iteration: one is usually enough."""


@kernel
def top_eigenpair(matrix: Any, vector: Any) -> float:
    """Return the largest eigenvalue of a symmetric float64 matrix, and write its unit vector. Destroys the matrix."""
    n = matrix.shape[0]
    if n == 1:
        vector[0] = 1.0
        return matrix[0, 0]  # type: ignore[no-any-return]
    diagonal, beside, scales = np.empty(n), np.zeros(n), np.zeros(n)
    _reduce(matrix, diagonal, beside, scales)
    largest = _largest(diagonal, beside)
    _inverse_iteration(diagonal, beside, largest, vector)
    for k in range(n - 3, -1, -1):
        product = 0.0
        for i in range(k + 1, n):
            product += matrix[i, k] * vector[i]
        product *= scales[k]
        for i in range(k + 1, n):
            vector[i] -= product * matrix[i, k]
    return largest


@helper
def _reduce(matrix: Any, diagonal: Any, beside: Any, scales: Any) -> None:
    """Make a matrix tridiagonal. Column k keeps the vector of reflection k; scales[k] is 2 by its squared length."""
    n = matrix.shape[0]
    v, w = np.empty(n), np.empty(n)
    # Far less than a rounding of the largest element, and the inverse of its square may be no number.
    nothing = (np.abs(matrix).max() * _NOTHING) ** 2
    for k in range(n - 2):
        diagonal[k] = matrix[k, k]
        rest = 0.0
        for i in range(k + 2, n):
            rest += matrix[i, k] * matrix[i, k]
        first = matrix[k + 1, k]
        if rest <= nothing:
            beside[k] = first
            continue
        length = np.sqrt(first * first + rest)
        beside[k] = -length if first > 0 else length
        matrix[k + 1, k] = first - beside[k]
        scales[k] = 2 / (matrix[k + 1, k] * matrix[k + 1, k] + rest)
        for i in range(k + 1, n):
            v[i], w[i] = matrix[i, k], 0.0
        for i in range(k + 1, n):
            factor = scales[k] * v[i]
            for j in range(k + 1, n):
                w[j] += factor * matrix[i, j]
        product = 0.0
        for i in range(k + 1, n):
            product += v[i] * w[i]
        product *= scales[k] / 2
        for i in range(k + 1, n):
            w[i] -= product * v[i]
        for i in range(k + 1, n):
            one, other = v[i], w[i]
            for j in range(k + 1, n):
                matrix[i, j] -= one * w[j] + other * v[j]
    diagonal[n - 2], diagonal[n - 1], beside[n - 2] = matrix[n - 2, n - 2], matrix[n - 1, n - 1], matrix[n - 1, n - 2]


@helper
def _largest(diagonal: Any, beside: Any) -> float:
    """Return the largest eigenvalue of a tridiagonal matrix, by bisection until no number is between the bounds."""
    n = diagonal.size
    low, high = diagonal[0], -np.inf
    for i in range(n):
        low = max(low, diagonal[i])  # an eigenvalue is at least as large as any diagonal element
        high = max(high, diagonal[i] + abs(beside[i]) + (abs(beside[i - 1]) if i > 0 else 0.0))
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:
            return high
        pivot, above = diagonal[0] - middle, diagonal[0] < middle
        for i in range(1, n):
            if not above:
                break
            pivot = diagonal[i] - middle - beside[i - 1] * beside[i - 1] / pivot
            above = pivot < 0
        if above:  # all pivots are negative: all eigenvalues are below the middle
            high = middle
        else:
            low = middle


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

"""Distances between mixed rows, from the table of distances between the rows themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper, kernel


@kernel
def mixed_distances(known: Any, shares: Any, out: Any, begin: int, end: int) -> None:
    """Write the squared distances of mixed rows begin, ..., end - 1 from all later ones; the diagonal is zero.

    Only rows in which two mixed rows have different shares count. Neighbours share most of theirs, so these are few.
    """
    m, n = shares.shape
    places, weights, sums = np.empty(n, np.int64), np.empty(n), np.empty(n)
    for i in range(begin, end):
        out[i, i] = 0.0
        for j in range(i + 1, m):
            count = 0
            for row in range(n):
                weight = shares[i, row] - shares[j, row]
                places[count], weights[count] = row, weight
                count += weight != 0.0
            if 2 * count > n:
                total = _of_all(known, shares, i, j, sums)
            else:
                total = _of_some(known, places[:count], weights, sums)
            out[i, j] = out[j, i] = max(total, 0.0)


@helper
def _of_some(known: Any, places: Any, weights: Any, sums: Any) -> float:
    """Return minus the sum of the weights of each pair times its squared distance."""
    for a in range(places.size):
        sums[a] = 0.0
    for b in range(places.size):
        line, weight = places[b], weights[b]
        for a in range(b + 1, places.size):
            sums[a] += weight * known[line, places[a]]
    total = 0.0
    for a in range(places.size):
        total -= weights[a] * sums[a]
    return total


@helper
def _of_all(known: Any, shares: Any, i: int, j: int, sums: Any) -> float:
    """Return the same, from whole lines of the table: more products, but several at once."""
    n = shares.shape[1]
    sums[:] = 0.0
    for row in range(n):
        weight = shares[i, row] - shares[j, row]
        if weight != 0.0:
            for other in range(n):
                sums[other] += weight * known[row, other]
    total = 0.0
    for row in range(n):
        total -= (shares[i, row] - shares[j, row]) * sums[row]
    return total / 2

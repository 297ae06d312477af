"""Distances between mixed rows, from the table of distances between the rows themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import kernel


@kernel
def mixed_distances(table: Any, shares: Any, out: Any) -> None:
    """Write the squared distances between the mixed rows; an infinite distance counts as 0, for it must not matter."""
    m, n = shares.shape
    known = np.where(table < np.inf, table, 0.0)
    weights, product = np.empty(n), np.empty(n)
    for i in range(m):
        out[i, i] = 0.0
        for j in range(i + 1, m):
            product[:] = 0.0
            for row in range(n):
                weights[row] = shares[i, row] - shares[j, row]
                if weights[row] != 0.0:
                    for other in range(n):
                        product[other] += weights[row] * known[row, other]
            total = 0.0
            for row in range(n):
                total -= weights[row] * product[row]
            out[i, j] = out[j, i] = max(total / 2, 0.0)

"""Distances between mixed rows, from the table of distances between the rows themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import kernel


@kernel
def mixed_distances(table: Any, shares: Any, out: Any) -> None:
    """Write the squared distances between the mixed rows; an infinite distance counts as 0, for it must not matter."""
    m, n = shares.shape
    which, weight = np.empty(n, np.int64), np.empty(n)
    for i in range(m):
        out[i, i] = 0.0
        for j in range(i + 1, m):
            count = 0
            for k in range(n):
                if shares[i, k] != shares[j, k]:
                    which[count], weight[count] = k, shares[i, k] - shares[j, k]
                    count += 1
            total = 0.0
            for a in range(count):
                part, row = 0.0, which[a]
                for b in range(a):
                    distance = table[row, which[b]]
                    part += weight[b] * (distance if distance < np.inf else 0.0)
                total -= weight[a] * part
            out[i, j] = out[j, i] = max(total, 0.0)

"""Blocks of columns: what the kernels do with the last one, which is not full."""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper


@helper
def padded(rows: Any, n: int, stride: int, start: int, end: int, width: int) -> Any:
    """The columns start, ..., end - 1 of rows[row * stride + column] in a block `width` columns wide; beyond, zeros.

    A caller reads from this block or from the matrix in one and the same statement: numba compiles a call anew for
    each constant that it sees among the arguments.
    """
    block = np.zeros(n * width, rows.dtype)
    for row in range(n):
        for column in range(end - start):
            block[row * width + column] = rows[row * stride + start + column]
    return block

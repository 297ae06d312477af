"""The momentum recursion, compiled: whether a row's sums are finite is known before the first one is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper, kernel
from gyroscope._linalg._kernels.compiled.lanes import add, add_product, count, fill, load, multiply, store


@kernel
def accumulate_rows(
    memory: Any, stride: int, gradient: Any, gradient_stride: int, d: int, begin: int, end: int, mu: float, gain: float,
    finite: Any,
) -> None:  # fmt: skip
    """memory[row] = mu * memory[row] + gain * gradient[row] for rows begin, ..., end - 1.

    Row i starts at memory[i * stride] and gradient[i * gradient_stride]. finite[row] tells whether all sums of the row
    are finite; where they are not, the row keeps its values. The second pass finds most of the row in the cache.
    """
    for row in range(begin, end):
        at, other = row * stride, row * gradient_stride
        finite[row] = _is_finite(memory, at, gradient, other, d, mu, gain)
        if finite[row]:
            _write(memory, at, gradient, other, d, mu, gain)


@kernel
def check_sums(
    memory: Any, gradient: Any, bounds: Any, begin: int, end: int, mu: float, gain: float, finite: Any
) -> None:
    """For pieces begin, ..., end - 1 of one row, which start at the bounds: whether all their sums are finite."""
    for piece in range(begin, end):
        at, width = bounds[piece], bounds[piece + 1] - bounds[piece]
        finite[piece] = _is_finite(memory, at, gradient, at, width, mu, gain)


@kernel
def write_sums(memory: Any, gradient: Any, begin: int, end: int, mu: float, gain: float) -> None:
    """memory[i] = mu * memory[i] + gain * gradient[i] for i from begin to end - 1."""
    _write(memory, begin, gradient, begin, end - begin, mu, gain)


@helper
def _is_finite(memory: Any, at: int, gradient: Any, other: int, width: int, mu: float, gain: float) -> bool:
    """Whether the sums of `width` values from memory[at] and gradient[other] on are finite."""
    lanes, zero = count(memory), fill(memory, 0.0)
    whole = width - width % (2 * lanes)
    # Zero times a sum is zero, and NaN if the sum is NaN or infinite. Two totals, so that neither waits for the other.
    even = odd = zero
    for k in range(0, whole, 2 * lanes):
        even = add_product(_sum(memory, at + k, gradient, other + k, mu, gain), zero, even)
        odd = add_product(_sum(memory, at + k + lanes, gradient, other + k + lanes, mu, gain), zero, odd)
    if whole < width:
        left, right = _rest(memory, at + whole, width - whole), _rest(gradient, other + whole, width - whole)
        even = add_product(_sum(left, 0, right, 0, mu, gain), zero, even)
        odd = add_product(_sum(left, lanes, right, lanes, mu, gain), zero, odd)
    total = np.empty(lanes, memory.dtype)
    store(total, 0, add(even, odd))
    return bool(total.sum() == 0)


@helper
def _write(memory: Any, at: int, gradient: Any, other: int, width: int, mu: float, gain: float) -> None:
    """Write these sums to memory. The last ones come first: they were the last to be checked, so they are still in the
    first-level cache."""
    lanes = count(memory)
    whole = width - width % (2 * lanes)
    if whole < width:
        left, right = _rest(memory, at + whole, width - whole), _rest(gradient, other + whole, width - whole)
        store(left, 0, _sum(left, 0, right, 0, mu, gain))
        store(left, lanes, _sum(left, lanes, right, lanes, mu, gain))
        for k in range(width - whole):
            memory[at + whole + k] = left[k]
    for k in range(whole - 2 * lanes, -1, -2 * lanes):
        store(memory, at + k, _sum(memory, at + k, gradient, other + k, mu, gain))
        store(memory, at + k + lanes, _sum(memory, at + k + lanes, gradient, other + k + lanes, mu, gain))


@helper
def _sum(memory: Any, at: int, gradient: Any, other: int, mu: float, gain: float) -> Any:
    return add_product(load(memory, at), fill(memory, mu), multiply(load(gradient, other), fill(memory, gain)))


@helper
def _rest(values: Any, at: int, size: int) -> Any:
    """The last values of a row and zeros: two full vectors, so that they are rounded like all others."""
    rest = np.zeros(2 * count(values), values.dtype)
    rest[:size] = values[at : at + size]
    return rest

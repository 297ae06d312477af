"""Copying, compiled: what is to be known of the values is found out on the way."""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import kernel
from gyroscope._linalg._kernels.compiled.lanes import add_product, count, fill, load, store


@kernel
def copy_finite(source: Any, target: Any) -> bool:
    """Copy a vector to another of its length and type; whether all of it is finite.

    Zero times a value is zero, and NaN if the value is NaN or infinite: so is the sum of such products.
    """
    lanes, zero = count(source), fill(source, source.dtype.type(0))
    # Two sums, so that one need not wait for the other.
    even, odd = zero, zero
    whole = source.size - source.size % (2 * lanes)
    for at in range(0, whole, 2 * lanes):
        left, right = load(source, at), load(source, at + lanes)
        store(target, at, left)
        store(target, at + lanes, right)
        even, odd = add_product(left, zero, even), add_product(right, zero, odd)
    places = np.empty(2 * lanes, source.dtype)
    store(places, 0, even)
    store(places, lanes, odd)
    total = places.sum()
    for at in range(whole, source.size):
        value = source[at]
        target[at] = value
        total += 0 * value
    return bool(total == 0)

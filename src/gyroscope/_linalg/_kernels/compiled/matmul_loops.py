"""Matrix products for outputs about a hundred columns wide, where a BLAS library made for all shapes is slower.

The sums of a tile of up to ROWS x 2 vectors stay in registers over the whole depth of the product and are written once.
So every element is summed in order of depth, whatever is computed beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper, kernel, numba
from gyroscope._linalg._kernels.compiled.lanes import copy, lane_count, load, pointer, prefetch, store, where_positive
from gyroscope._linalg._kernels.compiled.row_loops import shift_and_clip_row
from gyroscope._linalg._kernels.compiled.unrolled import ROWS, add_products

_SAMPLES = 4 * ROWS
"""Samples that go through all weights before the next ones do, so that their values stay in the cache."""


@kernel
def rows_by_worker(
    grad_outputs: Any, inputs: Any, indices: Any, shapes: Any, like: Any, rows: Any, stride: int, d: int, b: int,
    shift: Any, limit: float, begin: int, end: int,
) -> None:  # fmt: skip
    """Write the gradients of all layers, one after the other, to rows[worker * stride] for workers begin, ..., end - 1.

    While the row is in the cache, `shift_and_clip_row` shifts and clips it.

    Args:
        grad_outputs: per layer, the address of (workers * b, m) values of the type of `like`.
        inputs: per layer, the address of (workers * b, n) values, or of a matrix with n columns that holds them.
        indices: per layer, 0, or the address of workers * b int64: which rows of that matrix are the inputs.
        shapes: (layers, 4): m, n, whether there is a bias, and the number of values at the address of the inputs.
    """
    places = np.empty(b, np.int64)
    for worker in range(begin, end):
        to, first = worker * stride, worker * b
        for layer in range(shapes.shape[0]):
            m, n = shapes[layer, 0], shapes[layer, 1]
            left = numba.carray(pointer(grad_outputs[layer] + first * m * like.itemsize), (b * m,), like.dtype)
            right = numba.carray(pointer(inputs[layer]), (shapes[layer, 3],), like.dtype)
            index = numba.carray(pointer(indices[layer]), (first + b,), np.int64)
            for sample in range(b):
                places[sample] = n * (index[first + sample] if indices[layer] else first + sample)
            _products(left, right, places, rows, to, b, m, n)
            to += m * n
            if shapes[layer, 2]:
                _sums(left, rows, to, b, m)
                to += m
        shift_and_clip_row(rows, worker * stride, d, shift, limit)


@helper
def _products(grad_output: Any, inputs: Any, places: Any, out: Any, at: int, b: int, m: int, n: int) -> None:
    """out[at + i * n + j] = the sum over b samples of grad_output[sample, i] * inputs[places[sample] + j].

    A strip of columns, two vectors wide, is copied from all samples first: all m outputs read it from the cache.
    """
    width = 2 * lane_count(inputs)
    zeros, strip = np.zeros(width, inputs.dtype), np.zeros(b * width, inputs.dtype)
    for column in range(0, n, width):
        target, to, target_step = out, at + column, n
        if column + width > n:
            target, to, target_step = np.empty(m * width, inputs.dtype), 0, width
        for sample in range(b):
            here, there = places[sample] + column, sample * width
            if column + width > n:
                copy(inputs, here, strip, there, n - column)
                continue
            store(strip, there, load(inputs, here))
            store(strip, there + width // 2, load(inputs, here + width // 2))
            prefetch(inputs, here + width)
        for row in range(0, m, ROWS):
            add_products(
                grad_output, row, 1, m, strip, 0, width, None, b, zeros, 0,
                target, to + row * target_step, target_step, 2 * (min(ROWS, m - row) - 1) + 1,
            )  # fmt: skip
        if column + width > n:
            for row in range(m):
                for rest in range(n - column):
                    out[at + row * n + column + rest] = target[row * width + rest]


@helper
def _sums(grad_output: Any, out: Any, at: int, b: int, m: int) -> None:
    """out[at + i] = the sum over b samples of grad_output[sample, i]."""
    copy(grad_output, 0, out, at, m)
    for sample in range(1, b):
        for i in range(m):
            out[at + i] += grad_output[sample * m + i]


@kernel
def linear(inputs: Any, index: Any, panels: Any, bias: Any, out: Any, n: int, m: int, begin: int, end: int) -> None:
    """out[sample, i] = bias[i] + the sum over j of inputs[sample, j] * weight[i, j], for samples begin, ..., end - 1.

    Args:
        index: which row of the inputs each sample is; empty if they are the rows in order.
        panels: the weights in groups of two vectors of outputs, each as (n, outputs), padded with zeros.
        bias: padded likewise.
    """
    for first in range(begin, end, _SAMPLES):
        _linear(inputs, index, panels, bias, out, first * m, first, end, n, m)


@helper
def _linear(
    inputs: Any, index: Any, panels: Any, bias: Any, out: Any, at: int, first: int, end: int, n: int, m: int
) -> None:
    """Compute `linear` for _SAMPLES samples (or as many as are left) to out[at], and prefetch the next ones."""
    width = 2 * lane_count(inputs)
    narrow, places = np.empty(ROWS * width, inputs.dtype), np.empty(2 * _SAMPLES, np.int64)
    last = min(first + _SAMPLES, end)
    for number in range(2 * _SAMPLES):
        sample = min(first + number, end - 1)
        places[number] = n * (index[sample] if index.size else sample)
    following = last - first  # the next sample to prefetch: one with each tile
    for column in range(0, m, width):
        vectors = 1 if m - column <= width // 2 else 2
        for sample in range(first, last, ROWS):
            height = min(ROWS, last - sample)
            target, to, target_step = out, at + (sample - first) * m + column, m
            if column + vectors * (width // 2) > m:
                target, to, target_step = narrow, 0, width
            add_products(
                inputs, sample - first, places, 1, panels, column * n, width, places[following], n, bias, column,
                target, to, target_step, 2 * (height - 1) + vectors - 1,
            )  # fmt: skip
            following = min(following + 1, 2 * _SAMPLES - 1)
            if column + vectors * (width // 2) > m:
                for row in range(height):
                    for rest in range(m - column):
                        out[at + (sample - first + row) * m + column + rest] = narrow[row * width + rest]


@kernel
def classify(
    inputs: Any, index: Any, panels: Any, bias: Any, last_panels: Any, last_bias: Any, back_panels: Any, no_bias: Any,
    targets: Any, shares: Any, losses: Any, hidden: Any, grad_preactivation: Any, grad_logits: Any, n: int, m: int,
    c: int, ignored: int, begin: int, end: int,
) -> None:  # fmt: skip
    """Pass samples begin, ..., end - 1 through linear layer, ReLU, linear layer and cross entropy, and back.

    The gradients are those of the loss times the share of the sample's worker. `back_panels` are the transposed weights
    of the last layer. A sample whose target is `ignored` has no loss and no gradient.
    """
    b, start = targets.size // shares.size, np.int64(0)  # numba would compile `_linear` again for a literal 0
    block = np.empty(_SAMPLES * m, inputs.dtype)
    for first in range(begin, end, _SAMPLES):
        last = min(first + _SAMPLES, end)
        _linear(inputs, index, panels, bias, block, start, first, end, n, m)
        _rectify(block, start, block, hidden, first * m, last * m)
        _linear(hidden, index[:0], last_panels, last_bias, grad_logits, first * c, first, last, m, c)
        for sample in range(first, last):
            losses[sample] = _cross_entropy(grad_logits, sample * c, c, targets[sample], ignored, shares[sample // b])
        _linear(grad_logits, index[:0], back_panels, no_bias, block, start, first, last, c, m)
        _rectify(hidden, first * m, block, grad_preactivation, first * m, last * m)


@helper
def _rectify(values: Any, at: int, of: Any, out: Any, begin: int, end: int) -> None:
    """Copy the first values of `of` to out[begin], ..., out[end - 1], but zeros where values[at + k] <= 0.

    Not in place: LLVM turns a select in place into a masked store, which takes ten times as long on some CPUs.
    """
    whole = (end - begin) // lane_count(values) * lane_count(values)
    for k in range(0, whole, lane_count(values)):
        store(out, begin + k, where_positive(load(values, at + k), load(of, k)))
    for k in range(whole, end - begin):
        out[begin + k] = of[k] if not values[at + k] <= 0 else 0


@helper
def _cross_entropy(logits: Any, at: int, c: int, target: int, ignored: int, share: float) -> float:
    """Return the loss of the c logits at logits[at], and replace them by its gradient times the share."""
    if target == ignored:
        logits[at : at + c] = 0
        return 0.0
    top = logits[at]
    for k in range(at + 1, at + c):
        top = max(top, logits[k])
    own = logits[at + target] - top
    total = logits.dtype.type(0)
    for k in range(at, at + c):
        logits[k] = np.exp(logits[k] - top)
        total += logits[k]
    for k in range(at, at + c):
        logits[k] *= share / total
    logits[at + target] -= share
    return np.log(total) - own  # type: ignore[no-any-return]

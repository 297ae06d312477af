"""Matrix products, compiled: for outputs a hundred columns wide, where a library's product for all shapes is slower.

A tile of up to ROWS x 2 vectors of sums stays in registers while it goes over the depth, and is written once. So every
element is summed in order of depth, whatever else is computed beside it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import helper, intrinsic, kernel, numba
from gyroscope._linalg._kernels.compiled.lanes import (
    ask_for,
    call,
    count,
    lanes_of,
    load,
    make_array,
    place,
    pointer,
    prefetch,
    spread,
    store,
    types,
    where_positive,
)
from gyroscope._linalg._kernels.compiled.moments import shift_and_clip_row
from gyroscope._linalg._kernels.compiled.unrolled import loop_over, switch

ROWS = 6
"""6 x 2 sums, two vectors of the right matrix and a spread value of the left one are 15 registers."""
_SAMPLES = 4 * ROWS
"""How many samples go through all weights before the next ones do: their values stay in the cache."""
_AHEAD = 8
"""How many steps of depth ahead of its use the right matrix is asked for."""


@kernel
def rows_by_worker(
    slopes: Any, given: Any, picked: Any, shapes: Any, like: Any, rows: Any, stride: int, d: int, begin: int, end: int,
    b: int, shift: Any, limit: float,
) -> None:  # fmt: skip
    """For workers begin, ..., end - 1: the gradients of all layers, one after the other, in rows[worker * stride + i];
    then the shift and the limit, while the row is in the cache (see `shift_and_clip_row`).

    slopes, given: for each layer the addresses of (workers * b, m) and (workers * b, n) values of the type of `like`;
    picked: 0, or the address of workers * b whole numbers: which of any number of rows of `given` is meant; shapes:
    (layers, 4), with m, n, whether there is a bias, and how many values are given.
    """
    places = np.empty(b, np.int64)
    for worker in range(begin, end):
        to, first = worker * stride, worker * b
        for layer in range(shapes.shape[0]):
            m, n = shapes[layer, 0], shapes[layer, 1]
            left = numba.carray(pointer(slopes[layer] + first * m * like.itemsize), (b * m,), like.dtype)
            right = numba.carray(pointer(given[layer]), (shapes[layer, 3],), like.dtype)
            index = numba.carray(pointer(picked[layer]), (first + b,), np.int64)
            for sample in range(b):
                places[sample] = n * (index[first + sample] if picked[layer] else first + sample)
            _products(left, right, places, rows, to, b, m, n)
            to += m * n
            if shapes[layer, 2]:
                _sums(left, rows, to, b, m)
                to += m
        shift_and_clip_row(rows, worker * stride, d, shift, limit)


@helper
def _products(slopes: Any, given: Any, places: Any, out: Any, at: int, b: int, m: int, n: int) -> None:
    """out[at + i * n + j] is the sum over b samples of slopes[sample, i] * given[places[sample] + j].

    A strip of two vectors' worth of columns is brought together first: wherever its samples lie, it is read from one
    place in the cache for all m outputs.
    """
    width = 2 * count(given)
    nothing, strip = np.zeros(width, given.dtype), np.zeros(b * width, given.dtype)
    for column in range(0, n, width):
        target, to, target_step = out, at + column, n
        if column + width > n:
            target, to, target_step = np.empty(m * width, given.dtype), 0, width
        for sample in range(b):
            here, there = places[sample] + column, sample * width
            if column + width > n:
                for rest in range(n - column):
                    strip[there + rest] = given[here + rest]
                continue
            store(strip, there, load(given, here))
            store(strip, there + width // 2, load(given, here + width // 2))
            prefetch(given, here + width)
        for row in range(0, m, ROWS):
            _add_products(
                slopes, row, 1, m, strip, 0, width, None, b, nothing, 0,
                target, to + row * target_step, target_step, 2 * (min(ROWS, m - row) - 1) + 1,
            )  # fmt: skip
        if column + width > n:
            for row in range(m):
                for rest in range(n - column):
                    out[at + row * n + column + rest] = target[row * width + rest]


@helper
def _sums(slopes: Any, out: Any, at: int, b: int, m: int) -> None:
    """out[at + i] is the sum over b samples of slopes[sample, i]."""
    for i in range(m):
        out[at + i] = slopes[i]
    for sample in range(1, b):
        for i in range(m):
            out[at + i] += slopes[sample * m + i]


@kernel
def linear(inputs: Any, picked: Any, panels: Any, bias: Any, out: Any, begin: int, end: int, n: int, m: int) -> None:
    """For samples begin, ..., end - 1: out[sample, i] = bias[i] + the sum over j of inputs[sample, j] * weight[i, j].

    picked: which row of the inputs each sample is, or nothing if they follow one another; panels: the weights of two
    vectors' worth of outputs after the other, each as (n, outputs), filled up with zeros; the bias likewise.
    """
    for first in range(begin, end, _SAMPLES):
        _linear(inputs, picked, panels, bias, out, first * m, first, end, n, m)


@helper
def _linear(
    inputs: Any, picked: Any, panels: Any, bias: Any, out: Any, at: int, first: int, end: int, n: int, m: int
) -> None:
    """`linear` for _SAMPLES samples from the first on, or as many as are left; the next ones are asked for. Results are
    written from out[at] on."""
    width = 2 * count(inputs)
    narrow, places = np.empty(ROWS * width, inputs.dtype), np.empty(2 * _SAMPLES, np.int64)
    last = min(first + _SAMPLES, end)
    for number in range(2 * _SAMPLES):
        sample = min(first + number, end - 1)
        places[number] = n * (picked[sample] if picked.size else sample)
    following = last - first  # one with each tile
    for column in range(0, m, width):
        vectors = 1 if m - column <= width // 2 else 2
        for sample in range(first, last, ROWS):
            height = min(ROWS, last - sample)
            target, to, target_step = out, at + (sample - first) * m + column, m
            if column + vectors * (width // 2) > m:
                target, to, target_step = narrow, 0, width
            _add_products(
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
    inputs: Any, picked: Any, panels: Any, bias: Any, last_panels: Any, last_bias: Any, back_panels: Any, no_bias: Any,
    targets: Any, shares: Any, hidden: Any, hidden_slopes: Any, slopes: Any, losses: Any, begin: int, end: int, n: int,
    m: int, c: int, ignored: int,
) -> None:  # fmt: skip
    """For samples begin, ..., end - 1: linear layer, ReLU, linear layer, -log softmax at the target; and back again.

    hidden: (samples, m), what ReLU gives; losses: (samples,); slopes, hidden_slopes: (samples, c) and (samples, m), how
    the loss, times the share of the sample's worker, changes with what the last and the first layer give. back_panels:
    the transposed weights of the last layer. A target that is `ignored` counts for nothing.
    """
    b = targets.size // shares.size
    block = np.empty(_SAMPLES * m, inputs.dtype)
    for first in range(begin, end, _SAMPLES):
        last = min(first + _SAMPLES, end)
        _linear(inputs, picked, panels, bias, block, 0, first, end, n, m)
        _rectify(block, 0, block, hidden, first * m, last * m)
        _linear(hidden, picked[:0], last_panels, last_bias, slopes, first * c, first, last, m, c)
        for sample in range(first, last):
            losses[sample] = _cross_entropy(slopes, sample * c, c, targets[sample], ignored, shares[sample // b])
        _linear(slopes, picked[:0], back_panels, no_bias, block, 0, first, last, c, m)
        _rectify(hidden, first * m, block, hidden_slopes, first * m, last * m)


@helper
def _rectify(values: Any, at: int, of: Any, out: Any, begin: int, end: int) -> None:
    """out[begin], ..., out[end - 1] is what `of` begins with, but zero where the values from values[at] on are neither
    above zero nor NaN. (From one place to another: LLVM makes a choice in place a masked store, which takes ten times
    as long on some processors.)"""
    whole = (end - begin) // count(values) * count(values)
    for k in range(0, whole, count(values)):
        store(out, begin + k, where_positive(load(values, at + k), load(of, k)))
    for k in range(whole, end - begin):
        out[begin + k] = of[k] if not values[at + k] <= 0 else 0


@helper
def _cross_entropy(outputs: Any, at: int, c: int, target: int, ignored: int, share: float) -> float:
    """The loss of the c outputs at outputs[at]. They become its slopes, times the share."""
    if target == ignored:
        for k in range(at, at + c):
            outputs[k] = 0
        return 0.0
    top = outputs[at]
    for k in range(at + 1, at + c):
        top = max(top, outputs[k])
    own = outputs[at + target] - top
    total = outputs.dtype.type(0)
    for k in range(at, at + c):
        outputs[k] = np.exp(outputs[k] - top)
        total += outputs[k]
    for k in range(at, at + c):
        outputs[k] *= share / total
    outputs[at + target] -= share
    return np.log(total) - own  # type: ignore[no-any-return]


@intrinsic
def _add_products(
    typing: Any, left: Any, at: Any, left_step: Any, left_depth: Any, right: Any, right_at: Any, right_step: Any,
    following: Any, depth: Any, base: Any, base_at: Any, out: Any, to: Any, out_step: Any, shape: Any,
) -> Any:  # fmt: skip
    """out[to + i * out_step + j] = base[base_at + j] + the sum over k < depth of left[i, k] * right[k, j].

    left[i, k] is left[at + i * left_step + k * left_depth], or if left_step is an array, left[left_step[at + i] +
    k * left_depth]; right[k, j] is right[right_at + k * right_step + j]. Unless `following` is None, what comes next in
    the right matrix is asked for already, and so is left[following + k]. `shape` is 2 * (rows - 1) + (vectors - 1).
    """
    kind = lanes_of(right)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        left_, at_, left_step_, left_depth_, right_, right_at_, right_step_, following_ = args[:8]
        depth_, base_, base_at_, out_, to_, out_step_, shape_ = args[8:]
        whole, align = at_.type, kind.dtype.bitwidth // 8
        data = make_array(left)(context, builder, left_).data

        def vector_at(array_type: Any, array: Any, index: Any, number: int) -> Any:
            index = builder.add(index, whole(number * kind.count))
            return place(context, builder, array_type, array, index, kind)

        def begin_of(i: int) -> Any:
            """Of row i of the left matrix."""
            if not isinstance(left_step, types.Array):
                return builder.add(at_, builder.mul(left_step_, whole(i)))
            places = make_array(left_step)(context, builder, left_step_).data
            return builder.load(builder.gep(places, [builder.add(at_, whole(i))]))

        def tile(rows: int, vectors: int) -> None:
            lefts = [begin_of(i) for i in range(rows)]
            targets = [builder.add(to_, builder.mul(out_step_, whole(i))) for i in range(rows)]
            for target in targets:  # by the time of the last product it is there to be written
                ask_for(context, builder, out, out_, builder.add(target, whole(vectors * kind.count - 1)), write=True)
            begin = [builder.load(vector_at(base, base_, base_at_, v), align=align) for v in range(vectors)]
            before = builder.block
            with loop_over(builder, depth_, 1) as k:
                sums = [[builder.phi(start.type) for start in begin] for _ in range(rows)]
                here = builder.add(right_at_, builder.mul(k, right_step_))
                values = [builder.load(vector_at(right, right_, here, v), align=align) for v in range(vectors)]
                if following != types.none:
                    ahead = builder.mul(right_step_, whole(_AHEAD))
                    ask_for(context, builder, right, right_, builder.add(here, ahead))
                    ask_for(context, builder, left, left_, builder.add(following_, k))
                for start, row in zip(lefts, sums, strict=True):
                    factor = builder.load(builder.gep(data, [builder.add(start, builder.mul(k, left_depth_))]))
                    factors = spread(builder, factor, begin[0].type)
                    for value, total, first in zip(values, row, begin, strict=True):
                        total.add_incoming(first, before)
                        total.add_incoming(call(builder, "fmuladd", [factors, value, total]), builder.block)
            for target, row in zip(targets, sums, strict=True):
                for v, total in enumerate(row):
                    builder.store(total.incomings[1][0], vector_at(out, out_, target, v), align=align)

        switch(builder, shape_, [functools.partial(tile, r, v) for r in range(1, ROWS + 1) for v in (1, 2)])
        return context.get_dummy_value()

    w = types.intp
    steps = left_step if isinstance(left_step, types.Array) else w
    asked = following if following == types.none else w
    return types.void(left, w, steps, w, right, w, w, asked, w, base, w, out, w, w, w), generate

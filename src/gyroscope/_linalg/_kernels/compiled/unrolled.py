"""Unrolled code that keeps vectors of many rows in registers, generated as LLVM IR: numba has no syntax for it."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gyroscope._linalg._kernels import sorting_networks
from gyroscope._linalg._kernels.compiled.lanes import Emitter, Lanes, ir, lanes_of, statement, types

TILES = ((1, 1), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3))
"""Shapes of tiles of pairs: 3 x 3 sums, 3 + 3 rows and a difference fill 16 registers."""
ROWS = 6
"""Of a tile of products: 6 x 2 sums, two vectors of the right matrix and a broadcast value take 15 registers."""
VECTORS = 12
"""Vectors of rows that are added up at once, which hides the latency of an addition: the sums, and a broadcast weight,
take 13 registers."""
_AHEAD = 8
"""How many steps of depth before its use the right matrix is prefetched."""


@statement
def sort_run(emitter: Emitter, source: Any, at: Any, stride: Any, target: Any, to: Any, width: Any, size: Any) -> None:
    """Sort up to LEAF rows of one vector each, source[at + i * stride] for i < size, into target[to + i * width].

    NaN becomes +inf, so that minimum and maximum order it. The vectors `width` elements further on in the source, which
    belong to the next block, are prefetched.
    """
    builder, kind = emitter.builder, lanes_of(emitter.kinds[0])
    infinity = emitter.constant(kind, float("inf"))

    def sort(size: int) -> None:
        wires = []
        index = at
        for i in range(size):
            index = builder.add(index, stride) if i else at
            emitter.prefetch(source, builder.add(index, width))
            value = emitter.load(source, index, kind)
            wires.append(builder.select(builder.fcmp_ordered("<", value, infinity), value, infinity))
        for low, high in sorting_networks.small_sort(size):
            wires[low], wires[high] = emitter.ordered(wires[low], wires[high])
        for i in range(size):
            index = builder.add(index, width) if i else to
            emitter.store(target, index, wires[i], kind)

    switch(builder, size, [functools.partial(sort, size) for size in range(sorting_networks.LEAF + 1)])


@statement
def merge_runs(emitter: Emitter, values: Any, width: Any, wires: Any, first: Any, left: Any, right: Any) -> None:
    """Merge two sorted runs of rows in all `width` columns of values[wire * width + column].

    The wires of the left run start at wires[first], those of the right run follow; at most RUN each.
    """
    builder, whole, kind = emitter.builder, width.type, lanes_of(emitter.kinds[0])

    def merge(a: int, b: int) -> None:
        places = [builder.load(builder.gep(wires, [builder.add(first, whole(i))])) for i in range(a + b)]
        starts = [builder.gep(values, [builder.mul(wire, width)]) for wire in places]
        with loop_over(builder, width, kind.count) as column:
            held = [emitter.load(start, column, kind) for start in starts]
            for low, high in sorting_networks.small_merge(a, b)[0]:
                held[low], held[high] = emitter.ordered(held[low], held[high])
            for value, start in zip(held, starts, strict=True):
                emitter.store(start, column, value, kind)

    lengths = range(1, sorting_networks.RUN + 1)
    shape = builder.add(
        builder.mul(builder.sub(left, whole(1)), whole(sorting_networks.RUN)), builder.sub(right, whole(1))
    )
    switch(builder, shape, [functools.partial(merge, a, b) for a in lengths for b in lengths])


@statement
def add_squares(
    emitter: Emitter, rows: Any, left: Any, right: Any, stride: Any, width: Any, shape: Any, sums: Any, to: Any
) -> None:
    """Add the squared differences of a tile of pairs of rows in `width` columns to sums.

    The rows start at rows[left + i * stride] and rows[right + j * stride]. `shape` is an index into TILES: all pairs
    (i, j) with i < a and j < b, or if b is zero, all pairs i < j of the left rows. Pair number k adds its squares to
    the float64 vector at sums[to + 4 * k]; within the call they accumulate in registers, in the rows' own type.
    """
    builder, whole = emitter.builder, left.type
    kind, total = lanes_of(emitter.kinds[0]), lanes_of(emitter.kinds[6])

    def tile(a: int, b: int) -> None:
        starts = [builder.add(left, builder.mul(stride, whole(i))) for i in range(a)]
        starts += [builder.add(right, builder.mul(stride, whole(i))) for i in range(b)]
        pairs = [(i, a + j) for i in range(a) for j in range(b)] if b else list(itertools.combinations(range(a), 2))
        before = builder.block
        with loop_over(builder, width, kind.count) as column:
            squares = [builder.phi(emitter.vector(kind)) for _ in pairs]
            values = [emitter.load(rows, builder.add(start, column), kind) for start in starts]
            for (i, j), phi in zip(pairs, squares, strict=True):
                phi.add_incoming(emitter.constant(kind, 0.0), before)
                difference = builder.fsub(values[i], values[j])
                phi.add_incoming(emitter.call("fmuladd", difference, difference, phi), builder.block)
        for k, phi in enumerate(squares):
            index = builder.add(to, whole(total.count * k))
            value = emitter.load(sums, index, total)
            for part in _widened(emitter, phi.incomings[1][0], kind, total):
                value = builder.fadd(value, part)
            emitter.store(sums, index, value, total)

    switch(builder, shape, [functools.partial(tile, a, b) for a, b in TILES])


@statement
def add_products(
    emitter: Emitter, left: Any, at: Any, left_step: Any, left_depth: Any, right: Any, right_at: Any, right_step: Any,
    following: Any, depth: Any, base: Any, base_at: Any, out: Any, to: Any, out_step: Any, shape: Any,
) -> None:  # fmt: skip
    """out[to + i * out_step + j] = base[base_at + j] + the sum over k < depth of left[i, k] * right[k, j].

    left[i, k] is left[at + i * left_step + k * left_depth], or if left_step is an array, left[left_step[at + i] +
    k * left_depth]; right[k, j] is right[right_at + k * right_step + j]. Unless `following` is None, the next values of
    the right matrix and left[following + k] are prefetched. `shape` is 2 * (rows - 1) + (vectors - 1).
    """
    builder, whole, kind = emitter.builder, at.type, lanes_of(emitter.kinds[4])
    indexed = isinstance(emitter.kinds[2], types.Array)
    prefetches = emitter.kinds[7] != types.none

    def vector(index: Any, number: int) -> Any:
        return builder.add(index, whole(number * kind.count))

    def tile(rows: int, vectors: int) -> None:
        if indexed:
            lefts = [builder.load(builder.gep(left_step, [builder.add(at, whole(i))])) for i in range(rows)]
        else:
            lefts = [builder.add(at, builder.mul(left_step, whole(i))) for i in range(rows)]
        targets = [builder.add(to, builder.mul(out_step, whole(i))) for i in range(rows)]
        for target in targets:  # prefetched for writing while the products are computed
            emitter.prefetch(out, builder.add(target, whole(vectors * kind.count - 1)), write=True)
        begin = [emitter.load(base, vector(base_at, v), kind) for v in range(vectors)]
        before = builder.block
        with loop_over(builder, depth, 1) as k:
            sums = [[builder.phi(start.type) for start in begin] for _ in range(rows)]
            here = builder.add(right_at, builder.mul(k, right_step))
            values = [emitter.load(right, vector(here, v), kind) for v in range(vectors)]
            if prefetches:
                emitter.prefetch(right, builder.add(here, builder.mul(right_step, whole(_AHEAD))))
                emitter.prefetch(left, builder.add(following, k))
            for start, row in zip(lefts, sums, strict=True):
                factor = builder.load(builder.gep(left, [builder.add(start, builder.mul(k, left_depth))]))
                factors = emitter.splat(factor, kind)
                for value, total, first in zip(values, row, begin, strict=True):
                    total.add_incoming(first, before)
                    total.add_incoming(emitter.call("fmuladd", factors, value, total), builder.block)
        for target, row in zip(targets, sums, strict=True):
            for v, total in enumerate(row):
                emitter.store(out, vector(target, v), total.incomings[1][0], kind)

    switch(builder, shape, [functools.partial(tile, r, v) for r in range(1, ROWS + 1) for v in (1, 2)])


@statement
def add_rows(
    emitter: Emitter, source: Any, place: Any, stride: Any, chosen: Any, weights: Any, first: Any, last: Any,
    start: Any, start_at: Any, out: Any, to: Any, lost: Any,
) -> None:  # fmt: skip
    """Add rows times weights to VECTORS vectors at start[start_at], and write the sums to out[to].

    They are weights[k] times source[place + chosen[k] * stride] for first <= k < last, at least one. Zero times the
    sums is added to the vector at lost[0].
    """
    builder, whole, kind = emitter.builder, first.type, lanes_of(emitter.kinds[0])
    vectors = [whole(v * kind.count) for v in range(VECTORS)]
    begin = [emitter.load(start, builder.add(start_at, v), kind) for v in vectors]
    before = builder.block
    with loop_over(builder, builder.sub(last, first), 1) as index:
        sums = [builder.phi(value.type) for value in begin]
        k = builder.add(first, index)
        here = builder.add(place, builder.mul(builder.load(builder.gep(chosen, [k])), stride))
        weight = emitter.splat(builder.load(builder.gep(weights, [k])), kind)
        for v, total, value in zip(vectors, sums, begin, strict=True):
            total.add_incoming(value, before)
            row = emitter.load(source, builder.add(here, v), kind)
            total.add_incoming(emitter.call("fmuladd", weight, row, total), builder.block)
    nothing, zero = emitter.load(lost, whole(0), kind), emitter.constant(kind, 0.0)
    for v, total in zip(vectors, sums, strict=True):
        emitter.store(out, builder.add(to, v), total.incomings[1][0], kind)
        nothing = emitter.call("fmuladd", zero, total.incomings[1][0], nothing)
    emitter.store(lost, whole(0), nothing, kind)


@contextlib.contextmanager
def loop_over(builder: Any, end: Any, step: int) -> Iterator[Any]:
    """Generate a loop over 0, step, ... below the end around the code generated in this block. It runs at least once.

    LLVM must not unroll it: a loop that fills the registers would spill sums to memory.
    """
    before = builder.block
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("looped")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(end.type)
    index.add_incoming(end.type(0), before)
    yield index
    following = builder.add(index, end.type(step))
    index.add_incoming(following, builder.block)
    again = builder.cbranch(builder.icmp_signed("<", following, end), loop, after)
    option = builder.module.add_metadata([ir.MetaDataString(builder.module, "llvm.loop.unroll.disable")])
    name = ir.MDValue(builder.module, [], name=str(len(builder.module.metadata)))
    name.operands = (name, option)  # a loop's identifier is a node that refers to itself
    again.set_metadata("llvm.loop", name)
    builder.position_at_end(after)


def _widened(emitter: Emitter, value: Any, kind: Lanes, wide: Lanes) -> list[Any]:
    """Return a vector as vectors of float64."""
    if kind.dtype == types.float64:
        return [value]
    parts = []
    for first in range(0, kind.count, wide.count):
        places = ir.Constant(ir.VectorType(ir.IntType(32), wide.count), list(range(first, first + wide.count)))
        half = emitter.builder.shuffle_vector(value, value, places)
        parts.append(emitter.builder.fpext(half, emitter.vector(wide)))
    return parts


def switch(builder: Any, chosen: Any, cases: Sequence[Callable[[], None]]) -> None:
    """Generate all cases; at run time, the one with the chosen index runs."""
    after = builder.append_basic_block("after")
    table = builder.switch(chosen, after)
    for number, case in enumerate(cases):
        block = builder.append_basic_block(f"case{number}")
        table.add_case(chosen.type(number), block)
        builder.position_at_end(block)
        case()
        builder.branch(after)
    builder.position_at_end(after)

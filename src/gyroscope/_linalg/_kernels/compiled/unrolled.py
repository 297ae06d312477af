"""Unrolled code that keeps vectors of many rows in registers, generated as LLVM IR: numba has no syntax for it."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gyroscope._linalg._kernels import sorting_networks
from gyroscope._linalg._kernels.compiled.lanes import Emitter, Lanes, intrinsic, ir, lanes_of, types

TILES = ((1, 1), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3))
"""Shapes of tiles of pairs: 3 x 3 sums, 3 + 3 rows and a difference fill 16 registers."""


@intrinsic
def sort_run(typing: Any, source: Any, at: Any, stride: Any, target: Any, to: Any, width: Any, size: Any) -> Any:
    """Sort up to LEAF rows of one vector each, source[at + i * stride] for i < size, into target[to + i * width].

    NaN becomes +inf, so that minimum and maximum order it. The vectors `width` elements further on in the source, which
    belong to the next block, are prefetched.
    """
    kind, integer = lanes_of(source), types.intp

    def emit(emitter: Emitter, source: Any, at: Any, stride: Any, target: Any, to: Any, width: Any, size: Any) -> None:
        builder, infinity = emitter.builder, emitter.constant(kind, float("inf"))

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

    return types.void(source, integer, integer, target, integer, integer, integer), emit


@intrinsic
def merge_runs(typing: Any, values: Any, width: Any, wires: Any, first: Any, left: Any, right: Any) -> Any:
    """Merge two sorted runs of rows in all `width` columns of values[wire * width + column].

    The wires of the left run start at wires[first], those of the right run follow; at most RUN each.
    """
    kind, integer = lanes_of(values), types.intp

    def emit(emitter: Emitter, values: Any, width: Any, wires: Any, first: Any, left: Any, right: Any) -> None:
        builder, whole = emitter.builder, width.type

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

    return types.void(values, integer, wires, integer, integer, integer), emit


@intrinsic
def add_squares(
    typing: Any, rows: Any, left: Any, right: Any, stride: Any, width: Any, shape: Any, sums: Any, to: Any
) -> Any:
    """Add the squared differences of a tile of pairs of rows in `width` columns to sums.

    The rows start at rows[left + i * stride] and rows[right + j * stride]. `shape` is an index into TILES: all pairs
    (i, j) with i < a and j < b, or if b is zero, all pairs i < j of the left rows. Pair number k adds its squares to
    the float64 vector at sums[to + 4 * k]; within the call they accumulate in registers, in the rows' own type.
    """
    kind, total, integer = lanes_of(rows), lanes_of(sums), types.intp

    def emit(
        emitter: Emitter, rows: Any, left: Any, right: Any, stride: Any, width: Any, shape: Any, sums: Any, to: Any
    ) -> None:
        builder, whole = emitter.builder, left.type

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

    return types.void(rows, integer, integer, integer, integer, integer, sums, integer), emit


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

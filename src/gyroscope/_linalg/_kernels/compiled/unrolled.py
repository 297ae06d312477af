"""Unrolled code that keeps vectors of many rows in registers, generated as LLVM IR: numba has no syntax for it."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gyroscope._linalg._kernels import networks
from gyroscope._linalg._kernels.compiled.build import intrinsic
from gyroscope._linalg._kernels.compiled.lanes import (
    Lanes,
    call_llvm,
    constant,
    emit_prefetch,
    extreme,
    ir,
    lanes_of,
    make_array,
    types,
    vector_pointer,
)

TILES = ((1, 1), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3))
"""Shapes of tiles of pairs: 3 x 3 sums, 3 + 3 rows and a difference fill 16 registers."""


@intrinsic
def sort_run(typing: Any, source: Any, at: Any, stride: Any, target: Any, to: Any, width: Any, size: Any) -> Any:
    """Sort up to LEAF rows of one vector each, source[at + i * stride] for i < size, into target[to + i * width].

    NaN becomes +inf, so that minimum and maximum order it. The vectors `width` elements further on in the source, which
    belong to the next block, are prefetched.
    """
    kind = lanes_of(source)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source_, at_, stride_, target_, to_, width_, size_ = args
        vector = context.get_value_type(kind)
        infinity = constant(vector, float("inf"))
        align = kind.align

        def sort(size: int) -> None:
            wires = []
            index = at_
            for i in range(size):
                index = builder.add(index, stride_) if i else at_
                emit_prefetch(context, builder, source, source_, builder.add(index, width_))
                value = builder.load(vector_pointer(context, builder, source, source_, index, kind), align=align)
                wires.append(builder.select(builder.fcmp_ordered("<", value, infinity), value, infinity))
            for low, high in networks.small_sort(size):
                a, b = wires[low], wires[high]
                wires[low], wires[high] = extreme(builder, "minnum", a, b), extreme(builder, "maxnum", a, b)
            for i in range(size):
                index = builder.add(index, width_) if i else to_
                builder.store(wires[i], vector_pointer(context, builder, target, target_, index, kind), align=align)

        switch(builder, size_, [functools.partial(sort, size) for size in range(networks.LEAF + 1)])
        return context.get_dummy_value()

    arguments = (source, types.intp, types.intp, target, types.intp, types.intp, types.intp)
    return types.void(*arguments), generate


@intrinsic
def merge_runs(typing: Any, values: Any, width: Any, wires: Any, first: Any, left: Any, right: Any) -> Any:
    """Merge two sorted runs of rows in all `width` columns of values[wire * width + column].

    The wires of the left run start at wires[first], those of the right run follow; at most RUN each.
    """
    kind = lanes_of(values)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values_, width_, wires_, first_, left_, right_ = args
        whole, align = width_.type, kind.dtype.bitwidth // 8
        data, numbers = (
            make_array(of)(context, builder, array).data for of, array in ((values, values_), (wires, wires_))
        )
        vector = context.get_value_type(kind).as_pointer()

        def merge(a: int, b: int) -> None:
            if a == 0 or b == 0:
                return
            places = [builder.load(builder.gep(numbers, [builder.add(first_, whole(i))])) for i in range(a + b)]
            starts = [builder.gep(data, [builder.mul(wire, width_)]) for wire in places]
            with loop_over(builder, width_, kind.count) as column:
                addresses = [builder.bitcast(builder.gep(start, [column]), vector) for start in starts]
                held = [builder.load(address, align=align) for address in addresses]
                for low, high in networks.small_merge(a, b)[0]:
                    x, y = held[low], held[high]
                    held[low], held[high] = extreme(builder, "minnum", x, y), extreme(builder, "maxnum", x, y)
                for value, address in zip(held, addresses, strict=True):
                    builder.store(value, address, align=align)

        lengths = range(1, networks.RUN + 1)
        shape = builder.add(
            builder.mul(builder.sub(left_, whole(1)), whole(networks.RUN)), builder.sub(right_, whole(1))
        )
        switch(builder, shape, [functools.partial(merge, a, b) for a in lengths for b in lengths])
        return context.get_dummy_value()

    return types.void(values, types.intp, wires, types.intp, types.intp, types.intp), generate


@intrinsic
def add_squares(
    typing: Any, rows: Any, left: Any, right: Any, stride: Any, width: Any, shape: Any, sums: Any, to: Any
) -> Any:
    """Add the squared differences of a tile of pairs of rows in `width` columns to sums.

    The rows start at rows[left + i * stride] and rows[right + j * stride]. `shape` is an index into TILES: all pairs
    (i, j) with i < a and j < b, or if b is zero, all pairs i < j of the left rows. Pair number k adds its squares to
    the float64 vector at sums[to + 4 * k]; within the call they accumulate in registers, in the rows' own type.
    """
    kind = lanes_of(rows)
    total = lanes_of(sums)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows_, left_, right_, stride_, width_, shape_, sums_, to_ = args
        vector, wide = context.get_value_type(kind), context.get_value_type(total)
        align = kind.align
        whole = left_.type

        def tile(a: int, b: int) -> None:
            starts = [builder.add(left_, builder.mul(stride_, whole(i))) for i in range(a)]
            starts += [builder.add(right_, builder.mul(stride_, whole(i))) for i in range(b)]
            pairs = [(i, a + j) for i in range(a) for j in range(b)] if b else list(itertools.combinations(range(a), 2))
            before = builder.block
            with loop_over(builder, width_, kind.count) as column:
                gathered = [builder.phi(vector) for _ in pairs]
                values = [
                    builder.load(
                        vector_pointer(context, builder, rows, rows_, builder.add(start, column), kind), align=align
                    )
                    for start in starts
                ]
                for (i, j), phi in zip(pairs, gathered, strict=True):
                    phi.add_incoming(constant(vector, 0.0), before)
                    difference = builder.fsub(values[i], values[j])
                    phi.add_incoming(call_llvm(builder, "fmuladd", [difference, difference, phi]), builder.block)
            for k, phi in enumerate(gathered):
                target = vector_pointer(context, builder, sums, sums_, builder.add(to_, whole(total.count * k)), total)
                value = builder.load(target, align=8)
                for part in _widened(builder, phi.incomings[1][0], kind, wide):
                    value = builder.fadd(value, part)
                builder.store(value, target, align=8)

        switch(builder, shape_, [functools.partial(tile, a, b) for a, b in TILES])
        return context.get_dummy_value()

    whole = types.intp
    return types.void(rows, whole, whole, whole, whole, whole, sums, whole), generate


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
    wish = builder.module.add_metadata([ir.MetaDataString(builder.module, "llvm.loop.unroll.disable")])
    name = ir.MDValue(builder.module, [], name=str(len(builder.module.metadata)))
    name.operands = (name, wish)  # a loop's identifier is a node that refers to itself
    again.set_metadata("llvm.loop", name)
    builder.position_at_end(after)


def _widened(builder: Any, value: Any, kind: Lanes, wide: Any) -> list[Any]:
    """Return a vector as vectors of float64."""
    if kind.dtype == types.float64:
        return [value]
    parts = []
    for first in range(0, kind.count, wide.count):
        places = ir.Constant(ir.VectorType(ir.IntType(32), wide.count), list(range(first, first + wide.count)))
        parts.append(builder.fpext(builder.shuffle_vector(value, value, places), wide))
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

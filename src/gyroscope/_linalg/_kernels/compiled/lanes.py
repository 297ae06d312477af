"""SIMD vectors as values inside numba functions, so that vectorisation is explicit and does not depend on the compiler.

`load(array, index)` gives the 32 bytes at that element as one value: 8 float32 or 4 float64. LLVM puts it in one AVX
register, or in two of SSE or NEON. Arrays are flat (1-d, contiguous); nothing checks the bounds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gyroscope._linalg._kernels.compiled.build import extending, helper, intrinsic, numba

ir: Any = importlib.import_module("llvmlite.ir")
cgutils: Any = importlib.import_module("numba.core.cgutils")
make_array: Any = importlib.import_module("numba.np.arrayobj").make_array
types: Any = numba.types

BYTES = 32
WIDE = 16
"""Elements of a wide vector: enough independent float64 sums to hide the latency of an addition."""


class Lanes(types.Type):  # type: ignore[misc]
    """The numba type of a vector: `count` numbers of one float type."""

    def __init__(self, dtype: Any, count: int) -> None:
        self.dtype, self.count = dtype, count
        self.align = dtype.bitwidth // 8
        super().__init__(name=f"Lanes({dtype}, {count})")


class _LanesModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Lanes) -> None:
        element = ir.FloatType() if kind.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, kind, ir.VectorType(element, kind.count))


extending.register_model(Lanes)(_LanesModel)


def lanes_of(array: Any) -> Lanes:
    return Lanes(array.dtype, BYTES // (array.dtype.bitwidth // 8))


def vector_pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, kind: Lanes) -> Any:
    data = make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), context.get_value_type(kind).as_pointer())


def constant(vector: Any, value: float) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def call_llvm(builder: Any, name: str, args: list[Any], fastmath: tuple[str, ...] = ()) -> Any:
    """Call one of LLVM's intrinsic functions on vectors of one type."""
    vector = args[0].type
    bits = 32 if isinstance(vector.element, ir.FloatType) else 64
    kind = ir.FunctionType(vector, [vector] * len(args))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{vector.count}f{bits}")
    return builder.call(function, args, fastmath=fastmath)


def extreme(builder: Any, name: str, a: Any, b: Any) -> Any:
    """Return the smaller (minnum) or larger (maxnum) of two values that are not NaN.

    LLVM turns a comparison and a select, whose result is stored where one operand was loaded, into a masked store,
    which takes ten times as long on some CPUs.
    """
    return call_llvm(builder, name, [a, b], fastmath=("nnan",))


def emit_prefetch(context: Any, builder: Any, array_type: Any, array: Any, index: Any, write: bool = False) -> None:
    """Prefetch a cache line. The hardware prefetcher does not follow as many rows at once as the kernels read."""
    where = builder.gep(make_array(array_type)(context, builder, array).data, [index])
    where = builder.bitcast(where, ir.IntType(8).as_pointer())
    flag = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [where.type, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [where, flag(int(write)), flag(3), flag(1)])  # into all cache levels; data


def splat(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector of copies of a value."""
    undefined = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))


@intrinsic
def lane_count(typing: Any, array: Any) -> Any:
    """Return how many elements of the array make one vector, as a constant."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.intp, lanes_of(array).count)

    return types.intp(array), generate


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """Return the vector that begins at array[index]."""
    kind = lanes_of(array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(vector_pointer(context, builder, array, args[0], args[1], kind), align=kind.align)

    return kind(array, types.intp), generate


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of array[index], which may be beyond the array's end."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit_prefetch(context, builder, array, *args)
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Write a vector to array[index] and the following elements."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where = vector_pointer(context, builder, array, args[0], args[1], value)
        builder.store(args[2], where, align=value.align)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@intrinsic
def broadcast(typing: Any, array: Any, value: Any) -> Any:
    """Return a vector of the array's type that holds the value in all lanes."""
    kind = lanes_of(array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return splat(builder, args[1], context.get_value_type(kind))

    return kind(array, array.dtype), generate


@intrinsic
def load_wide(typing: Any, array: Any, index: Any) -> Any:
    """Return WIDE elements from array[index] on, as float64."""
    kind, own = Lanes(types.float64, WIDE), Lanes(array.dtype, WIDE)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(vector_pointer(context, builder, array, args[0], args[1], own), align=own.align)
        return value if own.dtype == types.float64 else builder.fpext(value, context.get_value_type(kind))

    return kind(array, types.intp), generate


@intrinsic
def broadcast_wide(typing: Any, value: Any) -> Any:
    """Return a wide vector that holds the value in all lanes."""
    kind = Lanes(types.float64, WIDE)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return splat(builder, args[0], context.get_value_type(kind))

    return kind(types.float64), generate


@intrinsic
def narrow(typing: Any, array: Any, value: Any) -> Any:
    """Return a wide vector rounded to the array's type."""
    own = Lanes(array.dtype, WIDE)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[1] if own.dtype == types.float64 else builder.fptrunc(args[1], context.get_value_type(own))

    return own(array, value), generate


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """Return an address as the pointer that numba.carray takes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), generate


def _elementwise(operation: Callable[..., Any]) -> Any:
    """Return an intrinsic that applies operation(builder, vectors...) to vectors of one type."""

    def typed(*vectors: Any) -> Any:
        return vectors[0](*vectors), lambda context, builder, signature, args: operation(builder, *args)

    by_arity = (  # numba needs the number of arguments
        lambda typing, a: typed(a),
        lambda typing, a, b: typed(a, b),
        lambda typing, a, b, c: typed(a, b, c),
        lambda typing, a, b, c, d: typed(a, b, c, d),
    )
    return intrinsic(by_arity[operation.__code__.co_argcount - 2])


def _where_positive(builder: Any, value: Any, then: Any) -> Any:
    zero = constant(value.type, 0.0)
    return builder.select(builder.fcmp_unordered(">", value, zero), then, zero)


add = _elementwise(lambda builder, left, right: builder.fadd(left, right))
subtract = _elementwise(lambda builder, left, right: builder.fsub(left, right))
multiply = _elementwise(lambda builder, left, right: builder.fmul(left, right))
divide = _elementwise(lambda builder, left, right: builder.fdiv(left, right))
multiply_add = _elementwise(lambda builder, a, b, c: call_llvm(builder, "fmuladd", [a, b, c]))
"""multiply_add(a, b, c) is a * b + c, rounded once on CPUs with a fused multiply-add."""
sqrt = _elementwise(lambda builder, value: call_llvm(builder, "sqrt", [value]))
absolute = _elementwise(lambda builder, value: call_llvm(builder, "fabs", [value]))
minimum = _elementwise(lambda builder, left, right: extreme(builder, "minnum", left, right))
maximum = _elementwise(lambda builder, left, right: extreme(builder, "maxnum", left, right))
where_less = _elementwise(lambda builder, a, b, c, d: builder.select(builder.fcmp_ordered("<", a, b), c, d))
"""where_less(a, b, c, d) is c where a < b, else (also where a or b is NaN) d."""
where_positive = _elementwise(_where_positive)
"""where_positive(value, then) is `then` where the value is above zero, or NaN; else zero."""


@helper
def padded(rows: Any, n: int, stride: int, start: int, end: int, width: int) -> Any:
    """Copy columns start, ..., end - 1 of rows[row * stride + column] to a block of `width` columns, padded with zeros.

    Callers choose between this block and the matrix before one common call: numba compiles a call anew for each
    constant among its arguments.
    """
    block = np.zeros(n * width, rows.dtype)
    for row in range(n):
        for column in range(end - start):
            block[row * width + column] = rows[row * stride + start + column]
    return block

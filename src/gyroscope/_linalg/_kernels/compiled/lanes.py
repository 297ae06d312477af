"""Vectors of a few floats as values inside numba functions, so that vectorisation is written and not hoped for.

`load(array, index)` gives the 32 bytes at that element as one value: 8 float32 or 4 float64. Compiled by LLVM, it is
one register on AVX and a pair on SSE or NEON. Arrays are flat (1-d, contiguous); nothing checks the bounds.
"""

from __future__ import annotations

import importlib
from typing import Any

from gyroscope._linalg._kernels.compiled.build import extending, intrinsic, numba

ir: Any = importlib.import_module("llvmlite.ir")
cgutils: Any = importlib.import_module("numba.core.cgutils")
make_array: Any = importlib.import_module("numba.np.arrayobj").make_array
types: Any = numba.types

BYTES = 32


class Lanes(types.Type):  # type: ignore[misc]
    """`count` numbers of one float type."""

    def __init__(self, dtype: Any, count: int) -> None:
        self.dtype = dtype
        self.count = count
        super().__init__(name=f"Lanes({dtype}, {count})")


class _LanesModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, ir.VectorType(_element(kind.dtype), kind.count))


extending.register_model(Lanes)(_LanesModel)


def _element(dtype: Any) -> Any:
    return ir.FloatType() if dtype == types.float32 else ir.DoubleType()


def lanes_of(array: Any) -> Lanes:
    return Lanes(array.dtype, BYTES // (array.dtype.bitwidth // 8))


def place(context: Any, builder: Any, array_type: Any, array: Any, index: Any, kind: Lanes) -> Any:
    data = make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), context.get_value_type(kind).as_pointer())


def constant(vector: Any, value: float) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def call(builder: Any, name: str, args: list[Any], fastmath: tuple[str, ...] = ()) -> Any:
    """Call one of LLVM's own functions on vectors of one type."""
    vector = args[0].type
    bits = 32 if isinstance(vector.element, ir.FloatType) else 64
    kind = ir.FunctionType(vector, [vector] * len(args))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{vector.count}f{bits}")
    return builder.call(function, args, fastmath=fastmath)


def extreme(builder: Any, name: str, a: Any, b: Any) -> Any:
    """The smaller (minnum) or larger (maxnum) of two values that are not NaN.

    A comparison and a choice would do the same, but where one of them is stored to the place it came from, LLVM makes
    that a masked store, which takes ten times as long on some processors.
    """
    return call(builder, name, [a, b], fastmath=("nnan",))


def ask_for(context: Any, builder: Any, array_type: Any, array: Any, index: Any, write: bool = False) -> None:
    """Prefetch. Rows lie far apart, and the processor does not guess as many of them at once as we read (or write)."""
    where = builder.gep(make_array(array_type)(context, builder, array).data, [index])
    where = builder.bitcast(where, ir.IntType(8).as_pointer())
    flag = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [where.type, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [where, flag(int(write)), flag(3), flag(1)])  # to be used again, data


def spread(builder: Any, value: Any, vector: Any) -> Any:
    """A vector of copies."""
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))


@intrinsic
def count(typing: Any, array: Any) -> Any:
    """How many elements of the array make one vector, as a constant."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.intp, lanes_of(array).count)

    return types.intp(array), generate


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """The lanes that begin at array[index]."""
    kind = lanes_of(array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where = place(context, builder, array, args[0], args[1], kind)
        return builder.load(where, align=kind.dtype.bitwidth // 8)

    return kind(array, types.intp), generate


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of array[index], which may lie beyond the array's end."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ask_for(context, builder, array, *args)
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Write the lanes to array[index] and what follows."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where = place(context, builder, array, args[0], args[1], value)
        builder.store(args[2], where, align=value.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@intrinsic
def fill(typing: Any, array: Any, value: Any) -> Any:
    """Lanes of the array's type that all hold the value."""
    kind = lanes_of(array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return spread(builder, args[1], context.get_value_type(kind))

    return kind(array, array.dtype), generate


WIDE = 16
"""Elements of a wide vector: some independent sums, so that one need not wait for the other."""


@intrinsic
def load_wide(typing: Any, array: Any, index: Any) -> Any:
    """WIDE elements from array[index] on, as float64."""
    kind, own = Lanes(types.float64, WIDE), Lanes(array.dtype, WIDE)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(place(context, builder, array, args[0], args[1], own), align=own.dtype.bitwidth // 8)
        return value if own.dtype == types.float64 else builder.fpext(value, context.get_value_type(kind))

    return kind(array, types.intp), generate


@intrinsic
def fill_wide(typing: Any, value: Any) -> Any:
    """A wide vector that holds the value everywhere."""
    kind = Lanes(types.float64, WIDE)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return spread(builder, args[0], context.get_value_type(kind))

    return kind(types.float64), generate


@intrinsic
def narrow(typing: Any, array: Any, value: Any) -> Any:
    """The wide vector, rounded to the array's type."""
    own = Lanes(array.dtype, WIDE)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[1] if own.dtype == types.float64 else builder.fptrunc(args[1], context.get_value_type(own))

    return own(array, value), generate


def _function(name: str) -> Any:
    @intrinsic
    def apply(typing: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return call(builder, name, list(args))

        return value(value), generate

    return apply


root = _function("sqrt")
magnitude = _function("fabs")


@intrinsic
def add_product(typing: Any, left: Any, right: Any, total: Any) -> Any:
    """left * right + total, rounded once where the processor can."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return call(builder, "fmuladd", list(args))

    return total(left, right, total), generate


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """An address as what numba.carray takes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), generate


def _binary(operation: str) -> Any:
    @intrinsic
    def apply(typing: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, operation)(*args)

        return left(left, right), generate

    return apply


add = _binary("fadd")
subtract = _binary("fsub")
multiply = _binary("fmul")
divide = _binary("fdiv")


@intrinsic
def if_less(typing: Any, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    """Lane by lane: `then` where a < b, else (also where one is NaN) `otherwise`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    return then(a, b, then, otherwise), generate


@intrinsic
def where_positive(typing: Any, value: Any, then: Any) -> Any:
    """Lane by lane: `then` where the value is above zero, or NaN; else zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = constant(context.get_value_type(value), 0.0)
        return builder.select(builder.fcmp_unordered(">", args[0], zero), args[1], zero)

    return then(value, then), generate


def _extreme_of(name: str) -> Any:
    @intrinsic
    def apply(typing: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return extreme(builder, name, *args)

        return left(left, right), generate

    return apply


smaller = _extreme_of("minnum")
larger = _extreme_of("maxnum")

"""SIMD vectors as values inside numba functions, so that vectorisation is explicit and does not depend on the compiler.

`load(array, index)` gives the 32 bytes at that element as one value: 8 float32 or 4 float64. LLVM puts it in one AVX
register, or in two of SSE or NEON. Arrays are flat (1-d, contiguous); nothing checks the bounds.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gyroscope._linalg._kernels.compiled.build import extending, helper, numba

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
        super().__init__(name=f"Lanes({dtype}, {count})")


class _LanesModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Lanes) -> None:
        element = ir.FloatType() if kind.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, kind, ir.VectorType(element, kind.count))


extending.register_model(Lanes)(_LanesModel)


def lanes_of(array: Any) -> Lanes:
    return Lanes(array.dtype, BYTES // (array.dtype.bitwidth // 8))


class Emitter(NamedTuple):
    """Generates LLVM IR. `data` is the address of an array's first element."""

    context: Any
    builder: Any
    kinds: Any
    """The numba types of the values, in their order."""

    def vector(self, kind: Lanes) -> Any:
        """Return the LLVM type of a vector."""
        return self.context.get_value_type(kind)

    def pointer(self, data: Any, index: Any, kind: Lanes) -> Any:
        return self.builder.bitcast(self.builder.gep(data, [index]), self.vector(kind).as_pointer())

    def load(self, data: Any, index: Any, kind: Lanes) -> Any:
        return self.builder.load(self.pointer(data, index, kind), align=kind.dtype.bitwidth // 8)

    def store(self, data: Any, index: Any, value: Any, kind: Lanes) -> None:
        self.builder.store(value, self.pointer(data, index, kind), align=kind.dtype.bitwidth // 8)

    def prefetch(self, data: Any, index: Any, write: bool = False, far: bool = False) -> None:
        """Prefetch a cache line. The hardware prefetcher does not follow as many rows at once as the kernels read.

        What is needed much later (`far`) stays out of the L1 cache: it would wait for one of the few lines that a core
        fetches to L1 at a time, and drive out what is needed now. From main memory that is half as fast.
        """
        where = self.builder.bitcast(self.builder.gep(data, [index]), ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [where.type, flag, flag, flag])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        self.builder.call(function, [where, flag(int(write)), flag(2 if far else 3), flag(1)])  # 3: all levels; 1: data

    def call(self, name: str, *vectors: Any, fastmath: tuple[str, ...] = ()) -> Any:
        """Call one of LLVM's intrinsic functions on vectors of one type."""
        vector = vectors[0].type
        bits = 32 if isinstance(vector.element, ir.FloatType) else 64
        kind = ir.FunctionType(vector, [vector] * len(vectors))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.v{vector.count}f{bits}")
        return self.builder.call(function, vectors, fastmath=fastmath)

    def ordered(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Return the smaller and the larger of two values that are not NaN, lane by lane.

        LLVM turns a comparison and a select, whose result is stored where one operand was loaded, into a masked store,
        which takes ten times as long on some CPUs.
        """
        return self.call("minnum", a, b, fastmath=("nnan",)), self.call("maxnum", a, b, fastmath=("nnan",))

    def constant(self, kind: Lanes, value: float) -> Any:
        return ir.Constant(self.vector(kind), [value] * kind.count)

    def splat(self, value: Any, kind: Lanes) -> Any:
        """Return a vector of copies of a value."""
        undefined = ir.Constant(self.vector(kind), ir.Undefined)
        one = self.builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None)
        return self.builder.shuffle_vector(one, undefined, zeros)


def intrinsic(define: Callable[..., Any]) -> Any:
    """Make a function callable in compiled code, without its first argument, as the LLVM IR that it generates.

    It gets the types of the arguments and returns the signature and emit(emitter, values...), which generates the IR.
    For an array, `emit` gets the address of the first element.
    """

    @functools.wraps(define)
    def typed(typing: Any, *kinds: Any) -> Any:
        signature, emit = define(typing, *kinds)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = [
                make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
                for kind, value in zip(signature.args, args, strict=True)
            ]
            result = emit(Emitter(context, builder, signature.args), *values)
            return context.get_dummy_value() if signature.return_type == types.void else result

        return signature, generate

    return extending.intrinsic(typed)


def statement(emit: Callable[..., None]) -> Any:
    """Make emit(emitter, values...), whose LLVM IR has no result, callable in compiled code; integers become intp."""

    @functools.wraps(emit)
    def typed(typing: Any, *kinds: Any) -> Any:
        return types.void(*(types.intp if isinstance(kind, types.Integer) else kind for kind in kinds)), emit

    return intrinsic(typed)


@intrinsic
def lane_count(typing: Any, array: Any) -> Any:
    """Return how many elements of the array make one vector, as a constant."""
    return types.intp(array), lambda emitter, data: emitter.context.get_constant(types.intp, lanes_of(array).count)


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """Return the vector that begins at array[index]."""
    kind = lanes_of(array)
    return kind(array, types.intp), lambda emitter, data, index: emitter.load(data, index, kind)


@statement
def store(emitter: Emitter, array: Any, index: Any, value: Any) -> None:
    """Write a vector to array[index] and the following elements."""
    emitter.store(array, index, value, emitter.kinds[2])


@statement
def prefetch(emitter: Emitter, array: Any, index: Any) -> None:
    """Prefetch the cache line of array[index], which may be beyond the array's end."""
    emitter.prefetch(array, index)


@statement
def prefetch_far(emitter: Emitter, array: Any, index: Any) -> None:
    """Prefetch the same to the L2 cache: for a block of columns of all rows, row by row, as main memory likes it."""
    emitter.prefetch(array, index, far=True)


@statement
def copy(emitter: Emitter, source: Any, at: Any, target: Any, to: Any, count: Any) -> None:
    """Copy values from source[at] on to target[to] and the following elements; the arrays are of one type.

    For target[to : to + count] = source[at : at + count] numba compiles the message about shapes that differ: a second.
    """
    builder, kind = emitter.builder, emitter.kinds[0]
    places = builder.gep(target, [to]), builder.gep(source, [at])
    cgutils.raw_memcpy(builder, *places, count, kind.dtype.bitwidth // 8)


@intrinsic
def broadcast(typing: Any, array: Any, value: Any) -> Any:
    """Return a vector of the array's type that holds the value in all lanes."""
    kind = lanes_of(array)
    return kind(array, array.dtype), lambda emitter, data, value: emitter.splat(value, kind)


@intrinsic
def added_lanes(typing: Any, vector: Any) -> Any:
    """Return the sum of a vector's elements, halves first."""

    def emit(emitter: Emitter, value: Any) -> Any:
        parts = [emitter.builder.extract_element(value, ir.IntType(32)(i)) for i in range(vector.count)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [emitter.builder.fadd(parts[i], parts[i + half]) for i in range(half)]
        return parts[0]

    return vector.dtype(vector), emit


_wide = Lanes(types.float64, WIDE)


@intrinsic
def load_wide(typing: Any, array: Any, index: Any) -> Any:
    """Return WIDE elements from array[index] on, as float64."""
    own = Lanes(array.dtype, WIDE)

    def emit(emitter: Emitter, data: Any, index: Any) -> Any:
        value = emitter.load(data, index, own)
        return value if own == _wide else emitter.builder.fpext(value, emitter.vector(_wide))

    return _wide(array, types.intp), emit


@intrinsic
def broadcast_wide(typing: Any, value: Any) -> Any:
    """Return a wide vector that holds the value in all lanes."""
    return _wide(types.float64), lambda emitter, value: emitter.splat(value, _wide)


@intrinsic
def narrow(typing: Any, array: Any, value: Any) -> Any:
    """Return a wide vector rounded to the array's type."""
    own = Lanes(array.dtype, WIDE)

    def emit(emitter: Emitter, data: Any, value: Any) -> Any:
        return value if own == _wide else emitter.builder.fptrunc(value, emitter.vector(own))

    return own(array, _wide), emit


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """Return an address as the pointer that numba.carray takes."""
    kind = types.voidptr
    return kind(types.intp), lambda emitter, address: emitter.builder.inttoptr(address, emitter.vector(kind))


def _elementwise(operation: Callable[..., Any]) -> Any:
    """Return an intrinsic that applies operation(emitter, vectors...) to vectors of one type."""
    by_arity = (  # numba needs the number of arguments
        lambda typing, a: (a(a), operation),
        lambda typing, a, b: (a(a, b), operation),
        lambda typing, a, b, c: (a(a, b, c), operation),
        lambda typing, a, b, c, d: (a(a, b, c, d), operation),
    )
    return intrinsic(by_arity[operation.__code__.co_argcount - 2])


def _where_positive(emitter: Emitter, value: Any, then: Any) -> Any:
    zero = ir.Constant(value.type, [0.0] * value.type.count)
    return emitter.builder.select(emitter.builder.fcmp_unordered(">", value, zero), then, zero)


add = _elementwise(lambda emitter, a, b: emitter.builder.fadd(a, b))
subtract = _elementwise(lambda emitter, a, b: emitter.builder.fsub(a, b))
multiply = _elementwise(lambda emitter, a, b: emitter.builder.fmul(a, b))
divide = _elementwise(lambda emitter, a, b: emitter.builder.fdiv(a, b))
multiply_add = _elementwise(lambda emitter, a, b, c: emitter.call("fmuladd", a, b, c))
"""multiply_add(a, b, c) is a * b + c, rounded once on CPUs with a fused multiply-add."""
sqrt = _elementwise(lambda emitter, a: emitter.call("sqrt", a))
absolute = _elementwise(lambda emitter, a: emitter.call("fabs", a))
minimum = _elementwise(lambda emitter, a, b: emitter.ordered(a, b)[0])
maximum = _elementwise(lambda emitter, a, b: emitter.ordered(a, b)[1])
where_less = _elementwise(
    lambda emitter, a, b, c, d: emitter.builder.select(emitter.builder.fcmp_ordered("<", a, b), c, d)
)
"""where_less(a, b, c, d) is c where a < b, else (also where a or b is NaN) d."""
where_positive = _elementwise(_where_positive)
"""where_positive(value, then) is `then` where the value is above zero, or NaN; else zero."""


@helper
def aligned(size: int, like: Any) -> Any:
    """Return a new array of zeros that begins at a cache line: a load across two lines takes twice as long."""
    line = 64 // like.itemsize
    zeros = np.zeros(size + line, like.dtype)
    return zeros[-zeros.ctypes.data % 64 // like.itemsize :]


@helper
def padded(rows: Any, n: int, stride: int, start: int, end: int, width: int) -> Any:
    """Copy columns start, ..., end - 1 of rows[row * stride + column] to a block of `width` columns, padded with zeros.

    Callers choose between this block and the matrix before one common call: numba compiles a call anew for each
    constant among its arguments.
    """
    block = np.zeros(n * width, rows.dtype)
    for row in range(n):
        copy(rows, row * stride + start, block, row * width, end - start)
    return block

"""Vectors of float32 inside Numba kernels: load, store, arithmetic, reductions.

    from tilewright import simd
    LANES = 16                                      # a constant of the module or of an enclosing function

    @simd.kernel("float32(float32[::1], float32[::1])", name="dot")
    def dot(x, y):
        total = simd.zeros(LANES)
        for i in range(0, x.size, LANES):           # the last load is masked: nothing after the array is read
            left = x.size - i
            total = simd.fma(simd.load_first(x, i, left, LANES), simd.load_first(y, i, left, LANES), total)
        return simd.reduce_add(total)

An address is (array, flat index). The array may have any shape and strides; the index counts elements from its first
element in memory. Nothing checks it. `lanes` must be a compile-time constant. The arithmetic works on vectors of
float64 as well (`doubles.py`). `instruction.py` explains how the functions below are declared.
"""

from llvmlite import ir
from numba import types

from tilewright.hardware import cpu
from tilewright.simd.instruction import instruction, same, vector
from tilewright.simd.types import (
    BIT,
    FLOAT,
    I8,
    I16,
    I32,
    Vector,
    broadcast_lane,
    call,
    filled,
    lane_mask,
    lane_numbers,
    lanewise,
    name_of,
    vector_of,
)

SHIFT, SHIFT_BITS = 1.5 * 2**23, 0x4B400000  # x + SHIFT has the integer x in its low bits; SHIFT's own bits
WORD = 4  # bytes of a float32: the only alignment that an address is known to have
HALF = 2  # bytes of a bfloat16, likewise


@instruction(lambda lanes: vector(lanes)(lanes))
def zeros(builder, lanes):
    """A vector of zeros."""
    return filled(vector_of(lanes), 0.0)


@instruction(lambda value, lanes: vector(lanes)(types.float32, lanes))
def splat(builder, value, lanes):
    """`value` (float32) in every lane."""
    return broadcast_lane(builder, value, lanes)


@instruction(lambda like, value: like(like, types.float64) if isinstance(like, Vector) else None)
def fill(builder, like, value):
    """`value`, a Python float rounded to float32, in every lane of a vector as wide as `like`."""
    return broadcast_lane(builder, builder.fptrunc(value, FLOAT), like.type.count)


def load_vector(builder, at, lanes: int):
    """Load `lanes` float32 from the LLVM pointer `at`."""
    return builder.load(builder.bitcast(at, vector_of(lanes).as_pointer()), align=WORD)


def store_vector(builder, value, at):
    """Store a vector to the LLVM pointer `at`."""
    builder.store(value, builder.bitcast(at, value.type.as_pointer()), align=_alignment(value.type))


def load_some(builder, at, count, lanes: int, element=FLOAT):
    """Load the first `count` lanes from the LLVM pointer `at`, zeros elsewhere; no other address is touched."""
    kind = vector_of(lanes, element)
    operands = [builder.bitcast(at, kind.as_pointer()), I32(_alignment(kind)), lane_mask(builder, count, lanes)]
    zero = filled(kind, 0 if element == I16 else 0.0)
    return call(builder, f"llvm.masked.load.{name_of(kind)}.p0", kind, *operands, zero)


def store_some(builder, value, at, count):
    """Store the first `count` lanes to the LLVM pointer `at`."""
    at, mask = builder.bitcast(at, value.type.as_pointer()), lane_mask(builder, count, value.type.count)
    name = f"llvm.masked.store.{name_of(value.type)}.p0"
    call(builder, name, ir.VoidType(), value, at, I32(_alignment(value.type)), mask)


def _alignment(kind: ir.VectorType) -> int:
    return HALF if kind.element == I16 else WORD


@instruction(lambda array, index, lanes: vector(lanes)(array, types.intp, lanes))
def load(builder, array, index, lanes):
    """`array.flat[index : index + lanes]`, at any alignment."""
    return load_vector(builder, array.at(index), lanes)


@instruction(lambda array, index, count, lanes: vector(lanes)(array, types.intp, types.intp, lanes))
def load_first(builder, array, index, count, lanes):
    """The first `count` lanes from `array.flat[index:]`, zeros in the others; nothing after them is read."""
    return load_some(builder, array.at(index), count, lanes)


@instruction(lambda array, index, value: types.void(array, types.intp, value))
def store(builder, array, index, value):
    """`array.flat[index : index + lanes] = value`."""
    store_vector(builder, value, array.at(index))


@instruction(lambda array, index, value, count: types.void(array, types.intp, value, types.intp))
def store_first(builder, array, index, value, count):
    """Store the first `count` lanes; nothing after them is written."""
    store_some(builder, value, array.at(index), count)


@instruction(lambda array, index, lanes: vector(lanes)(array, types.intp, lanes))
def broadcast(builder, array, index, lanes):
    """`array.flat[index]` in every lane."""
    return broadcast_lane(builder, builder.load(array.at(index), align=WORD), lanes)


@instruction(lambda array, index: array.dtype(array, types.intp))
def fetch(builder, array, index):
    """`array.flat[index]` as a scalar, without Numba's check for a negative index."""
    return builder.load(array.at(index))


add = instruction(same, "add", "a + b.")(lambda builder, a, b: builder.fadd(a, b))
subtract = instruction(same, "subtract", "a - b.")(lambda builder, a, b: builder.fsub(a, b))
multiply = instruction(same, "multiply", "a * b.")(lambda builder, a, b: builder.fmul(a, b))
divide = instruction(same, "divide", "a / b.")(lambda builder, a, b: builder.fdiv(a, b))
maximum = instruction(same, "maximum", "The larger of two lanes, NaN if either is (IEEE 754-2019 maximum).")(
    lambda builder, a, b: lanewise(builder, "maximum", a, b)
)
absolute = instruction(same, "absolute", "|a|.")(lambda builder, a: lanewise(builder, "fabs", a))
round_even = instruction(same, "round_even", "The nearest integer, ties to the even one.")(
    lambda builder, a: lanewise(builder, "rint", a)
)
copy_sign = instruction(same, "copy_sign", "|a| with the sign of b.")(
    lambda builder, a, b: lanewise(builder, "copysign", a, b)
)


@instruction(same)
def fma(builder, a, b, c):
    """a * b + c, rounded once."""
    return lanewise(builder, "fma", a, b, c)


@instruction(same)
def select_greater(builder, a, b, yes, no):
    """`yes if a > b else no` in each lane, one comparison and one blend; a NaN compares false."""
    return builder.select(builder.fcmp_ordered(">", a, b), yes, no)


@instruction(same)
def scale(builder, a, n):
    """a * 2**n for a vector n of integers from -252 to 252, rounded once; a NaN in n counts as some integer, or as NaN.

    One instruction of AVX-512. Elsewhere two multiplications: neither factor leaves the range of float32 where the
    product does not.
    """
    lanes = a.type.count
    if lanes == 16 and cpu().has("avx512f"):
        every_lane, current_rounding = I16(-1), I32(4)
        return call(builder, "llvm.x86.avx512.mask.scalef.ps.512", a.type, a, n, a, every_lane, current_rounding)
    ints = vector_of(lanes, I32)
    shifted = builder.fadd(n, filled(a.type, SHIFT))  # the low bits are the integer now
    exponent = builder.sub(builder.bitcast(shifted, ints), filled(ints, SHIFT_BITS))
    half = builder.ashr(exponent, filled(ints, 1))
    for part in (half, builder.sub(exponent, half)):
        power = builder.shl(builder.add(part, filled(ints, 127)), filled(ints, 23))  # the bits of 2**part
        a = builder.fmul(a, builder.bitcast(power, a.type))
    return a


def reduced(builder, value, combine):
    """Halve the vector until one lane is left: a fixed order, lane i with lane i + lanes / 2."""
    lanes = value.type.count
    while lanes > 1:
        lanes //= 2
        low, high = (builder.shuffle_vector(value, value, lane_numbers(first, lanes)) for first in (0, lanes))
        value = combine(low, high)
    return builder.extract_element(value, I32(0))


@instruction(lambda a: types.float32(a))
def reduce_add(builder, a):
    """The sum of the lanes, by halves: (a[0] + a[lanes / 2]) and so on, the same order everywhere."""
    return reduced(builder, a, builder.fadd)


@instruction(lambda a: types.float32(a))
def reduce_max(builder, a):
    """The largest lane; NaN if one is."""
    return reduced(builder, a, lambda low, high: lanewise(builder, "maximum", low, high))


def _prefetch(name: str, doc: str, *, write: int = 0, locality: int = 3):
    """A prefetch instruction. locality: LLVM's, from 0 to 3, which is every level of cache."""

    def emit(builder, array, index):
        line = builder.bitcast(array.at(index), I8.as_pointer())
        call(builder, "llvm.prefetch.p0", ir.VoidType(), line, I32(write), I32(locality), I32(1))

    return instruction(lambda array, index: types.void(array, types.intp), name, doc)(emit)


prefetch = _prefetch("prefetch", "Prefetch the cache line of `array.flat[index]` to every level; never faults.")
prefetch_far = _prefetch("prefetch_far", "As `prefetch`, to the second level only.", locality=2)
prefetch_write = _prefetch("prefetch_write", "As `prefetch`, for a line that will be written.", write=1)


@instruction(lambda array, to, source, count: types.void(array, types.intp, types.intp, types.intp))
def copy(builder, array, to, source, count):
    """`array.flat[to : to + count] = array.flat[source : source + count]`, of any element type; they may overlap."""
    ends = [builder.bitcast(array.at(index), I8.as_pointer()) for index in (to, source)]
    size = builder.mul(count, count.type(array.dtype.bitwidth // 8))
    call(builder, "llvm.memmove.p0.p0.i64", ir.VoidType(), *ends, size, BIT(0))

"""Vectors of float32 inside Numba kernels: load, store, arithmetic, reductions.

    from tilewright import simd
    LANES = 16                                      # a constant of the module or of an enclosing function

    @simd.kernel("float32(float32[::1], float32[::1])", name="dot")
    def dot(x, y):
        total = simd.zeros(LANES)
        for i in range(0, x.size, LANES):           # the last load reads only what is there
            left = x.size - i
            total = simd.fma(simd.load_first(x, i, left, LANES), simd.load_first(y, i, left, LANES), total)
        return simd.reduce_add(total)

An address is (array, flat index): the array may have any shape and strides, the index counts elements from its first
element in memory. Nothing checks it. `lanes` must be a compile-time constant.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tilewright.hardware import cpu
from tilewright.simd.types import I32, Vector, broadcast_lane, call, filled, lane_mask, pointer, vector_of

SHIFT, SHIFT_BITS = 1.5 * 2**23, 0x4B400000  # x + SHIFT has the integer x in its low bits; SHIFT's own bits
WORD = 4  # bytes of a float32: the only alignment an address is known to have


def _of(lanes) -> Vector:
    """The vector type for a literal number of lanes."""
    return Vector(lanes.literal_value)


@intrinsic(prefer_literal=True)
def zeros(typingctx, lanes):
    """A vector of zeros."""

    def codegen(context, builder, sig, args):
        return filled(vector_of(sig.return_type.lanes), 0.0)

    return _of(lanes)(lanes), codegen


@intrinsic(prefer_literal=True)
def splat(typingctx, value, lanes):
    """`value` (float32) in every lane."""

    def codegen(context, builder, sig, args):
        return broadcast_lane(builder, args[0], sig.return_type.lanes)

    return _of(lanes)(types.float32, lanes), codegen


@intrinsic
def fill(typingctx, like, value):
    """`value`, a Python float rounded to float32, in every lane of a vector as wide as `like`."""
    if not isinstance(like, Vector):
        return None

    def codegen(context, builder, sig, args):
        return broadcast_lane(builder, builder.fptrunc(args[1], ir.FloatType()), sig.return_type.lanes)

    return like(like, types.float64), codegen


@intrinsic(prefer_literal=True)
def load(typingctx, array, index, lanes):
    """`array.flat[index : index + lanes]`, at any alignment."""

    def codegen(context, builder, sig, args):
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        return load_vector(builder, at, sig.return_type.lanes)

    return _of(lanes)(array, types.intp, lanes), codegen


def load_vector(builder, at, lanes: int):
    """Load `lanes` float32 from the LLVM pointer `at`."""
    return builder.load(builder.bitcast(at, vector_of(lanes).as_pointer()), align=WORD)


def load_bfloat16(builder, at, lanes: int):
    """Load `lanes` bfloat16 from the LLVM pointer `at` to 16-bit integers, as float32."""
    halves = builder.load(builder.bitcast(at, vector_of(lanes, ir.IntType(16)).as_pointer()), align=2)
    bits = builder.zext(halves, vector_of(lanes, I32))
    return builder.bitcast(builder.shl(bits, filled(bits.type, 16)), vector_of(lanes))


def store_vector(builder, value, at):
    """Store a vector to the LLVM pointer `at`."""
    builder.store(value, builder.bitcast(at, value.type.as_pointer()), align=WORD)


def load_some(builder, at, count, lanes: int):
    """Load the first `count` lanes from the LLVM pointer `at`, zeros elsewhere; the other addresses are not touched."""
    vector = vector_of(lanes)
    at = builder.bitcast(at, vector.as_pointer())
    name = f"llvm.masked.load.v{lanes}f32.p0"
    return call(builder, name, vector, at, I32(WORD), lane_mask(builder, count, lanes), filled(vector, 0.0))


def store_some(builder, value, at, count):
    """Store the first `count` lanes to the LLVM pointer `at`."""
    lanes = value.type.count
    at = builder.bitcast(at, value.type.as_pointer())
    name = f"llvm.masked.store.v{lanes}f32.p0"
    call(builder, name, ir.VoidType(), value, at, I32(WORD), lane_mask(builder, count, lanes))


@intrinsic(prefer_literal=True)
def load_first(typingctx, array, index, count, lanes):
    """The first `count` lanes from `array.flat[index:]`, zeros in the others; nothing beyond `count` is read."""

    def codegen(context, builder, sig, args):
        at = pointer(context, builder, sig.args[0], args[0], args[1])
        return load_some(builder, at, args[2], sig.return_type.lanes)

    return _of(lanes)(array, types.intp, types.intp, lanes), codegen


@intrinsic
def store(typingctx, array, index, value):
    """`array.flat[index : index + lanes] = value`."""

    def codegen(context, builder, sig, args):
        store_vector(builder, args[2], pointer(context, builder, sig.args[0], args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


@intrinsic
def store_first(typingctx, array, index, value, count):
    """Store the first `count` lanes; nothing beyond them is written."""

    def codegen(context, builder, sig, args):
        store_some(builder, args[2], pointer(context, builder, sig.args[0], args[0], args[1]), args[3])
        return context.get_dummy_value()

    return types.void(array, types.intp, value, types.intp), codegen


@intrinsic(prefer_literal=True)
def broadcast(typingctx, array, index, lanes):
    """`array.flat[index]` in every lane."""

    def codegen(context, builder, sig, args):
        scalar = builder.load(pointer(context, builder, sig.args[0], args[0], args[1]), align=WORD)
        return broadcast_lane(builder, scalar, sig.return_type.lanes)

    return _of(lanes)(array, types.intp, lanes), codegen


@intrinsic
def fetch(typingctx, array, index):
    """`array.flat[index]` as a scalar, without Numba's check for a negative index."""

    def codegen(context, builder, sig, args):
        return builder.load(pointer(context, builder, sig.args[0], args[0], args[1]))

    return array.dtype(array, types.intp), codegen


def _lanewise(typing, name: str, doc: str):
    """Make the intrinsic `name` of a typing function."""
    typing.__name__, typing.__doc__ = name, doc
    return intrinsic(typing)


def _same_vector(*operands) -> bool:
    return isinstance(operands[0], Vector) and len(set(operands)) == 1


def _binary(name: str, emit, doc: str):
    """An intrinsic of two equal vectors; `emit(builder, lanes, a, b)` writes its LLVM code."""

    def typing(typingctx, a, b):
        if _same_vector(a, b):
            return a(a, b), lambda context, builder, sig, args: emit(builder, sig.return_type.lanes, *args)
        return None

    return _lanewise(typing, name, doc)


def _llvm(operation: str):
    return lambda builder, lanes, *args: call(builder, f"llvm.{operation}.v{lanes}f32", vector_of(lanes), *args)


add = _binary("add", lambda builder, lanes, a, b: builder.fadd(a, b), "a + b")
subtract = _binary("subtract", lambda builder, lanes, a, b: builder.fsub(a, b), "a - b")
multiply = _binary("multiply", lambda builder, lanes, a, b: builder.fmul(a, b), "a * b")
divide = _binary("divide", lambda builder, lanes, a, b: builder.fdiv(a, b), "a / b")
maximum = _binary("maximum", _llvm("maximum"), "The larger lane, NaN if either is (IEEE 754-2019 maximum).")
minimum = _binary("minimum", _llvm("minimum"), "The smaller lane, NaN if either is (IEEE 754-2019 minimum).")


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c, rounded once."""
    if _same_vector(a, b, c):
        return a(a, b, c), lambda context, builder, sig, args: _llvm("fma")(builder, sig.return_type.lanes, *args)
    return None


def _unary(name: str, emit, doc: str):
    """An intrinsic of one vector; `emit(builder, lanes, a)` writes its LLVM code."""

    def typing(typingctx, a):
        if isinstance(a, Vector):
            return a(a), lambda context, builder, sig, args: emit(builder, sig.return_type.lanes, *args)
        return None

    return _lanewise(typing, name, doc)


absolute = _unary("absolute", _llvm("fabs"), "|a|.")
square_root = _unary("square_root", _llvm("sqrt"), "The square root, correctly rounded; NaN below zero.")
round_even = _unary("round_even", _llvm("rint"), "The nearest integer, ties to the even one.")
copy_sign = _binary("copy_sign", _llvm("copysign"), "|a| with the sign of b.")


@intrinsic
def scale(typingctx, a, n):
    """a * 2**n for a vector n of integers from -252 to 252, rounded once; a NaN in n counts as some integer, or as NaN.

    One instruction of AVX-512; elsewhere two factors, so that neither leaves the range of float32 where the product
    does not.
    """
    if not _same_vector(a, n):
        return None

    def codegen(context, builder, sig, args):
        lanes = sig.return_type.lanes
        if lanes == 16 and cpu().has("avx512f"):
            everywhere, as_set = ir.Constant(ir.IntType(16), -1), I32(4)  # no lane masked; the current rounding mode
            name, (value, n) = "llvm.x86.avx512.mask.scalef.ps.512", args
            return call(builder, name, value.type, value, n, value, everywhere, as_set)
        ints = vector_of(lanes, I32)
        shifted = builder.fadd(args[1], filled(vector_of(lanes), SHIFT))  # the integer stands in the low bits now
        n = builder.sub(builder.bitcast(shifted, ints), filled(ints, SHIFT_BITS))
        half = builder.ashr(n, filled(ints, 1))
        value = args[0]
        for part in (half, builder.sub(n, half)):
            power = builder.shl(builder.add(part, filled(ints, 127)), filled(ints, 23))
            value = builder.fmul(value, builder.bitcast(power, vector_of(lanes)))
        return value

    return a(a, n), codegen


@intrinsic
def select_greater(typingctx, a, b, yes, no):
    """Lane by lane `yes if a > b else no` (a NaN compares false): compare and blend in one."""
    if not _same_vector(a, b, yes, no):
        return None

    def codegen(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[2], args[3])

    return a(a, a, a, a), codegen


def _reduction(builder, value, combine):
    """Halve the vector until one lane is left: a fixed order, lane i with lane i + lanes / 2."""
    lanes = value.type.count
    while lanes > 1:
        lanes //= 2
        low, high = (
            builder.shuffle_vector(value, value, ir.Constant(vector_of(lanes, I32), list(range(at, at + lanes))))
            for at in (0, lanes)
        )
        value = combine(builder, lanes, low, high)
    return builder.extract_element(value, I32(0))


@intrinsic
def reduce_add(typingctx, a):
    """The sum of the lanes, by halves: (a[0] + a[lanes/2]) and so on, the same order everywhere."""

    def codegen(context, builder, sig, args):
        return _reduction(builder, args[0], lambda builder, lanes, a, b: builder.fadd(a, b))

    return types.float32(a), codegen


@intrinsic
def reduce_max(typingctx, a):
    """The largest lane; NaN if one is."""

    def codegen(context, builder, sig, args):
        return _reduction(builder, args[0], _llvm("maximum"))

    return types.float32(a), codegen


def _prefetching(name: str, write: int, doc: str, level: int = 3):
    """An intrinsic that asks for a cache line."""

    def typing(typingctx, array, index):
        def codegen(context, builder, sig, args):
            at = pointer(context, builder, sig.args[0], args[0], args[1])
            at = builder.bitcast(at, ir.IntType(8).as_pointer())
            call(builder, "llvm.prefetch.p0", ir.VoidType(), at, I32(write), I32(level), I32(1))
            return context.get_dummy_value()

        return types.void(array, types.intp), codegen

    typing.__name__, typing.__doc__ = name, doc
    return intrinsic(typing)


prefetch = _prefetching("prefetch", 0, "Ask for the cache line of `array.flat[index]` in every level; never faults.")
prefetch_far = _prefetching("prefetch_far", 0, "As `prefetch`, up to the second level alone.", 2)
prefetch_write = _prefetching(
    "prefetch_write", 1, "As `prefetch`, for a line that will be written: no other core keeps it."
)


@intrinsic
def copy(typingctx, array, to, source, count):
    """`array.flat[to : to + count] = array.flat[source : source + count]`, of any element type; they may overlap."""

    def codegen(context, builder, sig, args):
        array_, to_, source_, count_ = args
        byte = ir.IntType(8).as_pointer()
        ends = [builder.bitcast(pointer(context, builder, sig.args[0], array_, at), byte) for at in (to_, source_)]
        size = builder.mul(count_, count_.type(sig.args[0].dtype.bitwidth // 8))
        call(builder, "llvm.memmove.p0.p0.i64", ir.VoidType(), *ends, size, ir.IntType(1)(0))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.intp), codegen

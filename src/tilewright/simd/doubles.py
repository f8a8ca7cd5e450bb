"""Vectors of float64: sums that float32 is too short for, and exp to the last bits.

`add`, `subtract`, `multiply`, `divide`, `select_greater` and `store` take them as they take vectors of float32.
"""

from llvmlite import ir
from numba import types

from tilewright.simd.instruction import instruction
from tilewright.simd.types import BIT, DOUBLE, I64, Vector, broadcast_lane, call, filled, lanewise, vector_of
from tilewright.simd.vectors import WORD, load_vector, reduced

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471805598903, 5.497923018708371e-14  # the first has 42 bits: n * LN2_HIGH is exact
SHIFT = 1.5 * 2**52  # x + SHIFT has the integer x in its low bits
MANTISSA = 52  # bits
EXP_LEAST = -708.0  # exp is 0 below: above it every result is a normal number
EXP_TAIL = (  # of (exp(r) - 1 - r) / r**2
    0.5000000000000001, 0.16666666666666669, 0.04166666666662399, 0.008333333333330051, 0.0013888888917281794,
    0.00019841269863105968, 2.480152119021773e-05, 2.7557268378684192e-06, 2.7620138719733994e-07,
    2.5100424157005067e-08,
)  # fmt: skip


def doubles(lanes) -> Vector:
    """The type of a float64 vector whose width is a compile-time constant."""
    return Vector(lanes.literal_value, double=True)


def is_double(kind) -> bool:
    """True for the type of a float64 vector."""
    return isinstance(kind, Vector) and kind.double


@instruction(lambda value, lanes: doubles(lanes)(types.float64, lanes))
def splat_double(builder, value, lanes):
    """`value` (float64) in every lane."""
    return broadcast_lane(builder, value, lanes)


@instruction(lambda array, index, lanes: doubles(lanes)(array, types.intp, lanes))
def load_double(builder, array, index, lanes):
    """`array.flat[index : index + lanes]` of a float64 array, or of a float32 array, whose elements are widened."""
    at, wide = array.at(index), vector_of(lanes, DOUBLE)
    if array.dtype == types.float32:
        return builder.fpext(load_vector(builder, at, lanes), wide)
    return builder.load(builder.bitcast(at, wide.as_pointer()), align=WORD)


@instruction(lambda a: types.float64(a) if is_double(a) else None)
def reduce_add_double(builder, a):
    """The sum of the lanes, float64, by halves."""
    return reduced(builder, a, builder.fadd)


@instruction(lambda a, b: types.int64(a, b) if isinstance(a, Vector) and a == b else None)
def lanes_at_least(builder, a, b):
    """An integer whose bit i says if lane i of a is at least lane i of b; for float32 and float64."""
    mask = builder.fcmp_ordered(">=", a, b)
    return builder.zext(builder.bitcast(mask, ir.IntType(a.type.count)), I64)


@instruction(lambda mask: types.int64(types.int64))
def lowest_bit(builder, mask):
    """The index of an integer's lowest set bit; the integer is not 0."""
    return call(builder, "llvm.cttz.i64", I64, mask, BIT(1))


@instruction(lambda x: x(x) if is_double(x) else None)
def exp_double(builder, x):
    """e**x for x from minus infinity to 0, within 1.1 ULP; 0 below -708, where results would be subnormal; exp(0) is 1.

    x = n ln 2 + r. exp(r) is a polynomial (Chebyshev interpolation of degree 11), and n is added to its exponent.
    """
    kind, ints = x.type, vector_of(x.type.count, I64)

    def constant(value):
        return filled(kind, value)

    def fma(a, b, c):
        return lanewise(builder, "fma", a, b, c)

    shifted = fma(x, constant(LOG2_E), constant(SHIFT))
    n = builder.fsub(shifted, constant(SHIFT))
    r = fma(n, constant(-LN2_LOW), fma(n, constant(-LN2_HIGH), x))  # |r| <= ln(2) / 2
    p = constant(EXP_TAIL[-1])
    for coefficient in EXP_TAIL[-2::-1]:
        p = fma(p, r, constant(coefficient))
    p = builder.fadd(fma(p, builder.fmul(r, r), r), constant(1.0))
    exponent = builder.shl(builder.bitcast(shifted, ints), filled(ints, MANTISSA))
    result = builder.bitcast(builder.add(builder.bitcast(p, ints), exponent), kind)
    return builder.select(builder.fcmp_ordered(">=", x, constant(EXP_LEAST)), result, constant(0.0))

"""Vectors of float64: sums that float32 is too short for, and exp to the last bits.

`add`, `subtract`, `multiply`, `divide`, `select_greater` and `store` take them as they take vectors of float32.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from tilewright.simd.types import I64, Vector, broadcast_lane, call, filled, pointer, vector_of
from tilewright.simd.vectors import load_vector

DOUBLE = ir.DoubleType()
WORD = 4  # bytes: the only alignment an address is known to have
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471805598903, 5.497923018708371e-14  # the first has 42 bits: n * LN2_HIGH is exact
SHIFT = 1.5 * 2**52  # x + SHIFT has the integer x in its low bits
EXP_LEAST = -708.0  # exp is 0 below: above it every result is a normal number
EXP_TAIL = (  # of (exp(r) - 1 - r) / r**2
    0.5000000000000001, 0.16666666666666669, 0.04166666666662399, 0.008333333333330051, 0.0013888888917281794,
    0.00019841269863105968, 2.480152119021773e-05, 2.7557268378684192e-06, 2.7620138719733994e-07,
    2.5100424157005067e-08,
)  # fmt: skip


class Doubles(Vector):
    """`lanes` float64 numbers in one register, or in two where registers are shorter."""

    def __init__(self, lanes: int):
        self.lanes = lanes
        types.Type.__init__(self, f"Doubles({lanes})")


@register_model(Doubles)
class _DoublesModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, vector_of(fe_type.lanes, DOUBLE))


@intrinsic(prefer_literal=True)
def splat_double(typingctx, value, lanes):
    """`value` (float64) in every lane."""

    def codegen(context, builder, sig, args):
        return broadcast_lane(builder, args[0], sig.return_type.lanes)

    return Doubles(lanes.literal_value)(types.float64, lanes), codegen


@intrinsic(prefer_literal=True)
def load_double(typingctx, array, index, lanes):
    """`array.flat[index : index + lanes]` of float64, or of float32 numbers, which are widened."""

    def codegen(context, builder, sig, args):
        at, lanes = pointer(context, builder, sig.args[0], args[0], args[1]), sig.return_type.lanes
        wide = vector_of(lanes, DOUBLE)
        if sig.args[0].dtype == types.float32:
            return builder.fpext(load_vector(builder, at, lanes), wide)
        return builder.load(builder.bitcast(at, wide.as_pointer()), align=WORD)

    return Doubles(lanes.literal_value)(array, types.intp, lanes), codegen


@intrinsic
def reduce_add_double(typingctx, a):
    """The sum of the lanes, float64, by halves."""

    def codegen(context, builder, sig, args):
        value, lanes = args[0], sig.args[0].lanes
        while lanes > 1:
            lanes //= 2
            halves = (ir.Constant(vector_of(lanes, ir.IntType(32)), list(range(at, at + lanes))) for at in (0, lanes))
            value = builder.fadd(*(builder.shuffle_vector(value, value, half) for half in halves))
        return builder.extract_element(value, ir.IntType(32)(0))

    return (types.float64(a), codegen) if isinstance(a, Doubles) else None


@intrinsic
def lanes_at_least(typingctx, a, b):
    """An integer whose bit i says whether lane i of a is at least that of b; for vectors of either kind."""

    def codegen(context, builder, sig, args):
        mask = builder.fcmp_ordered(">=", *args)
        return builder.zext(builder.bitcast(mask, ir.IntType(sig.args[0].lanes)), I64)

    return (types.int64(a, b), codegen) if isinstance(a, Vector) and a == b else None


@intrinsic
def lowest_bit(typingctx, mask):
    """The place of an integer's lowest set bit; the integer is not 0."""

    def codegen(context, builder, sig, args):
        return call(builder, "llvm.cttz.i64", I64, args[0], ir.IntType(1)(1))

    return types.int64(types.int64), codegen


@intrinsic
def exp_double(typingctx, x):
    """e**x for x from minus infinity to 0, within 1.1 ULP; 0 below -708, where normal numbers end; exp(0) is 1.

    x = n ln 2 + r; a polynomial of r (Chebyshev interpolation of degree 11), whose exponent n is added to.
    """
    if not isinstance(x, Doubles):
        return None

    def codegen(context, builder, sig, args):
        (x,), kind = args, args[0].type
        ints = vector_of(kind.count, I64)

        def fma(a, b, c):
            return call(builder, f"llvm.fma.v{kind.count}f64", kind, a, b, c)

        shifted = fma(x, filled(kind, LOG2_E), filled(kind, SHIFT))
        n = builder.fsub(shifted, filled(kind, SHIFT))
        r = fma(n, filled(kind, -LN2_LOW), fma(n, filled(kind, -LN2_HIGH), x))  # |r| <= ln(2) / 2
        p = filled(kind, EXP_TAIL[-1])
        for coefficient in EXP_TAIL[-2::-1]:
            p = fma(p, r, filled(kind, coefficient))
        p = builder.fadd(fma(p, builder.fmul(r, r), r), filled(kind, 1.0))
        exponent = builder.shl(builder.bitcast(shifted, ints), filled(ints, 52))
        result = builder.bitcast(builder.add(builder.bitcast(p, ints), exponent), kind)
        inside = builder.fcmp_ordered(">=", x, filled(kind, EXP_LEAST))
        return builder.select(inside, result, filled(kind, 0.0))

    return x(x), codegen

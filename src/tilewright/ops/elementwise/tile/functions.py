"""exp, tanh and GELU of float32 tiles for every input: the polynomials of `tilewright.simd.functions`, in Triton.

A result below the normal range is rounded once. Divisions are the GPU's own, good to 2 ULP, so the worst errors
are larger than on the CPU: `problem.WORST_ULP` times the rung's constant. Compile kernels that call GELU with
`enable_fp_fusion=False`: the code computes the rounding errors of products and sums, and fused ones have others.
"""

import triton
import triton.language as tl

from tilewright.ops.gemm.tile.epilogue import CUBIC as POWER_CUBIC
from tilewright.ops.gemm.tile.epilogue import INTERPRETED
from tilewright.ops.gemm.tile.epilogue import SLOPE as POWER_SLOPE

LOG2_E = tl.constexpr(1.4426950408889634)
LN2_HIGH, LN2_LOW = tl.constexpr(0.693359375), tl.constexpr(-2.12194440054690583e-4)  # n * LN2_HIGH is exact
EXP_LEAST, EXP_MOST = tl.constexpr(-104.0), tl.constexpr(89.0)  # exp is 0 below the first, infinite above the second
TO_INTEGER = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it to x rounds x to an integer, in the last bits
INTEGER_BITS = tl.constexpr(0x4B400000)  # of TO_INTEGER
SLOPE, SLOPE_REST = tl.constexpr(1.5957691669464111), tl.constexpr(-4.534068032135963e-08)  # 2 sqrt(2 / pi)
CUBIC, CUBIC_REST = tl.constexpr(0.07135481387376785), tl.constexpr(2.3988323966106506e-09)  # 0.044715 times that
TANH_FORM_END, EXACT_END = tl.constexpr(11.0), tl.constexpr(16.0)  # GELU is -0 below their negatives
KNEE = tl.constexpr(3.5)  # the point around which Mills' ratio is expanded


@triton.jit
def limited(x, least, most):
    """x limited to a range; a NaN stays."""
    x = tl.where(x < least, least, x)
    return tl.where(x > most, most, x)


@triton.jit
def exp_parts(x):
    """(p, n) with exp(x) = p * 2**n, p near 1 and n an int32, for x from -300 to 90."""
    shifted = tl.fma(x, LOG2_E, TO_INTEGER)
    n = shifted - TO_INTEGER
    r = tl.fma(n, -LN2_LOW, tl.fma(n, -LN2_HIGH, x))  # |r| <= ln(2) / 2
    p = tl.fma(r, 0.001381461275741458, 0.008368710055947304)
    p = tl.fma(p, r, 0.04166838899254799)
    p = tl.fma(p, r, 0.1666652113199234)
    p = tl.fma(p, r, 0.4999999403953552)
    return tl.fma(p, r * r, r) + 1.0, shifted.to(tl.int32, bitcast=True) - INTEGER_BITS


@triton.jit
def scale(p, n):
    """p * 2**n, n an int32 from -252 to 254; two factors, so that only the last product may be rounded."""
    half = n >> 1
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    return p * first * ((n - half + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exp(x):
    """e**x; 0 or infinity outside the range of float32; NaN stays."""
    p, n = exp_parts(limited(x, EXP_LEAST, EXP_MOST))
    return scale(p, n)


@triton.jit
def exp_to(out, x):
    """e**x, x <= 0, for a result that is stored in `out`. For 16 bits the GPU's own exp, two instructions instead of
    twenty, whose relative error is |x| / 2 units of float32's last place."""
    if out.dtype.element_ty.primitive_bitwidth == 16:
        return tl.exp(x)
    else:
        return exp(x)


@triton.jit
def tanh(x):
    """The hyperbolic tangent: an odd polynomial up to 0.625, 1 - 2 / (exp(2|x|) + 1) above."""
    size = tl.abs(x)
    z = x * x
    p = tl.fma(z, -5.70498872745e-3, 2.06390887954e-2)
    p = tl.fma(p, z, -5.37397155531e-2)
    p = tl.fma(p, z, 1.33314422036e-1)
    p = tl.fma(p, z, -3.33332819422e-1)
    small = tl.fma(p * z, x, x)
    large = 1.0 - 2.0 / (exp(size * 2.0) + 1.0)
    return tl.where(size > 0.625, tl.where(x < 0, -large, large), small)


@triton.jit
def gelu_tanh(x):
    """x / (1 + exp(-t)), t = 2 sqrt(2 / pi) (x + 0.044715 x**3), t as the sum of two float32."""
    size = tl.where(tl.abs(x) > TANH_FORM_END, TANH_FORM_END, tl.abs(x))
    square = size * size
    square_rest = tl.fma(size, size, -square)
    bend = square * CUBIC
    bend_rest = tl.fma(square_rest, CUBIC, tl.fma(square, CUBIC_REST, tl.fma(square, CUBIC, -bend)))
    factor = bend + SLOPE
    added = factor - SLOPE  # the part of bend that the sum contains
    factor_rest = (SLOPE - (factor - added)) + (bend - added) + bend_rest + SLOPE_REST
    t = size * factor
    t_rest = tl.fma(size, factor_rest, tl.fma(size, factor, -t))
    p, n = exp_parts(-t)
    p = tl.fma(p, -t_rest, p)
    quotient = tl.where(x < -TANH_FORM_END, -TANH_FORM_END, x) / (scale(p, n) + 1.0)
    return tl.where(x < 0, scale(quotient * p, n), quotient)


@triton.jit
def gelu_tanh_short(x):
    """gelu_tanh to 2**-20, enough for a result of 16 bits, in a third of the operations: x / (1 + 2**power).

    Above 2**64 the 1 is dropped and the quotient is taken in two steps by the root of 2**power. One step would need a
    reciprocal below float32's normal range, and the GPU's own instruction returns 0 there.
    """
    root = x * (x * x * POWER_CUBIC + POWER_SLOPE) * 0.5
    if INTERPRETED:
        root = tl.exp2(tl.minimum(root, 126.0))
    else:
        root = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [root], tl.float32, True, 1)
    far = root > 4294967296.0
    divisor = tl.where(far, root, 1 + root * root)
    if INTERPRETED:
        inverse = 1 / divisor
    else:
        inverse = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [divisor], tl.float32, True, 1)
    return tl.maximum(x, -30.0) * inverse * tl.where(far, inverse, 1.0)


@triton.jit
def gelu(x):
    """x times the normal distribution function. Its tail above z = |x| is exp(-z**2 / 2) P(t) / (z + KNEE) with a
    polynomial P in t = (z - KNEE) / (z + KNEE)."""
    z = tl.where(tl.abs(x) > EXACT_END, EXACT_END, tl.abs(x))
    inverse = 1.0 / (z + KNEE)
    t = (z - KNEE) * inverse
    p = tl.fma(t, 0.00010486592509550974, 0.00041171498014591634)
    p = tl.fma(p, t, -0.0004947400884702802)
    p = tl.fma(p, t, -0.0031679386738687754)
    p = tl.fma(p, t, 0.006494678556919098)
    p = tl.fma(p, t, 0.017404653131961823)
    p = tl.fma(p, t, -0.11605340242385864)
    p = tl.fma(p, t, 0.31542518734931946)
    p = tl.fma(p, t, -0.5655617117881775)
    ratio = tl.fma(p, t, 0.7444160580635071)
    square = z * z
    square_rest = tl.fma(z, z, -square)
    p, n = exp_parts(square * -0.5)
    p = tl.fma(p, square_rest * -0.5, p)
    tail = ratio * inverse * p
    upper = x * (1.0 - scale(tail, n))
    lower = scale(tl.where(x < -EXACT_END, -EXACT_END, x) * tail, n)
    return tl.where(x < 0, lower, upper)


@triton.jit
def apply(x, out, FUNCTION: tl.constexpr):
    """The function of this name in `reference.FUNCTIONS`, for a result that is stored in `out`; NaN stays."""
    if FUNCTION == "gelu_tanh" and out.dtype.element_ty.primitive_bitwidth == 16:
        return gelu_tanh_short(x)
    elif FUNCTION == "relu":
        return tl.where(x < 0, 0.0, x)
    elif FUNCTION == "tanh":
        return tanh(x)
    elif FUNCTION == "gelu":
        return gelu(x)
    else:
        return gelu_tanh(x)

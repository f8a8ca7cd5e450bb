"""exp, tanh and GELU of float32 tiles for every input: the polynomials of `tilewright.simd.functions`, in Triton.

They are arranged so that it does no harm if the compiler makes one of a product and a sum, and so that a result below
the normal range is rounded once. The worst errors are those of `spec.WORST_ULP`.
"""

import triton
import triton.language as tl

from tilewright.ops.matmul.tile.finish import activate

LOG2_E = tl.constexpr(1.4426950408889634)
LN2_HIGH, LN2_LOW = tl.constexpr(0.693359375), tl.constexpr(-2.12194440054690583e-4)  # n * LN2_HIGH is exact
EXP_LEAST, EXP_MOST = (
    tl.constexpr(-104.0),
    tl.constexpr(40.0),
)  # exp is 0 below the first; nobody asks beyond the second
TO_INTEGER = tl.constexpr(12582912.0)  # 1.5 * 2**23: a number added to it is rounded to an integer, in its last bits
LIFT, LOWER = tl.constexpr((127 + 64) << 23), tl.constexpr(2.0**-64)  # 2**64 as bits, and its inverse
SLOPE, SLOPE_REST = tl.constexpr(1.595768928527832), tl.constexpr(1.930778950054446e-07)  # 2 sqrt(2 / pi)
CUBIC, CUBIC_REST = tl.constexpr(0.07135481387376785), tl.constexpr(2.3988323966106506e-09)  # 0.044715 times that
TANH_FORM_END, EXACT_END = tl.constexpr(11.0), tl.constexpr(16.0)  # below minus these GELU is -0
KNEE = tl.constexpr(3.5)  # where Mills' ratio is expanded


@triton.jit
def at_least(x, least):
    """max(x, least), a NaN as it is."""
    return tl.maximum(x, least, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def reciprocal(x):
    """1 / x to 1 ULP, for x from 1 to 2**60: the root's instruction, squared, and a step of Newton's. Triton's division
    asks about the ends of the range first."""
    root = tl.rsqrt(x)
    inverse = root * root
    return tl.fma(tl.fma(-x, inverse, 1.0), inverse, inverse)


@triton.jit
def exp_parts(x):
    """(p, n) with exp(x) = p * 2**n, p near 1, for x from -300 to 90; n is in the last bits of a float32."""
    moved = tl.fma(x, LOG2_E, TO_INTEGER)
    n = moved - TO_INTEGER
    r = tl.fma(n, -LN2_LOW, tl.fma(n, -LN2_HIGH, x))  # |r| <= ln(2) / 2
    p = tl.fma(r, 0.001381461275741458, 0.008368710055947304)
    p = tl.fma(p, r, 0.04166838899254799)
    p = tl.fma(p, r, 0.1666652113199234)
    p = tl.fma(p, r, 0.4999999403953552)
    return tl.fma(p, r * r, r) + 1.0, moved


@triton.jit
def scale(p, moved):
    """p * 2**n for what `exp_parts` gives, n from -186 to 63: by way of p * 2**(n + 64), so that only the last product
    may be rounded. TO_INTEGER itself leaves no bit where the exponent goes."""
    return p * ((moved.to(tl.int32, bitcast=True) << 23) + LIFT).to(tl.float32, bitcast=True) * LOWER


@triton.jit
def exp(x):
    """e**x for x up to 40: 0 where float32 ends, NaN stays."""
    p, n = exp_parts(at_least(x, EXP_LEAST))
    return scale(p, n)


@triton.jit
def exp_to(out, x):
    """e**x for a result that goes to the tensor `out`, x not above 0: the GPU's own, two instructions for twenty, where
    that has 16 bits. Its relative error is |x| / 2 units of float32's last place."""
    if out.dtype.element_ty.primitive_bitwidth == 16:
        return tl.exp(x)
    else:
        return exp(x)


@triton.jit
def tanh(x):
    """The hyperbolic tangent: an odd polynomial up to 0.625, 1 - 2 / (exp(2|x|) + 1) beyond; a NaN is not beyond."""
    size = tl.abs(x)
    z = x * x
    p = tl.fma(z, -5.70498872745e-3, 2.06390887954e-2)
    p = tl.fma(p, z, -5.37397155531e-2)
    p = tl.fma(p, z, 1.33314422036e-1)
    p = tl.fma(p, z, -3.33332819422e-1)
    small = tl.fma(p * z, x, x)
    large = 1.0 - 2.0 * reciprocal(exp(tl.minimum(size * 2.0, EXP_MOST)) + 1.0)
    return tl.where(size > 0.625, tl.where(x < 0, -large, large), small)


@triton.jit
def gelu_tanh(x):
    """x / (1 + exp(-t)), t = 2 sqrt(2 / pi) (x + 0.044715 x**3), t as the sum of two float32.

    SLOPE is a multiple of 2**-20: where `factor`, a sum of it and a product, is taken from it, and the product added by
    a multiply-add, what is left is what `factor` was rounded by, exactly.
    """
    size = tl.minimum(tl.abs(x), TANH_FORM_END)
    square = size * size
    square_rest = tl.fma(size, size, -square)
    factor = tl.fma(square, CUBIC, SLOPE)
    rest = tl.fma(square, CUBIC, SLOPE - factor) + SLOPE_REST
    rest = tl.fma(square_rest, CUBIC, tl.fma(square, CUBIC_REST, rest))
    t = size * factor
    t_rest = tl.fma(size, rest, tl.fma(size, factor, -t))
    p, n = exp_parts(-t)
    p = tl.fma(p, -t_rest, p)
    share = at_least(x, -TANH_FORM_END) * reciprocal(scale(p, n) + 1.0)
    return tl.where(x < 0, scale(share * p, n), share)


@triton.jit
def gelu(x):
    """x times the normal distribution function, whose tail beyond z = |x| is exp(-z**2 / 2) P(t) / (z + KNEE) with a
    polynomial P in t = (z - KNEE) / (z + KNEE)."""
    z = tl.minimum(tl.abs(x), EXACT_END)
    inverse = reciprocal(z + KNEE)
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
    lower = scale(at_least(x, -EXACT_END) * tail, n)
    return tl.where(x < 0, lower, upper)


@triton.jit
def apply(x, out, FUNCTION: tl.constexpr):
    """A function by its name in `spec.FUNCTIONS`, for a result that goes to the tensor `out`; a NaN stays."""
    if FUNCTION == "gelu_tanh" and out.dtype.element_ty.primitive_bitwidth == 16:
        return activate(x, FUNCTION)  # good to 16 bits, in a third of the operations
    elif FUNCTION == "relu":
        return tl.where(x < 0, 0.0, x)
    elif FUNCTION == "tanh":
        return tanh(x)
    elif FUNCTION == "gelu":
        return gelu(x)
    else:
        return gelu_tanh(x)

"""exp, tanh and GELU of float32 vectors, for every input: README.md has the worst errors, and tests check them.

Each is a range reduction, a polynomial, and a multiplication by a power of two. Where a result would be subnormal, exp
is 0 and the others are rounded once. The polynomials minimise the relative error over the reduced range (weighted least
squares, iterated towards equal ripples); tanh's is from Moshier's Cephes library (tanhf.c). Sources:
Muller et al., "Handbook of Floating-Point Arithmetic", 2018, chapter 4 for error-free sums and products; Hendrycks and
Gimpel, "Gaussian Error Linear Units", 2016.
"""

from tilewright.simd.kernel import inline
from tilewright.simd.vectors import (
    absolute,
    add,
    copy_sign,
    divide,
    fill,
    fma,
    multiply,
    round_even,
    scale,
    select_greater,
    subtract,
)

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440054690583e-4  # the first has few bits: n * LN2_HIGH is exact
EXP_LEAST, EXP_MOST = -87.33654022216797, 89.0  # exp is 0 below the first and infinite above the second
SLOPE, SLOPE_REST = 1.5957691669464111, -4.534068032135963e-08  # 2 sqrt(2 / pi) as the sum of two float32
CUBIC, CUBIC_REST = 0.07135481387376785, 2.3988323966106506e-09  # 0.044715 times that
TANH_FORM_END, EXACT_END = 11.0, 16.0  # below minus these GELU is -0; its power of two is still in the range of `scale`
KNEE = 3.5  # z = KNEE is t = 0 where Mills' ratio is expanded in t = (z - KNEE) / (z + KNEE)


@inline
def at_least(x, least):
    """max(x, least), NaN preserved: one instruction, while `maximum` of two unknown vectors takes three."""
    return select_greater(fill(x, least), x, fill(x, least), x)


@inline
def at_most(x, most):
    """min(x, most), NaN preserved."""
    return select_greater(x, fill(x, most), fill(x, most), x)


@inline
def exp_parts(x):
    """(p, n) with exp(x) = p * 2**n, p near 1, for x from -300 to 90."""
    n = round_even(multiply(x, fill(x, LOG2_E)))
    r = fma(n, fill(x, -LN2_LOW), fma(n, fill(x, -LN2_HIGH), x))  # |r| <= ln(2) / 2
    p = fma(fill(x, 0.001381461275741458), r, fill(x, 0.008368710055947304))
    p = fma(p, r, fill(x, 0.04166838899254799))
    p = fma(p, r, fill(x, 0.1666652113199234))
    p = fma(p, r, fill(x, 0.4999999403953552))
    return add(fma(p, multiply(r, r), r), fill(x, 1.0)), n


@inline
def exp(x):
    """e**x; 0 where it would be subnormal, infinity above float32's largest number, NaN for NaN.

    Intel's cores take some hundred extra cycles for each vector with a subnormal result. Masked scores have such
    results: a softmax of half-masked rows took five times as long as one of whole rows.
    """
    least = fill(x, EXP_LEAST)
    p, n = exp_parts(at_most(at_least(x, EXP_LEAST), EXP_MOST))
    return select_greater(least, x, fill(x, 0.0), scale(p, n))


@inline
def tanh(x):
    """The hyperbolic tangent: an odd polynomial up to 0.625, 1 - 2 / (exp(2|x|) + 1) beyond."""
    size = absolute(x)
    z = multiply(x, x)
    p = fma(fill(x, -5.70498872745e-3), z, fill(x, 2.06390887954e-2))
    p = fma(p, z, fill(x, -5.37397155531e-2))
    p = fma(p, z, fill(x, 1.33314422036e-1))
    p = fma(p, z, fill(x, -3.33332819422e-1))
    small = fma(multiply(p, z), x, x)
    one, two = fill(x, 1.0), fill(x, 2.0)
    large = subtract(one, divide(two, add(exp(multiply(size, two)), one)))
    return copy_sign(select_greater(size, fill(x, 0.625), large, small), x)


@inline
def gelu_tanh(x):
    """x / (1 + exp(-t)), t = 2 sqrt(2 / pi) (x + 0.044715 x**3): the tanh form of GELU, which GPT-2 uses.

    t is the sum of two float32, because an absolute error of t becomes a relative error of exp(-t).
    """
    size = at_most(absolute(x), TANH_FORM_END)
    zero, one = fill(x, 0.0), fill(x, 1.0)
    slope, cubic = fill(x, SLOPE), fill(x, CUBIC)
    square = multiply(size, size)
    square_rest = fma(size, size, subtract(zero, square))
    bend = multiply(cubic, square)
    bend_rest = fma(cubic, square_rest, fma(fill(x, CUBIC_REST), square, fma(cubic, square, subtract(zero, bend))))
    factor = add(slope, bend)
    added = subtract(factor, slope)  # bend as it was added; Knuth's exact sum
    factor_rest = add(subtract(slope, subtract(factor, added)), subtract(bend, added))
    factor_rest = add(add(factor_rest, bend_rest), fill(x, SLOPE_REST))
    t = multiply(size, factor)
    t_rest = fma(size, factor_rest, fma(size, factor, subtract(zero, t)))
    p, n = exp_parts(subtract(zero, t))
    p = fma(p, subtract(zero, t_rest), p)
    positive = divide(at_least(x, -TANH_FORM_END), add(one, scale(p, n)))  # |x| in exp: correct for x >= 0
    return select_greater(zero, x, scale(multiply(positive, p), n), positive)


@inline
def gelu_tanh_bfloat16(x):
    """`gelu_tanh` accurate to 14 bits, for a result that is rounded to bfloat16's 8, at a third of the work. 0 below
    x = -10, where GELU is less than 3e-38."""
    y = at_least(x, -TANH_FORM_END)
    t = multiply(y, fma(fill(x, -CUBIC * LOG2_E), multiply(y, y), fill(x, -SLOPE * LOG2_E)))
    n = round_even(at_least(t, -100.0))
    r = subtract(at_least(t, -100.0), n)  # |r| <= 1/2
    p = fma(fill(x, 0.009570101276040077), r, fill(x, 0.05591786280274391))
    p = fma(p, r, fill(x, 0.240247443318367))
    p = fma(p, r, fill(x, 0.6931217908859253))
    p = fma(p, r, fill(x, 0.9999992847442627))
    return divide(y, add(fill(x, 1.0), scale(p, n)))


@inline
def mills_polynomial(t):
    """(z + KNEE) exp(z**2 / 2) times the normal distribution's tail above z, for z from 0 to 16."""
    p = fma(fill(t, 0.00010486592509550974), t, fill(t, 0.00041171498014591634))
    p = fma(p, t, fill(t, -0.0004947400884702802))
    p = fma(p, t, fill(t, -0.0031679386738687754))
    p = fma(p, t, fill(t, 0.006494678556919098))
    p = fma(p, t, fill(t, 0.017404653131961823))
    p = fma(p, t, fill(t, -0.11605340242385864))
    p = fma(p, t, fill(t, 0.31542518734931946))
    p = fma(p, t, fill(t, -0.5655617117881775))
    return fma(p, t, fill(t, 0.7444160580635071))


@inline
def gelu_exact(x):
    """x times the normal distribution function: GELU in its exact form.

    The tail above z = |x| is exp(-z**2 / 2) P(t) / (z + KNEE), P a polynomial in t = (z - KNEE) / (z + KNEE).
    """
    z = at_most(absolute(x), EXACT_END)
    zero, one = fill(x, 0.0), fill(x, 1.0)
    inverse = divide(one, add(z, fill(x, KNEE)))
    t = multiply(subtract(z, fill(x, KNEE)), inverse)
    ratio = mills_polynomial(t)
    square = multiply(z, z)
    square_rest = fma(z, z, subtract(zero, square))
    p, n = exp_parts(multiply(square, fill(x, -0.5)))
    p = fma(p, multiply(square_rest, fill(x, -0.5)), p)
    tail = multiply(multiply(ratio, inverse), p)
    upper = multiply(x, subtract(one, scale(tail, n)))
    lower = scale(multiply(at_least(x, -EXACT_END), tail), n)
    return select_greater(zero, x, lower, upper)

"""tanh and both forms of GELU of one float64 value, by the C library. Numba and numba-cuda compile them."""

import math

LEAST = -40.0  # GELU is -0 below it, in float64 too; its formula would compute -inf * 0 for -inf
SLOPE = 2 * math.sqrt(2 / math.pi)
ROOT_HALF = math.sqrt(0.5)


def tanh(x):
    """The hyperbolic tangent."""
    return math.tanh(x)


def gelu(x):
    """x times the normal distribution function; erfc keeps the digits of its tail."""
    x = LEAST if x < LEAST else x
    return x * 0.5 * math.erfc(-x * ROOT_HALF)


def gelu_tanh(x):
    """x / 2 * (1 + tanh(t)) as x / (1 + exp(-2 t)), in which no digits cancel."""
    x = LEAST if x < LEAST else x
    power = min(-SLOPE * (x + 0.044715 * x * x * x), 700.0)  # Python's exp, in the simulator, refuses to overflow
    return x / (1 + math.exp(power))


FUNCTIONS = {"tanh": tanh, "gelu": gelu, "gelu_tanh": gelu_tanh}

"""One number after the other, by the C library's functions in float64, rounded once at the end."""

import functools
import math

import numpy as np
from numba import types

from tilewright import simd

ROOT_HALF = math.sqrt(0.5)
SLOPE = 2 * math.sqrt(2 / math.pi)
NOTHING = -40.0  # below it GELU is -0 in float64 too; at -inf its formula would be -inf * 0


@simd.inline
def relu(x):
    """max(x, 0), NaN kept."""
    return x if x > 0 or math.isnan(x) else 0.0


@simd.inline
def gelu(x):
    """x times the normal distribution function; erfc keeps the digits of its tail."""
    x = NOTHING if x < NOTHING else x
    return x / 2 * math.erfc(-x * ROOT_HALF)


@simd.inline
def gelu_tanh(x):
    """x / 2 * (1 + tanh(t)) as x / (1 + exp(-2 t)): the digits that 1 + tanh loses stay."""
    x = NOTHING if x < NOTHING else x
    return x / (1 + math.exp(-SLOPE * (x + 0.044715 * x * x * x)))


@simd.inline
def tanh(x):
    """The hyperbolic tangent."""
    return math.tanh(x)


FUNCTIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "tanh": tanh}


@functools.cache
def number_kernel(function: str):
    """The kernel of a function."""
    value_of = FUNCTIONS[function]

    @simd.kernel(types.void(simd.INPUT_2D, simd.OUTPUT_2D), name=f"elementwise.naive.{function}")
    def apply_each(x, out):
        """x, out (rows, C)."""
        for i in range(x.shape[0]):
            for c in range(x.shape[1]):
                out[i, c] = value_of(np.float64(x[i, c]))

    return apply_each


def apply(function: str, x: np.ndarray, out: np.ndarray) -> None:
    """The rung's run function."""
    number_kernel(function)(x, out)

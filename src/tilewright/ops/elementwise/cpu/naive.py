"""An elementwise function, one element after the other: out[i, c] = function(x[i, c]), in float64.

The C library computes all functions but relu. Each result is rounded once. The limit is that library's function, which
is called for each element. It is the lowest rung.
"""

import functools
import math

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops.elementwise import scalars


def relu(x):
    """max(x, 0); NaN stays NaN."""
    return x if x > 0 or math.isnan(x) else 0.0


@functools.cache
def kernel_of(function: str):
    """The kernel of a function, a name of `reference.FUNCTIONS`."""
    value_of = simd.inline({"relu": relu, **scalars.FUNCTIONS}[function])

    @simd.kernel(types.void(simd.INPUT_2D, simd.OUTPUT_2D), name=f"elementwise.naive.{function}")
    def apply_each(x, out):
        """x, out: float32 (rows, C); out may be x."""
        for i in range(x.shape[0]):
            for c in range(x.shape[1]):
                out[i, c] = value_of(np.float64(x[i, c]))

    return apply_each


def apply(function: str, x: np.ndarray, out: np.ndarray) -> None:
    """out = function(x): float32 (rows, C)."""
    kernel_of(function)(x, out)

"""The functions of one number, by the C library's in float64; a result is rounded once."""

import math
from functools import cache

from numba import float32, float64

from tilewright.ops.core.gpu.simt import inline

LEAST = float64(-40.0)  # below it GELU is -0; at -inf its formula would be -inf * 0
SLOPE, CUBIC = float64(2 * math.sqrt(2 / math.pi)), float64(0.044715)
HALF_ROOT, HALF, ONE = float64(math.sqrt(0.5)), float64(0.5), float64(1)


def _relu(x):
    return float32(0) if x < 0 else x  # so that a NaN stays


def _tanh(x):
    return float32(math.tanh(float64(x)))


def _gelu(x):
    wide = LEAST if x < LEAST else float64(x)
    return float32(wide * HALF * math.erfc(-wide * HALF_ROOT))


def _gelu_tanh(x):
    # x (1 + tanh t) / 2 = x / (1 + exp(-2 t)): nothing cancels
    wide = LEAST if x < LEAST else float64(x)
    power = min(-SLOPE * (wide + CUBIC * wide * wide * wide), float64(700))  # exp of which is finite
    return float32(wide / (ONE + math.exp(power)))


FUNCTIONS = {"relu": _relu, "tanh": _tanh, "gelu": _gelu, "gelu_tanh": _gelu_tanh}


@cache
def function_for(name: str):
    """function(x) -> float32, for kernels."""
    return inline(FUNCTIONS[name])

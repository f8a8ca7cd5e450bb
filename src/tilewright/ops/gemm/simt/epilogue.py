"""The epilogue of a sum: residual, bias, activation. Each kernel is compiled with one activation."""

import math
from functools import cache

import numpy as np
from numba import float32

from tilewright.ops.core.gpu.simt import inline

NONE, HALF, ONE, LOWEST = float32(0), float32(0.5), float32(1), float32(-np.inf)
LARGE = float32(80)  # exp(80) is finite, and adding 1 to it changes nothing
SLOPE, CUBIC = float32(2 * math.sqrt(2 / math.pi)), float32(0.044715)
HALF_ROOT = float32(math.sqrt(0.5))


def _identity(x):
    return x


def _relu(x):
    return NONE if x < 0 else x  # a NaN stays


def _tanh(x):
    return math.tanh(x)


def _gelu_tanh(x):
    # x (1 + tanh t) / 2 = x / (1 + exp(-2 t)): nothing cancels
    return NONE if x == LOWEST else x / (ONE + math.exp(min(-SLOPE * (x + CUBIC * x * x * x), LARGE)))


def _gelu(x):
    return NONE if x == LOWEST else HALF * x * math.erfc(-x * HALF_ROOT)


ACTIVATIONS = {None: _identity, "relu": _relu, "tanh": _tanh, "gelu": _gelu, "gelu_tanh": _gelu_tanh}


@cache
def activation_for(activation: str | None):
    """activate(x) -> float32, for kernels."""
    return inline(ACTIVATIONS[activation])


@cache
def finish_for(activation: str | None):
    """finish(total, i, j, bias, residual) -> float32: activation(total + residual[i, j] + bias[j]).

    Both may be empty; residual is (M, N).
    """
    activate = activation_for(activation)

    @inline
    def finish(total, i, j, bias, residual):
        if residual.size:
            total += residual[i, j]
        if bias.size:
            total += bias[j]
        return activate(total)

    return finish

"""What the elementwise functions compute, in NumPy float64."""

import math

import numpy as np

LEAST = -40.0  # GELU is -0 below it, in float64 too; its formula would compute -inf * 0 for -inf


def relu(x):
    """max(x, 0); NaN stays NaN."""
    return np.maximum(np.asarray(x, np.float64), 0)


def tanh(x):
    """The hyperbolic tangent."""
    return np.tanh(np.asarray(x, np.float64))


def gelu(x):
    """x times the normal distribution function; erfc keeps the digits of its tail."""
    x = np.maximum(np.asarray(x, np.float64), LEAST)
    return x / 2 * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2))


def gelu_tanh(x):
    """x / 2 * (1 + tanh(t)) as x / (1 + exp(-2 t)), in which no digits cancel."""
    x = np.maximum(np.asarray(x, np.float64), LEAST)
    with np.errstate(over="ignore"):  # exp, where the result is -0
        return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FUNCTIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "tanh": tanh}

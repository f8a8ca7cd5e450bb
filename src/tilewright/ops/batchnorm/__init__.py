"""Batch normalisation with stored statistics: each channel is shifted and scaled, or the weights before it are.

from tilewright.ops.batchnorm import batchnorm, fold
y = batchnorm(x, gamma, beta, mean, variance, activation="relu")            # (..., C), four of (C,) -> (..., C)
weights, bias = fold(weights, bias, gamma, beta, mean, variance, axis=2)    # the layer before then does it
"""

import operator

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.batchnorm.ladder import ladder
from tilewright.ops.batchnorm.problem import ACTIVATIONS, Problem
from tilewright.ops.core.arguments import HOST, arguments_of
from tilewright.ops.core.arrays import as_float32, one_of
from tilewright.ops.core.problems import row_problem

__all__ = ["Problem", "batchnorm", "fold", "ladder"]


def batchnorm(x, gamma, beta, mean, variance, *, eps: float = 1e-5, activation=None, out=None):
    """activation((x - mean) / sqrt(variance + eps) * gamma + beta), for each channel of the last axis.

    x: (..., C), float32 or bfloat16, any strides, NumPy or any array with DLPack. gamma, beta, mean, variance:
    (C,). eps: at least 0, and variance + eps above 0. activation: None, "relu", "tanh", "gelu" (exact) or "gelu_tanh".
    out: float32 NumPy array of x's shape to write to; it may be x. Scale and shift are computed in float64.
    Arrays on a GPU stay there; each may then also be float16, and out bfloat16. The values of variance are not checked
    there, because the host would have to wait: a channel whose variance + eps is not above 0 becomes infinite or NaN.
    Returns float32 (..., C), the same kind of array as x. Raises UsageError naming the argument that does not fit.
    Source: Ioffe and Szegedy, "Batch Normalization", 2015.
    """
    one_of("batchnorm", "activation", activation, ACTIVATIONS)
    _check_eps("batchnorm", eps)
    arguments = arguments_of(x)
    work = arguments.row_operands("batchnorm", x, out, gamma=gamma, beta=beta, mean=mean, variance=variance)
    parameters: tuple = work.vectors, eps
    if arguments is HOST:
        scale, shift = _scale_shift(work.vectors, eps, work.x.shape[-1], "batchnorm")
        parameters = scale.astype(np.float32), shift.astype(np.float32)
    if 0 not in work.x.shape:
        rung = ladder.choose(row_problem(work.x.shape[-1], work.dtype, arguments.device))
        rows, target = arguments.rows(work)
        rung.run(rows, *parameters, activation, target)
        arguments.put_back(work, target)
    return arguments.finish(x, work.result, work.target)


def _check_eps(op: str, eps: float) -> None:
    if not eps >= 0:
        raise UsageError(f"{op}: eps is {eps}; it must be at least 0")


def fold(weights, bias, gamma, beta, mean, variance, *, eps: float = 1e-5, axis: int):
    """(weights, bias) of one layer that computes this layer followed by `batchnorm`.

    weights: of a matrix product, a convolution or a transposed convolution, any shape; axis: that of its C output
    channels. bias: (C,), or None for none. gamma, beta, mean, variance, eps: as for `batchnorm`. Computed in float64;
    returns new float32 NumPy arrays of weights' shape and (C,). Raises UsageError naming a wrong argument.
    """
    array = as_float32("weights", weights)
    try:
        index = operator.index(axis)
    except TypeError as error:
        raise UsageError(f"fold: axis is {axis!r}; an integer is wanted") from error
    if not -array.ndim <= index < array.ndim:
        raise UsageError(f"fold: axis is {index}; weights has {array.ndim} axes")
    C = array.shape[index]
    scale, shift = _scale_shift((gamma, beta, mean, variance), eps, C, "fold")
    old = np.zeros(C) if bias is None else _channels("bias", bias, C, "fold")
    along = tuple(C if i == index % array.ndim else 1 for i in range(array.ndim))
    return (array * scale.reshape(along)).astype(np.float32), (old * scale + shift).astype(np.float32)


def _scale_shift(parameters, eps: float, C: int, op: str) -> tuple[np.ndarray, np.ndarray]:
    """float64 (C,) each: y = x * scale + shift. parameters: gamma, beta, mean, variance."""
    _check_eps(op, eps)
    names = ("gamma", "beta", "mean", "variance")
    gamma, beta, mean, variance = (_channels(*pair, C, op) for pair in zip(names, parameters, strict=True))
    if not (variance + eps > 0).all():
        worst = int(np.argmin(np.where(variance + eps > 0, np.inf, -1)))
        raise UsageError(f"{op}: variance[{worst}] is {variance[worst]:g} and eps {eps:g}; their sum must be above 0")
    scale = gamma / np.sqrt(variance + eps)
    return scale, beta - mean * scale


def _channels(name: str, value, C: int, op: str) -> np.ndarray:
    """float64 (C,)."""
    vector = as_float32(name, value)
    if vector.shape != (C,):
        raise UsageError(f"{op}: {name} has shape {vector.shape}; {(C,)} is wanted, one element per channel")
    return vector.astype(np.float64)

"""Layer normalisation: each row shifted to mean 0, divided by its standard deviation, then scaled and shifted.

from tilewright.ops.layernorm import layernorm
y = layernorm(x, weight, bias)                      # (..., C), (C,), (C,) -> (..., C)
layernorm(x, weight, bias, out=x)                   # in place
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arrays import BFLOAT16, as_float32, like, put_back, result_for, target_for
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.core.rows import over_rows
from tilewright.ops.layernorm.ladder import ladder
from tilewright.ops.layernorm.problem import Problem

__all__ = ["Problem", "ladder", "layernorm"]


def layernorm(x, weight, bias, *, eps: float = 1e-5, out=None):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis; the variance is that of all C numbers.

    x: (..., C), float32 or bfloat16, any strides, NumPy or anything that speaks DLPack. weight, bias: (C,).
    eps: at least 0. out: float32 or bfloat16 NumPy array of x's shape to write to; it may be x. Tensors on a GPU stay
    there: see `device.py`.
    Returns float32 (..., C), the same kind of array as x, or out. A row's bits depend on that row and the arguments.
    Squares are summed in float32: a row whose numbers exceed 1e17 in size is beyond it.
    Raises UsageError naming the argument that does not fit. Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    if on_gpu(x):
        from tilewright.ops.layernorm import device

        return device.layernorm(x, weight, bias, eps=eps, out=out)
    array = as_float32("x", x)
    if array.ndim == 0:
        raise UsageError("layernorm: x is a single number; (..., C) is wanted")
    C = array.shape[-1]
    weight, bias = _vector("weight", weight, C), _vector("bias", bias, C)
    if not eps >= 0:
        raise UsageError(f"layernorm: eps is {eps}; it must be at least 0")
    result = result_for("layernorm", out, array.shape, rounded=True)
    if result.size:
        rung = ladder.choose(Problem(C))
        target = result if out is None else target_for(result, weight, bias, residual=array)
        over_rows(lambda rows, to: rung.run(rows, weight, bias, eps, to), array, target)
        put_back(result, target)
    return result if result.dtype == BFLOAT16 else like(x, result)


def _vector(name: str, value, C: int) -> np.ndarray:
    vector = as_float32(name, value)
    if vector.shape != (C,):
        raise UsageError(f"layernorm: {name} has shape {vector.shape}; {(C,)} is wanted, one number a column of x")
    return np.ascontiguousarray(vector)

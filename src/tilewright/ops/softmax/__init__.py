"""Softmax of each row: exp(x - max) / sum of those, positive numbers whose sum is 1.

from tilewright.ops.softmax import softmax
shares = softmax(scores)                            # (..., C) -> (..., C); -inf, a masked number, becomes 0
"""

from tilewright.errors import UsageError
from tilewright.ops.core.arrays import as_float32, like, put_back, result_for, target_for
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.core.rows import over_rows
from tilewright.ops.softmax.ladder import ladder
from tilewright.ops.softmax.problem import Problem

__all__ = ["Problem", "ladder", "softmax"]


def softmax(x, *, out=None):
    """exp(x) / sum(exp(x)) over the last axis, without overflow: x (..., C) -> float32 (..., C), x's kind of array.

    x: float32 or bfloat16, any strides, NumPy or anything that speaks DLPack; C of any size. out: float32 NumPy array
    of x's shape to write to; it may be x. A tensor on a GPU stays there: see `device.py`. -inf becomes exactly 0, and
    what lies so far below the largest that its exp is no normal number may, too. A row of nothing but -inf, or with a
    NaN or +inf in it, becomes NaN throughout, as in NumPy. A row's bits depend on that row alone.
    Raises UsageError naming the argument that does not fit.
    """
    if on_gpu(x):
        from tilewright.ops.softmax import device

        return device.softmax(x, out=out)
    array = as_float32("x", x)
    if array.ndim == 0:
        raise UsageError("softmax: x is a single number; (..., C) is wanted")
    result = result_for("softmax", out, array.shape)
    if result.size:
        target = result if out is None else target_for(result, residual=array)
        over_rows(ladder.choose(Problem(array.shape[-1])).run, array, target)
        put_back(result, target)
    return like(x, result)

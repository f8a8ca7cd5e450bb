"""Softmax of each row: exp(x - max) divided by its sum, so that a row becomes positive and sums to 1.

from tilewright.ops.softmax import softmax
weights = softmax(scores)                           # (..., C) -> (..., C); -inf, a masked element, becomes 0
"""

from tilewright.ops.core.arguments import arguments_of
from tilewright.ops.core.problems import row_problem
from tilewright.ops.softmax.ladder import ladder
from tilewright.ops.softmax.problem import Problem

__all__ = ["Problem", "ladder", "softmax"]


def softmax(x, *, out=None):
    """exp(x) / sum(exp(x)) over the last axis, without overflow: x (..., C) -> float32 (..., C), x's kind of array.

    x: float32 or bfloat16, any strides, NumPy or any array with DLPack; C of any size. out: float32 NumPy array of x's
    shape to write to; it may be x. An array on a GPU stays there; x and out may then also be float16, and out bfloat16.
    Sums are float32.
    -inf becomes exactly 0. An element so far below the largest that its exp is not a normal number may also become 0.
    A row of only -inf, or with a NaN or +inf in it, becomes NaN throughout, as in NumPy. A row's bits depend on that
    row alone. Raises UsageError naming the argument that does not fit.
    """
    arguments = arguments_of(x)
    work = arguments.row_operands("softmax", x, out)
    if 0 not in work.x.shape:
        rung = ladder.choose(row_problem(work.x.shape[-1], work.dtype, arguments.device))
        rows, target = arguments.rows(work)
        rung.run(rows, target)
        arguments.put_back(work, target)
    return arguments.finish(x, work.result, work.target)

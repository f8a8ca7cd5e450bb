"""Layer normalisation: each row shifted to mean 0, divided by its standard deviation, then scaled and shifted.

from tilewright.ops.layernorm import layernorm
y = layernorm(x, weight, bias)                      # (..., C), (C,), (C,) -> (..., C)
layernorm(x, weight, bias, out=x)                   # in place
"""

from tilewright.errors import UsageError
from tilewright.ops.core.arguments import arguments_of
from tilewright.ops.core.problems import row_problem
from tilewright.ops.layernorm.ladder import ladder
from tilewright.ops.layernorm.problem import Problem

__all__ = ["Problem", "ladder", "layernorm"]


def layernorm(x, weight, bias, *, eps: float = 1e-5, out=None):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis; the variance is divided by C, not C - 1.

    x: (..., C), float32 or bfloat16, any strides, NumPy or any array with DLPack. weight, bias: (C,).
    eps: at least 0. out: float32 or bfloat16 NumPy array of x's shape to write to; it may be x. Arrays on a GPU stay
    there; each may then also be float16.
    Returns float32 (..., C), the same kind of array as x, or out. A row's bits depend on that row and the arguments.
    Squares are summed in float32, which overflows for elements above 1e17.
    Raises UsageError naming the argument that does not fit. Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    if not eps >= 0:
        raise UsageError(f"layernorm: eps is {eps}; it must be at least 0")
    arguments = arguments_of(x)
    work = arguments.row_operands("layernorm", x, out, outs=("float32", "bfloat16"), weight=weight, bias=bias)
    if 0 not in work.x.shape:
        rung = ladder.choose(row_problem(work.x.shape[-1], work.dtype, arguments.device))
        rows, target = arguments.rows(work)
        rung.run(rows, *work.vectors, eps, target)
        arguments.put_back(work, target)
    return arguments.finish(x, work.result, work.target)

"""Layer normalisation: each row shifted to mean 0, divided by its standard deviation, then scaled and shifted.

from tilewright.ops.layernorm import layernorm
y = layernorm(x, weight, bias)                      # (..., C), (C,), (C,) -> (..., C)
layernorm(x, weight, bias, out=x)                   # in place
"""

from functools import cache

from tilewright.errors import UsageError
from tilewright.ops.core.backend import backend_of
from tilewright.ops.layernorm.ladder import ladder
from tilewright.ops.layernorm.problem import Problem

__all__ = ["Problem", "ladder", "layernorm"]


def layernorm(x, weight, bias, *, eps: float = 1e-5, out=None):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis; the variance is that of all C numbers.

    x: (..., C), float32 or bfloat16, any strides, NumPy or anything that speaks DLPack. weight, bias: (C,).
    eps: at least 0. out: float32 or bfloat16 NumPy array of x's shape to write to; it may be x. Arrays on a GPU stay
    there; each may also be float16.
    Returns float32 (..., C), the same kind of array as x, or out. A row's bits depend on that row and the arguments.
    Squares are summed in float32: a row whose numbers exceed 1e17 in size is beyond it.
    Raises UsageError naming the argument that does not fit. Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    if not eps >= 0:
        raise UsageError(f"layernorm: eps is {eps}; it must be at least 0")
    backend = backend_of(x)
    work = backend.row_operands("layernorm", x, out, outs=("float32", "bfloat16"), weight=weight, bias=bias)
    if 0 not in work.x.shape:
        rung, (weight, bias) = ladder.choose(_problem(work.x.shape[-1], work.dtype, backend.device)), work.vectors
        backend.over_rows(lambda rows, to: rung.run(rows, weight, bias, eps, to), work)
    return backend.finish(x, work.result, work.target)


@cache
def _problem(C: int, dtype: str, device: str) -> Problem:
    return Problem(C, dtype, device)

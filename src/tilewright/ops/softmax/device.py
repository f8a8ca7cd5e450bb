"""softmax on a GPU: what `softmax` does when it is handed a torch tensor there."""

from functools import cache

from tilewright.errors import UsageError
from tilewright.ops.core.gpu.rows import as_rows, kinds_of, placed, plain, put_back
from tilewright.ops.core.gpu.tensors import tensor_of
from tilewright.ops.softmax.ladder import ladder
from tilewright.ops.softmax.problem import Problem


def softmax(x, *, out=None):
    """exp(x) / sum(exp(x)) over the last axis, as `tilewright.ops.softmax.softmax`: x (..., C) float32, bfloat16 or
    float16 on a GPU -> the same shape.

    out: a tensor of x's shape and one of the three dtypes to write to; it may be x. None: a new float32 one. Sums are
    float32. Raises UsageError naming the argument that does not fit.
    """
    if tensor_of("softmax", "x", x).ndim == 0:
        raise UsageError("softmax: x is a single number; (..., C) is wanted")
    C, result = x.shape[-1], out
    if out is None or not plain(x, out):
        x, result, out = placed("softmax", x, out)
    if x.numel():
        ladder.choose(_problem(C, kinds_of(x, out))).run(as_rows(x, C), as_rows(out, C))
    return put_back(result, out)


@cache
def _problem(C: int, dtype: str) -> Problem:
    return Problem(C, dtype, "cuda")

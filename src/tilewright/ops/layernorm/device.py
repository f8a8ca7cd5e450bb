"""layernorm on a GPU: what `layernorm` does when it is handed a torch tensor there."""

from functools import cache

from tilewright.errors import UsageError
from tilewright.ops.core.gpu.rows import as_rows, kinds_of, placed, plain, put_back, vectors_of
from tilewright.ops.core.gpu.tensors import tensor_of
from tilewright.ops.layernorm.ladder import ladder
from tilewright.ops.layernorm.problem import Problem


def layernorm(x, weight, bias, *, eps: float = 1e-5, out=None):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis, as `tilewright.ops.layernorm.layernorm`.

    x: (..., C), weight, bias: (C,), each float32, bfloat16 or float16 on one GPU. out: a tensor of x's shape and one of
    the three dtypes to write to; it may be x. None: a new float32 one. Sums are float32. Raises UsageError naming the
    argument that does not fit.
    """
    if tensor_of("layernorm", "x", x).ndim == 0:
        raise UsageError("layernorm: x is a single number; (..., C) is wanted")
    if not eps >= 0:
        raise UsageError(f"layernorm: eps is {eps}; it must be at least 0")
    C, result = x.shape[-1], out
    if out is None or not plain(x, out, weight, bias):
        weight, bias = vectors_of("layernorm", x, C, weight=weight, bias=bias)
        x, result, out = placed("layernorm", x, out)
    if x.numel():
        rung = ladder.choose(_problem(C, kinds_of(x, out, weight, bias)))
        rung.run(as_rows(x, C), weight, bias, eps, as_rows(out, C))
    return put_back(result, out)


@cache
def _problem(C: int, dtype: str) -> Problem:
    return Problem(C, dtype, "cuda")

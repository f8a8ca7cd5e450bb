"""relu, gelu and tanh on a GPU: what the functions of these names do when they are handed a torch tensor there."""

from functools import cache

from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.rows import kinds_of, placed, plain, put_back
from tilewright.ops.core.gpu.tensors import tensor_of
from tilewright.ops.elementwise.ladder import ladder
from tilewright.ops.elementwise.problem import GELU, Problem


def relu(x, *, out=None):
    """max(x, 0): x (...) float32, bfloat16 or float16 on a GPU -> the same shape; exact, and NaN stays NaN.

    out: a tensor of x's shape and one of the three dtypes to write to; it may be x. None: a new float32 one. Raises
    UsageError naming the argument that does not fit.
    """
    return apply("relu", x, out)


def gelu(x, *, approximate: str = "tanh", out=None):
    """x times the normal distribution function at x; arguments, result and errors as for `relu`.

    approximate: as for `tilewright.ops.elementwise.gelu`; the worst error of a float32 result is twice what
    that states.
    """
    return apply(GELU[one_of("gelu", "approximate", approximate, tuple(GELU))], x, out)


def tanh(x, *, out=None):
    """The hyperbolic tangent; arguments, result and errors as for `relu`; the worst error is 2.8 ULP."""
    return apply("tanh", x, out)


def apply(function: str, x, out):
    """A function by its name in `reference.FUNCTIONS`; arguments, result and errors as for `relu`."""
    tensor_of(function, "x", x)
    result = out
    if out is None or not plain(x, out):
        x, result, out = placed(function, x, out)
    if x.numel():
        ladder.choose(_problem(function, kinds_of(x, out))).run(function, x, out)
    return put_back(result, out)


@cache
def _problem(function: str, dtype: str) -> Problem:
    return Problem(function, dtype, "cuda")

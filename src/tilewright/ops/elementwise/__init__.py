"""Functions of single numbers: relu, gelu in both forms, tanh; float32, with a worst error that is tested.

from tilewright.ops.elementwise import gelu, relu, tanh
y = gelu(x)                                         # the tanh form, which GPT-2 uses
gelu(x, approximate="none", out=x)                  # the exact form, in place
"""

from tilewright.ops.core.arrays import as_float32, like, one_of, put_back, result_for, target_for
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.core.rows import over_rows
from tilewright.ops.elementwise.ladder import ladder
from tilewright.ops.elementwise.problem import GELU, Problem

__all__ = ["Problem", "gelu", "ladder", "relu", "tanh"]


def relu(x, *, out=None):
    """max(x, 0): x (...) -> float32 (...), the same kind of array; exact, and NaN stays NaN.

    x: float32 or bfloat16, any strides, NumPy or anything that speaks DLPack. out: float32 NumPy array of x's shape to
    write to; it may be x. Raises UsageError naming the argument that does not fit.
    """
    return _apply("relu", x, out)


def gelu(x, *, approximate: str = "tanh", out=None):
    """x times the normal distribution function at x; arguments, result and errors as for `relu`.

    approximate: "tanh" is x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), "none" the exact form. PyTorch has
    the same two words and begins with "none". The worst error over all float32 is 3.7 ULP for "tanh" and 6.6 ULP for
    "none", results below the normal range included. gelu(-inf) is the limit, -0.
    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    return _apply(GELU[one_of("gelu", "approximate", approximate, tuple(GELU))], x, out)


def tanh(x, *, out=None):
    """The hyperbolic tangent; arguments, result and errors as for `relu`. Worst error over all float32: 1.4 ULP."""
    return _apply("tanh", x, out)


def _apply(function: str, x, out):
    if on_gpu(x):
        from tilewright.ops.elementwise import device

        return device.apply(function, x, out)
    array = as_float32("x", x)
    result = result_for(function, out, array.shape)
    if result.size == 0:
        return like(x, result)
    run = ladder.choose(Problem(function)).run
    target = result if out is None else target_for(result, residual=array)
    if array.flags.c_contiguous and target.flags.c_contiguous:
        run(function, array.reshape(1, -1), target.reshape(1, -1))
    else:
        over_rows(lambda rows, to: run(function, rows, to), array, target)
    put_back(result, target)
    return like(x, result)

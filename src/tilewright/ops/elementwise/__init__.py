"""Functions of single elements: relu, gelu in both forms, tanh; float32, with a worst error that is tested.

from tilewright.ops.elementwise import gelu, relu, tanh
y = gelu(x)                                         # the tanh form, which GPT-2 uses
gelu(x, approximate="none", out=x)                  # the exact form, in place
"""

from tilewright.ops.core.arguments import arguments_of
from tilewright.ops.core.arrays import one_of
from tilewright.ops.elementwise.ladder import ladder
from tilewright.ops.elementwise.problem import GELU, Problem

__all__ = ["Problem", "gelu", "ladder", "relu", "tanh"]


def relu(x, *, out=None):
    """max(x, 0): x (...) -> float32 (...), the same kind of array; exact, and NaN stays NaN.

    x: float32 or bfloat16, any strides, NumPy or any array with DLPack. out: float32 NumPy array of x's shape to write
    to; it may be x. Arrays on a GPU stay there; each may then also be float16, and out bfloat16. Raises UsageError
    naming the argument that does not fit.
    """
    return apply("relu", x, out)


def gelu(x, *, approximate: str = "tanh", out=None):
    """x times the normal distribution function at x; arguments, result and errors as for `relu`.

    approximate: "tanh" is x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), "none" the exact form. PyTorch uses
    the same two words; its default is "none". The worst error over all float32 is 3.7 ULP for "tanh" and 6.6 ULP for
    "none", for results below the normal range too; on a GPU twice that. gelu(-inf) is -0, its limit.
    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    return apply(GELU[one_of("gelu", "approximate", approximate, tuple(GELU))], x, out)


def tanh(x, *, out=None):
    """The hyperbolic tangent; arguments, result and errors as for `relu`. Worst error over all float32: 1.4 ULP; on a
    GPU 2.8 ULP.
    """
    return apply("tanh", x, out)


def apply(function: str, x, out=None):
    """The function of this name in `reference.FUNCTIONS`; arguments, result and errors as for `relu`."""
    arguments = arguments_of(x)
    work = arguments.row_operands(function, x, out, rank=0)
    if 0 not in work.x.shape:
        rung = ladder.choose(Problem(function, work.dtype, arguments.device))
        values, target = arguments.elements(work)
        rung.run(function, values, target)
        arguments.put_back(work, target)
    return arguments.finish(x, work.result, work.target)

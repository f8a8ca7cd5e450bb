"""The largest column of a matrix product in each row, without the product: the end of greedy generation.

from tilewright.ops.matmul_argmax import matmul_argmax, prepare
head = prepare(wte.T)                       # (C, V), once
tokens, logits = matmul_argmax(x, head)     # (n, C) -> (n,), (n,)
"""

from tilewright.errors import UsageError
from tilewright.ops.core.arguments import HOST, Arguments, arguments_of
from tilewright.ops.core.arrays import one_of
from tilewright.ops.matmul import Packed
from tilewright.ops.matmul import prepare as prepare_matrix
from tilewright.ops.matmul.problem import DEVICE_DTYPES, DTYPES
from tilewright.ops.matmul_argmax.ladder import ladder
from tilewright.ops.matmul_argmax.operands import Prepared
from tilewright.ops.matmul_argmax.problem import Problem

__all__ = ["Prepared", "Problem", "ladder", "matmul_argmax", "prepare"]


def prepare(b, *, dtype: str = "float32", weights: Packed | None = None) -> Prepared:
    """Rearrange weights b (K, N), float32 or bfloat16, for the rung that will search them.

    dtype: the accuracy class, as for `matmul.prepare`; b may be on a GPU, as there. weights: what `matmul.prepare`
    returned for the same b, if it exists already. A rung that screens stores N * K bytes more, and b itself.
    Raises UsageError for a wrong dtype or shape.
    """
    arguments = arguments_of(b)
    b = arguments.take("matmul_argmax", "b", b)
    one_of("matmul_argmax", "dtype", dtype, DTYPES if arguments is HOST else DEVICE_DTYPES)
    if b.ndim != 2 or 0 in b.shape:
        shape = tuple(b.shape)
        raise UsageError(f"matmul_argmax: b has shape {shape}; a matrix (K, N) with at least one column is wanted")
    weights = prepare_matrix(b, dtype=dtype) if weights is None else weights
    if tuple(b.shape) != (weights.K, weights.N) or weights.dtype != dtype:
        given = f"{weights.K, weights.N} {weights.dtype}"
        raise UsageError(f"matmul_argmax: weights are {given}, b is {tuple(b.shape)} {dtype}")
    rung = ladder.choose(_problem(weights, arguments))
    return Prepared(rung.name, weights, rung.lay_out(b, dtype) if rung.lay_out else None)


def matmul_argmax(a, b: Prepared, out=None):
    """(index int64 (M,), value float32 (M,)) of the largest product in each row of a @ b, the lowest index of equals.

    a: float32 or bfloat16 (M, K), finite. b: what `prepare` returned. out: a pair of arrays to write to. A value is
    within matmul's error bound of the exact product, and is the largest of the computed sums. A row's answer depends on
    that row and b alone. Arrays on a GPU stay there, and work is queued without waiting: a may also be float16, out is
    contiguous, and a row with a NaN has the value NaN and some index. Raises UsageError naming the argument that does
    not fit.
    """
    arguments = arguments_of(a)
    a = arguments.take("matmul_argmax", "a", a)
    if a.ndim != 2 or a.shape[1] != b.weights.K:
        raise UsageError(f"matmul_argmax: a is {tuple(a.shape)}; (M, {b.weights.K}) is wanted")
    arguments.same_device("matmul_argmax", "a", a, b=b.weights.data)
    index, value = _results(arguments, a, out)
    rung = ladder.choose(_problem(b.weights, arguments))
    if rung.name != b.rung:
        raise UsageError(f"matmul_argmax: b was prepared for rung {b.rung}, and {rung.name} is chosen now")
    if len(a):
        rung.run(a if arguments is HOST else a.contiguous(), b, index, value)
    return index, value


def _problem(weights: Packed, arguments: Arguments) -> Problem:
    return Problem(weights.N, weights.K, weights.dtype, weights.rung, arguments.device)


def _results(arguments: Arguments, a, out) -> tuple:
    """The pair of arrays to write to."""
    M, dtypes = len(a), ("int64", "float32")
    if out is None:
        return tuple(arguments.new((M,), dtype, a) for dtype in dtypes)
    for name, array, dtype in zip(("index", "value"), out, dtypes, strict=True):
        if arguments.name(array) != f"{dtype} {(M,)}" or (arguments is not HOST and not array.is_contiguous()):
            what = f"{arguments.name(array)}; a {'' if arguments is HOST else 'contiguous '}{dtype} {(M,)} is wanted"
            raise UsageError(f"matmul_argmax: out's {name} is {what}")
        arguments.same_device("matmul_argmax", "a", a, **{f"out's {name}": array})
    return tuple(out)

"""The largest column of a matrix product in each row, without the product: the end of greedy generation.

from tilewright.ops.matmul_argmax import matmul_argmax, prepare
head = prepare(wte.T)                       # (C, V), once
tokens, logits = matmul_argmax(x, head)     # (n, C) -> (n,), (n,)
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arrays import as_float32
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.matmul import Packed
from tilewright.ops.matmul import prepare as prepare_matrix
from tilewright.ops.matmul_argmax.ladder import ladder
from tilewright.ops.matmul_argmax.operands import Prepared
from tilewright.ops.matmul_argmax.problem import Problem

__all__ = ["Prepared", "Problem", "ladder", "matmul_argmax", "prepare"]


def prepare(b, *, dtype: str = "float32", weights: Packed | None = None) -> Prepared:
    """Lay weights b (K, N), float32 or bfloat16, out for the rung that will search them.

    dtype: the accuracy class, as for `matmul`: "bfloat16" may take operands below 2^-126 for 0.
    weights: what `matmul.prepare` made of the same b, if it is there already. A rung that screens keeps N * K bytes
    beside it, and b itself. Raises UsageError for a wrong dtype or shape.
    """
    if on_gpu(b):
        from tilewright.ops.matmul_argmax import device

        return device.prepare(b, dtype=dtype, weights=weights)
    b = as_float32("b", b)
    if b.ndim != 2 or 0 in b.shape:
        raise UsageError(f"matmul_argmax: b has shape {b.shape}; a matrix (K, N) with at least one column is wanted")
    weights = prepare_matrix(b, dtype=dtype) if weights is None else weights
    if b.shape != (weights.K, weights.N) or weights.dtype != dtype:
        raise UsageError(f"matmul_argmax: weights are {weights.K, weights.N} {weights.dtype}, b is {b.shape} {dtype}")
    rung = ladder.choose(Problem(weights.N, weights.K, dtype, weights.rung))
    return Prepared(rung.name, weights, rung.lay_out(b) if rung.lay_out else None)


def matmul_argmax(a, b: Prepared, out=None):
    """(index int64 (M,), value float32 (M,)) of the largest product in each row of a @ b, the lowest index of equals.

    a: float32 or bfloat16 (M, K), finite; b: what `prepare` gave; out: a pair of arrays to write to. A value is within
    matmul's bound of the true product; a column is never passed over for a product that is smaller in these sums. A
    row's answer depends on that row and b alone. GPU tensors give tensors there; a NaN then has the value NaN. Raises
    UsageError for another shape.
    """
    if on_gpu(a):
        from tilewright.ops.matmul_argmax import device

        return device.matmul_argmax(a, b, out)
    a = as_float32("a", a)
    if a.ndim != 2 or a.shape[1] != b.weights.K:
        raise UsageError(f"matmul_argmax: a is {a.shape}; (M, {b.weights.K}) is wanted")
    index, value = _results(len(a), out)
    if len(a) == 0:
        return index, value
    rung = ladder.choose(Problem(b.weights.N, b.weights.K, b.weights.dtype, b.weights.rung))
    if rung.name != b.rung:
        raise UsageError(f"matmul_argmax: b was prepared for rung {b.rung}, and {rung.name} is chosen now")
    rung.run(a, b, index, value)
    return index, value


def _results(M: int, out) -> tuple[np.ndarray, np.ndarray]:
    """The pair of arrays to write to."""
    if out is None:
        return np.empty(M, np.int64), np.empty(M, np.float32)
    for name, array, dtype in zip(("index", "value"), out, (np.int64, np.float32), strict=True):
        if not isinstance(array, np.ndarray) or array.shape != (M,) or array.dtype != dtype:
            what = f"{getattr(array, 'dtype', type(array).__name__)} {getattr(array, 'shape', '')}"
            raise UsageError(f"matmul_argmax: out's {name} is {what}; {np.dtype(dtype)} ({M},) is wanted")
    return tuple(out)

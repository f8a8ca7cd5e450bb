"""The largest column of a matrix product in each row, without the product: the end of greedy generation.

from tilewright.ops.matmul_argmax import matmul_argmax, prepare
head = prepare(wte.T)                       # (C, V), once
tokens, logits = matmul_argmax(x, head)     # (n, C) -> (n,), (n,)
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops._arrays import as_float32
from tilewright.ops.matmul import Packed
from tilewright.ops.matmul import prepare as prepare_matrix
from tilewright.ops.matmul_argmax.ladder import ladder
from tilewright.ops.matmul_argmax.operands import Prepared
from tilewright.ops.matmul_argmax.spec import Problem

__all__ = ["Prepared", "Problem", "ladder", "matmul_argmax", "prepare"]


def prepare(b, *, dtype: str = "float32", weights: Packed | None = None) -> Prepared:
    """Lay weights b (K, N), float32 or bfloat16, out for the rung that will search them.

    weights: what `matmul.prepare` made of the same b, if it is there already. A rung that screens keeps N * K bytes
    beside it, and b itself. Raises UsageError for a wrong dtype or shape.
    """
    b = as_float32("b", b)
    if b.ndim != 2 or 0 in b.shape:
        raise UsageError(f"matmul_argmax: b has shape {b.shape}; a matrix (K, N) with at least one column is wanted")
    weights = prepare_matrix(b, dtype=dtype) if weights is None else weights
    if b.shape != (weights.K, weights.N) or weights.dtype != dtype:
        raise UsageError(f"matmul_argmax: weights are {weights.K, weights.N} {weights.dtype}, b is {b.shape} {dtype}")
    rung = ladder.choose(Problem(weights.N, weights.K, dtype, weights.rung))
    return Prepared(rung.name, weights, rung.prepare(b) if rung.prepare else None)


def matmul_argmax(a, b: Prepared) -> tuple[np.ndarray, np.ndarray]:
    """(index int64 (M,), value float32 (M,)) of the largest product in each row of a @ b, the lowest index of equals.

    a: float32 or bfloat16 (M, K), finite; b: what `prepare` gave. A value is within matmul's bound of the true product;
    a column is never passed over for a product that is smaller in these sums. A row's answer depends on that row and b
    alone. Raises UsageError for another shape.
    """
    a = as_float32("a", a)
    if a.ndim != 2 or a.shape[1] != b.weights.K:
        raise UsageError(f"matmul_argmax: a is {a.shape}; (M, {b.weights.K}) is wanted")
    if len(a) == 0:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    rung = ladder.choose(Problem(b.weights.N, b.weights.K, b.weights.dtype, b.weights.rung))
    if rung.name != b.rung:
        raise UsageError(f"matmul_argmax: b was prepared for rung {b.rung}, and {rung.name} is chosen now")
    index, value = np.empty(len(a), np.int64), np.empty(len(a), np.float32)
    rung.run(a, b, index, value)
    return index, value

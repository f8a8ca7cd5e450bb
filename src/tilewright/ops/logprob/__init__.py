"""The log-probability of one token per row, without the logits: how a decoder scores a given text.

from tilewright.ops.logprob import logprob, prepare
head = prepare(wte.T)                          # (C, V), once
values, greedy = logprob(x, head, targets)     # (n, C), (n,) -> (n,), (n,)
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arguments import HOST
from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.logprob.ladder import ladder
from tilewright.ops.logprob.operands import Prepared, Results
from tilewright.ops.logprob.problem import Problem
from tilewright.ops.matmul import Packed
from tilewright.ops.matmul import prepare as prepare_matrix
from tilewright.ops.matmul.problem import DTYPES

__all__ = ["Prepared", "Problem", "ladder", "logprob", "prepare", "prepared"]


def prepare(b, *, bias=None, dtype: str = "float32", weights: Packed | None = None) -> Prepared:
    """Lay the output matrix b (K, N), float32 or bfloat16, out for the rung that will run.

    bias: float32 (N,), finite, added to each logit. dtype: the accuracy class, as for `matmul.prepare`. weights: what
    `matmul.prepare` returned for the same b, if it exists already; then nothing is copied. Raises UsageError for a
    wrong dtype, shape or bias, and for an array on a GPU.
    """
    _on_host(b=b, bias=bias)
    b = HOST.take("logprob", "b", b)
    one_of("logprob", "dtype", dtype, DTYPES)
    if b.ndim != 2 or 0 in b.shape:
        shape = tuple(b.shape)
        raise UsageError(f"logprob: b has shape {shape}; a matrix (K, N) with at least one column is wanted")
    added = HOST.plain(None if bias is None else HOST.take("logprob", "bias", bias), b)
    if bias is not None and (added.shape != (b.shape[1],) or not np.isfinite(added).all()):
        finite = "" if added.shape != (b.shape[1],) else ", with an element that is not finite"
        raise UsageError(f"logprob: bias is {added.shape}{finite}; finite ({b.shape[1]},) is wanted")
    weights = prepare_matrix(b, dtype=dtype) if weights is None else weights
    if b.shape != (weights.K, weights.N) or weights.dtype != dtype:
        given = f"{weights.K, weights.N} {weights.dtype}"
        raise UsageError(f"logprob: weights are {given}, b is {tuple(b.shape)} {dtype}")
    return prepared(weights, bias=added)


def prepared(weights: Packed, *, bias=None) -> Prepared:
    """The same for weights that `matmul.prepare` returned, without b. bias: a contiguous float32 (N,), or empty."""
    rung = ladder.choose(_problem(weights))
    added = HOST.plain(bias, weights.data)
    return Prepared(rung.name, weights, added, rung.lay_out(weights) if rung.lay_out else None)


def logprob(a, b: Prepared, targets, out=None):
    """(log-probability float32 (M,) of each row's target, bool (M,): whether it is the row's likeliest column).

    a: float32 or bfloat16 (M, K), hidden states. b: what `prepare` returned. targets: integers (M,), each a column of
    b. out: float32 (M,) to write the values to. A value is log(softmax(a @ b + bias)) at the target. Of equal columns
    the lowest is the likeliest. A row's answer depends on that row and b alone. A row whose logits are not finite has
    a value that is not finite. Raises UsageError naming the argument that does not fit.
    """
    _on_host(a=a, targets=targets)
    a = HOST.take("logprob", "a", a)
    if a.ndim != 2 or a.shape[1] != b.weights.K:
        raise UsageError(f"logprob: a is {tuple(a.shape)}; (M, {b.weights.K}) is wanted")
    columns = np.asarray(targets)
    if columns.shape != (len(a),) or (columns.dtype.kind not in "iu" and columns.size):
        raise UsageError(f"logprob: targets is {HOST.name(columns)}; integers ({len(a)},) are wanted")
    columns = np.ascontiguousarray(columns, np.int64)
    if len(a) and not (columns.min() >= 0 and columns.max() < b.weights.N):
        wrong = int(columns[(columns < 0) | (columns >= b.weights.N)][0])
        raise UsageError(f"logprob: targets has {wrong}; columns are 0 to {b.weights.N - 1}")
    result = HOST.result("logprob", out, (len(a),), a)
    value = HOST.target(result, a, b.bias) if result.flags.c_contiguous else np.empty(len(a), np.float32)
    best = np.empty(len(a), np.int64)
    rung = ladder.choose(_problem(b.weights))
    if rung.name != b.rung:
        raise UsageError(f"logprob: b was prepared for rung {b.rung}, and {rung.name} is chosen now")
    if len(a):
        rung.run(a, b, columns, Results(value, best))
    if value is not result:
        result[...] = value
    return result, best == columns


def _problem(weights: Packed) -> Problem:
    return Problem(weights.N, weights.K, weights.dtype, weights.rung)


def _on_host(**arrays) -> None:
    for name, array in arrays.items():
        if on_gpu(array):
            raise UsageError(f"logprob: {name} is on a GPU; logprob runs on the CPU", remedy="move it to the CPU")

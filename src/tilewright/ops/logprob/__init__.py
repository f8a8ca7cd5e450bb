"""The log-probability of one token per row, without the logits: how a decoder scores a given text.

from tilewright.ops.logprob import logprob, prepare
head = prepare(wte.T)                          # (C, V), once
values, greedy = logprob(x, head, targets)     # (n, C), (n,) -> (n,), (n,)
"""

from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arguments import HOST, Arguments, arguments_of
from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.tensors import FLOATS, INTEGERS, on_gpu
from tilewright.ops.logprob.ladder import ladder
from tilewright.ops.logprob.operands import Prepared, Results
from tilewright.ops.logprob.problem import Problem
from tilewright.ops.matmul import Packed
from tilewright.ops.matmul import prepare as prepare_matrix
from tilewright.ops.matmul.problem import DTYPES

__all__ = ["Prepared", "Problem", "ladder", "logprob", "prepare", "prepared"]


def prepare(b, *, bias=None, dtype: str = "float32", weights: Packed | None = None) -> Prepared:
    """Lay the output matrix b (K, N), float32 or bfloat16, out for the rung that will run.

    bias: float32 (N,), finite, added to each logit. dtype: the accuracy class, as for `matmul.prepare`; b may be on a
    GPU, as there, where "float16" is a class, too, and the bias is not checked to be finite. weights: what
    `matmul.prepare` returned for the same b, if it exists already; then nothing is copied. Raises UsageError for a
    wrong dtype, shape or bias, and for arrays on two devices.
    """
    arguments = arguments_of(b)
    b = arguments.take("logprob", "b", b)
    one_of("logprob", "dtype", dtype, DTYPES if arguments is HOST else FLOATS)
    if b.ndim != 2 or 0 in b.shape:
        shape = tuple(b.shape)
        raise UsageError(f"logprob: b has shape {shape}; a matrix (K, N) with at least one column is wanted")
    arguments.same_device("logprob", "b", b, bias=bias)
    added = arguments.plain(None if bias is None else arguments.take("logprob", "bias", bias), b)
    finite = arguments is not HOST or np.isfinite(added).all()
    if bias is not None and (tuple(added.shape) != (b.shape[1],) or not finite):
        told = "" if tuple(added.shape) != (b.shape[1],) else ", with an element that is not finite"
        raise UsageError(f"logprob: bias is {tuple(added.shape)}{told}; finite ({b.shape[1]},) is wanted")
    weights = prepare_matrix(b, dtype=dtype) if weights is None else weights
    if tuple(b.shape) != (weights.K, weights.N) or weights.dtype != dtype:
        given = f"{weights.K, weights.N} {weights.dtype}"
        raise UsageError(f"logprob: weights are {given}, b is {tuple(b.shape)} {dtype}")
    return prepared(weights, bias=added)


def prepared(weights: Packed, *, bias=None) -> Prepared:
    """The same for weights that `matmul.prepare` returned, without b. bias: a contiguous float32 (N,), or empty."""
    arguments = arguments_of(weights.data)
    rung = ladder.choose(_problem(weights, arguments))
    added = arguments.plain(bias, weights.data)
    return Prepared(rung.name, weights, added, rung.lay_out(weights) if rung.lay_out else None)


def logprob(a, b: Prepared, targets, out=None):
    """(log-probability float32 (M,) of each row's target, bool (M,): whether it is the row's likeliest column).

    a: float32 or bfloat16 (M, K), hidden states. b: what `prepare` returned. targets: integers (M,), each a column of
    b. out: float32 (M,) to write the values to. A value is log(softmax(a @ b + bias)) at the target. Of equal columns
    the lowest is the likeliest. A row's answer depends on that row and b alone. A row whose logits are not finite has
    a value that is not finite. Arrays on a GPU stay there, and work is queued without waiting: a may also be float16,
    and out of the class's 16-bit dtype. Targets may be on the host. Those on the GPU are not checked: one that is no
    column gives NaN. Raises UsageError naming the argument that does not fit.
    """
    arguments = arguments_of(b.weights.data)
    a = arguments.take("logprob", "a", a)
    if a.ndim != 2 or a.shape[1] != b.weights.K:
        raise UsageError(f"logprob: a is {tuple(a.shape)}; (M, {b.weights.K}) is wanted")
    arguments.same_device("logprob", "a", a, b=b.weights.data)
    columns = _columns(arguments, a, targets, b.weights.N)
    result = arguments.result("logprob", out, (len(a),), a, arguments.results_in(b.weights.dtype))
    value = _target(arguments, result, a, b)
    best = arguments.new((len(a),), "int64", a)
    rung = ladder.choose(_problem(b.weights, arguments))
    if rung.name != b.rung:
        raise UsageError(f"logprob: b was prepared for rung {b.rung}, and {rung.name} is chosen now")
    if len(a):
        rung.run(a if arguments is HOST else a.contiguous(), b, columns, Results(value, best))
    if value is not result:
        result[...] = value
    return result, best == columns


def _target(arguments: Arguments, result, a, b: Prepared):
    """The result, where a kernel may write to it, else an array of its shape."""
    if arguments is HOST and not result.flags.c_contiguous:
        return np.empty(len(a), np.float32)
    return arguments.target(result, a, b.bias)


def _columns(arguments: Arguments, a, targets, N: int):
    """The targets as int64 (M,), contiguous, on a's device. Raises UsageError unless each is a column of N."""
    if on_gpu(targets):
        arguments.same_device("logprob", "a", a, targets=targets)
        on_device: Any = arguments.take("logprob", "targets", targets, INTEGERS)
        if tuple(on_device.shape) != (len(a),):
            raise UsageError(f"logprob: targets is {arguments.name(on_device)}; integers ({len(a)},) are wanted")
        return on_device.long().contiguous()
    columns = np.asarray(targets)
    if columns.shape != (len(a),) or (columns.dtype.kind not in "iu" and columns.size):
        raise UsageError(f"logprob: targets is {HOST.name(columns)}; integers ({len(a)},) are wanted")
    columns = np.ascontiguousarray(columns, np.int64)
    if len(a) and not (columns.min() >= 0 and columns.max() < N):
        wrong = int(columns[(columns < 0) | (columns >= N)][0])
        raise UsageError(f"logprob: targets has {wrong}; columns are 0 to {N - 1}")
    if arguments is HOST:
        return columns
    import torch

    return torch.from_numpy(columns).to(a.device)


def _problem(weights: Packed, arguments: Arguments) -> Problem:
    return Problem(weights.N, weights.K, weights.dtype, weights.rung, arguments.device)

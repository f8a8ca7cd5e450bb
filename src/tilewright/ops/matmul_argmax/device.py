"""matmul_argmax on a GPU: what `prepare` and `matmul_argmax` do when they are handed torch tensors that live there."""

from tilewright.errors import UsageError
from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.tensors import kind, same_device, tensor_of
from tilewright.ops.matmul import Packed
from tilewright.ops.matmul.device import prepare as prepare_matrix
from tilewright.ops.matmul.problem import DEVICE_DTYPES
from tilewright.ops.matmul_argmax.ladder import ladder
from tilewright.ops.matmul_argmax.operands import Prepared
from tilewright.ops.matmul_argmax.problem import Problem


def prepare(b, *, dtype: str = "float32", weights: Packed | None = None) -> Prepared:
    """Lay weights b (K, N), a tensor on a GPU, out for the rung that will search them.

    dtype: "float32", "bfloat16", "float16" or "tf32". weights: what `matmul.prepare` made of the same b, if it is there
    already; then nothing is copied. Raises UsageError for a wrong dtype or shape.
    """
    b = tensor_of("matmul_argmax", "b", b)
    one_of("matmul_argmax", "dtype", dtype, DEVICE_DTYPES)
    if b.ndim != 2 or 0 in b.shape:
        shape = tuple(b.shape)
        raise UsageError(f"matmul_argmax: b has shape {shape}; a matrix (K, N) with at least one column is wanted")
    weights = prepare_matrix(b, dtype=dtype) if weights is None else weights
    if tuple(b.shape) != (weights.K, weights.N) or weights.dtype != dtype:
        given = f"{weights.K, weights.N} {weights.dtype}"
        raise UsageError(f"matmul_argmax: weights are {given}, b is {tuple(b.shape)} {dtype}")
    return Prepared(ladder.choose(_problem(weights)).name, weights)


def matmul_argmax(a, b: Prepared, out=None):
    """(index int64 (M,), value float32 (M,)) of the largest product in each row of a @ b, the lowest index of equals.

    a: float32, bfloat16 or float16 (M, K) on the GPU of b, what `prepare` gave. out: a pair of contiguous tensors to
    write to; None: new ones. A row that holds a NaN has the value NaN, and some index. A row's answer depends on that
    row and b alone; nothing is synchronised. Raises UsageError naming the argument that does not fit.
    """
    a = tensor_of("matmul_argmax", "a", a)
    if a.ndim != 2 or a.shape[1] != b.weights.K:
        raise UsageError(f"matmul_argmax: a is {tuple(a.shape)}; (M, {b.weights.K}) is wanted")
    same_device("matmul_argmax", "a", a, b=b.weights.data)
    index, value = _results(a, out)
    rung = ladder.choose(_problem(b.weights))
    if rung.name != b.rung:
        raise UsageError(f"matmul_argmax: b was prepared for rung {b.rung}, and {rung.name} is chosen now")
    if len(a):
        rung.run(a.contiguous(), b, index, value)
    return index, value


def _problem(weights: Packed) -> Problem:
    return Problem(weights.N, weights.K, weights.dtype, weights.rung, "cuda")


def _results(a, out) -> tuple:
    """The pair of tensors to write to."""
    import torch

    M = len(a)
    if out is None:
        return a.new_empty(M, dtype=torch.int64), a.new_empty(M, dtype=torch.float32)
    for name, tensor, dtype in zip(("index", "value"), out, ("int64", "float32"), strict=True):
        tensor_of("matmul_argmax", f"out's {name}", tensor, (dtype,))
        if tuple(tensor.shape) != (M,) or not tensor.is_contiguous():
            shape = f"{kind(tensor)} {tuple(tensor.shape)} with strides {tensor.stride()}"
            raise UsageError(f"matmul_argmax: out's {name} is {shape}; a contiguous ({M},) is wanted")
        same_device("matmul_argmax", "a", a, **{f"out's {name}": tensor})
    return tuple(out)

"""Matrix product with everything that may be fused into it: out = activation(a @ b + residual + bias).

from tilewright.ops.matmul import matmul, prepare
y = matmul(x, w, bias=b, activation="relu")     # (M, K) @ (K, N)
packed = prepare(w)                             # once; then matmul(x, packed) for every batch
"""

import math
from itertools import groupby

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arrays import (
    BFLOAT16,
    as_float32,
    as_numpy,
    like,
    one_of,
    put_back,
    result_for,
    rows_for,
    target_for,
)
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.operands import ROUNDED_DEPTH, Epilogue, Packed, Rows
from tilewright.ops.matmul.ladder import ladder
from tilewright.ops.matmul.problem import ACTIVATIONS, DTYPES, Problem, check_depth

__all__ = ["Packed", "Problem", "ladder", "matmul", "prepare"]

NO_BIAS = np.empty(0, np.float32)
NO_RESIDUAL = np.empty((0, 0), np.float32)


def prepare(b, *, dtype: str = "float32") -> Packed:
    """Lay weights b (K, N) out for the rung that will multiply by them; any strides, so `prepare(w.T)` costs no copy.

    dtype: the accuracy class, "float32" or "bfloat16". The result holds a copy: K * N * 4 bytes, or 2 in bfloat16,
    rounded up to whole panels; a rung that packs nothing keeps b itself. Raises UsageError for a wrong dtype or rank,
    Refused if a rung forced by `using` does not take it.
    """
    if on_gpu(b):
        from tilewright.ops.matmul import device

        return device.prepare(b, dtype=dtype)
    b = as_float32("b", b)
    if b.ndim != 2:
        raise UsageError(f"prepare: b has shape {b.shape}; a matrix (K, N) is wanted")
    K, N = b.shape
    rung = ladder.choose(Problem(N, K, one_of("matmul", "dtype", dtype, DTYPES)))
    return rung.lay_out(b, rung.name) if rung.lay_out else Packed(rung.name, K, N, dtype, b)


def matmul(a, b, *, rows=None, bias=None, activation=None, residual=None, dtype=None, out=None):
    """activation(a @ b + residual + bias) with float32 sums.

    a: (..., M, K). b: (K, N), (..., K, N) with broadcast batches, or what `prepare` gave. rows: int (M,), then a is a
    matrix (?, K) and its rows a[rows] are multiplied without being copied. bias: (N,). residual: the result's shape.
    activation: None, "relu", "tanh", "gelu" (exact) or "gelu_tanh" (the tanh form). Arrays are float32 or bfloat16
    with any strides, NumPy or anything that speaks DLPack. dtype: accuracy class of the products, "float32" (default)
    or "bfloat16" (operands rounded, and those below 2^-126 may count as 0; an a that is bfloat16 is read as it lies); a
    prepared b has its own.

    out: float32 or bfloat16 NumPy array to write to; in bfloat16, what is below 2^-126 may become 0. It may share
    memory with the operands, which costs a copy unless it is exactly the residual. Returns float32 (..., M, N), the
    same kind of array as a, or out. A row's bits depend on that row, b and the epilogue: not on the other rows, their
    number, or the number of threads. Raises UsageError naming the argument that does not fit.
    """
    if on_gpu(a):
        from tilewright.ops.matmul import device

        epilogue = {"bias": bias, "activation": activation, "residual": residual}
        return device.matmul(a, b, rows=rows, dtype=dtype, out=out, **epilogue)
    dtype = _class_of(b, dtype)
    x = as_numpy("a", a)
    if dtype != "bfloat16" or x.dtype != BFLOAT16:
        x = as_float32("a", x)
    one_of("matmul", "activation", activation, ACTIVATIONS)
    if isinstance(b, Packed):
        weights, (K, N), batch = b, (b.K, b.N), x.shape[:-2]
    else:
        weights = as_float32("b", b)
        if weights.ndim < 2:
            raise UsageError(f"matmul: b has shape {weights.shape}; (..., K, N) is wanted")
        if rows is not None and weights.ndim > 2:
            raise UsageError(f"matmul: b has shape {weights.shape}; rows needs a matrix (K, N)")
        K, N = weights.shape[-2:]
        batch = _broadcast(x.shape[:-2], weights.shape[:-2])
    check_depth(x.shape, K, N)
    index = None if rows is None else _row_index(rows, x)
    M = x.shape[-2] if index is None else len(index)
    result = result_for("matmul", out, (*batch, M, N), rounded=True)
    epilogue = _epilogue(bias, activation, residual, result.shape)
    data = b.data if isinstance(b, Packed) else weights
    target = result if out is None else target_for(result, x, data, epilogue.bias, residual=epilogue.residual)
    if isinstance(b, Packed) or weights.ndim == 2:
        packed = b if isinstance(b, Packed) else prepare(weights, dtype=dtype)
        _run(packed, Rows(x.reshape(math.prod(x.shape[:-1]), K), index), target, epilogue)
    else:
        _run_batch(
            np.broadcast_to(x, (*batch, M, K)), np.broadcast_to(weights, (*batch, K, N)), dtype, target, epilogue
        )
    put_back(result, target)
    return result if result.dtype == BFLOAT16 else like(a, result)


def _run_batch(x: np.ndarray, b: np.ndarray, dtype: str, out: np.ndarray, epilogue: Epilogue) -> None:
    """x (..., M, K) by b (..., K, N), matrix by matrix; a b that is broadcast is prepared once."""

    def its_own(at: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i for i, stride in zip(at, b.strides[:-2], strict=True) if stride)

    for _, places in groupby(sorted(np.ndindex(out.shape[:-2]), key=its_own), key=its_own):
        packed = None
        for at in places:
            packed = packed or prepare(b[at], dtype=dtype)
            residual = epilogue.residual[at] if epilogue.residual.size else NO_RESIDUAL
            _run(packed, Rows(x[at], None), out[at], Epilogue(epilogue.bias, residual, epilogue.activation))


def _run(packed: Packed, rows: Rows, out: np.ndarray, epilogue: Epilogue) -> None:
    """One matrix by one packed matrix; batches in front of M are folded into it."""
    rung = ladder.choose(Problem(packed.N, packed.K, packed.dtype))
    if rung.name != packed.rung:
        raise UsageError(
            f"matmul: b was prepared for rung {packed.rung}, and {rung.name} is chosen now: prepare it again"
        )
    if out.size == 0:
        return
    if out.dtype == BFLOAT16 and (packed.dtype != "bfloat16" or not 0 < packed.K <= ROUNDED_DEPTH):
        sums = empty(out.shape)
        _run(packed, rows, sums, epilogue)
        out[...] = sums
        return
    target, residual = rows_for(out), epilogue.residual
    if residual.ndim != 2 or (residual.size and residual.strides[1] != 4):
        residual = np.ascontiguousarray(residual).reshape(rows.count, packed.N)
    rung.run(rows, packed, target, Epilogue(epilogue.bias, residual, epilogue.activation))
    put_back(out, target)


def _class_of(b, dtype: str | None) -> str:
    if not isinstance(b, Packed):
        return one_of("matmul", "dtype", dtype or "float32", DTYPES)
    if dtype not in (None, b.dtype):
        raise UsageError(f"matmul: dtype is {dtype!r}, but b was prepared for {b.dtype}")
    return b.dtype


def _broadcast(left: tuple, right: tuple) -> tuple:
    try:
        return np.broadcast_shapes(left, right)
    except ValueError as error:
        raise UsageError(f"matmul: the batch dimensions {left} of a and {right} of b do not broadcast") from error


def _row_index(rows, a: np.ndarray) -> np.ndarray:
    """int64 (M,), every entry a row of a."""
    index = as_numpy("rows", rows)
    if index.ndim != 1 or index.dtype.kind not in "iu" or a.ndim != 2:
        raise UsageError(
            f"matmul: rows is {index.dtype} {index.shape} and a is {a.shape}; integers (M,) and a matrix are wanted"
        )
    if index.size and not (index.min() >= 0 and index.max() < len(a)):
        raise UsageError(f"matmul: rows holds {index.min()} to {index.max()}; a has rows 0 to {len(a) - 1}")
    return index.astype(np.int64, copy=False)


def _epilogue(bias, activation, residual, shape: tuple) -> Epilogue:
    checked_bias, checked_residual = NO_BIAS, NO_RESIDUAL
    if bias is not None:
        checked_bias = np.ascontiguousarray(as_float32("bias", bias))
        if checked_bias.shape != shape[-1:]:
            raise UsageError(
                f"matmul: bias has shape {checked_bias.shape}; {shape[-1:]} is wanted, one number a column"
            )
    if residual is not None:
        checked_residual = as_float32("residual", residual)
        if checked_residual.shape != shape:
            raise UsageError(f"matmul: residual has shape {checked_residual.shape}; the result's {shape} is wanted")
    return Epilogue(checked_bias, checked_residual, activation)

"""Matrix product with everything that may be fused into it: out = activation(a @ b + residual + bias).

from tilewright.ops.matmul import matmul, prepare
y = matmul(x, w, bias=b, activation="relu")     # (M, K) @ (K, N)
packed = prepare(w)                             # once; then matmul(x, packed) for every batch
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arguments import DEVICE, HOST, Arguments, arguments_of
from tilewright.ops.core.arrays import BFLOAT16, T, Tensor, as_numpy, one_of, put_back, rows_for
from tilewright.ops.core.gpu import tensors
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.operands import PEAK, ROUNDED_DEPTH, Epilogue, Packed, Rows, peaks_of
from tilewright.ops.matmul.ladder import TILED, ladder
from tilewright.ops.matmul.problem import ACTIVATIONS, DEVICE_DTYPES, DTYPES, Problem, check_depth

__all__ = ["PEAK", "Packed", "Problem", "ladder", "matmul", "matmul_peaks", "peaks_of", "prepare"]

INTEGERS = ("int64", "int32", "int16", "int8", "uint8")  # dtypes of rows on a GPU


def prepare(b, *, dtype: str = "float32") -> Packed:
    """Rearrange weights b (K, N) for the rung that will multiply by them. Any strides: `prepare(w.T)` makes no copy.

    dtype: the accuracy class, "float32" or "bfloat16"; on a GPU also "float16" or "tf32". The result holds a copy:
    K * N * 4 bytes, or 2 in a 16-bit class, rounded up to whole panels; a rung that packs nothing keeps b itself. A b
    on a GPU stays there, and may also be float16. Raises UsageError for a wrong dtype or rank, Refused if a rung forced
    by `using` does not take it.
    """
    arguments = arguments_of(b)
    b = arguments.take("matmul", "b", b)
    if b.ndim != 2:
        raise UsageError(f"prepare: b has shape {tuple(b.shape)}; a matrix (K, N) is wanted")
    (K, N), dtype = b.shape, one_of("matmul", "dtype", dtype, _classes(arguments))
    rung = ladder.choose(Problem(N, K, dtype, arguments.device))
    if rung.lay_out:
        return rung.lay_out(b, rung.name) if arguments is HOST else rung.lay_out(b, rung.name, dtype)
    return Packed(rung.name, K, N, dtype, b if arguments is HOST else b.float().contiguous())


def matmul(
    a: T,
    b: Tensor | Packed,
    *,
    rows: Tensor | Sequence[int] | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    dtype: str | None = None,
    out: T | None = None,
) -> T:
    """activation(a @ b + residual + bias) with float32 sums.

    a: (..., M, K). b: (K, N), (..., K, N) with broadcast batches, or what `prepare` returned. rows: int (M,); then a is
    a matrix (?, K) whose rows a[rows] are multiplied, on the CPU without copying them. bias: (N,). residual: the
    result's shape. activation: None, "relu", "tanh", "gelu" (exact) or "gelu_tanh" (the tanh form). Arrays are float32
    or bfloat16 with any strides, NumPy or anything that supports DLPack. dtype: accuracy class of the products,
    "float32" (default) or "bfloat16" (operands are rounded, and below 2^-126 may count as 0); a prepared b has its own.

    out: float32 or bfloat16 NumPy array to write to; in bfloat16, elements below 2^-126 may become 0. It may share
    memory with the operands, which costs a copy unless it is exactly the residual. Returns float32 (..., M, N), the
    same kind of array as a, or out.

    Arrays on a GPU stay there, all on one device. They may also be float16, dtype as for `prepare`, and out is float32
    or has the 16-bit dtype of the class; tile rungs are fastest where its rows begin at multiples of 128 bytes. Work is
    queued on torch's current stream; only `rows` waits for the device.

    A row's bits depend on that row, b and the epilogue: not on the other rows, their number, or the number of threads.
    Raises UsageError naming the argument that does not fit.
    """
    arguments = arguments_of(a)
    dtype = _class_of(arguments, b, dtype)
    x = _left(arguments, a, dtype)
    one_of("matmul", "activation", activation, ACTIVATIONS)
    packed = b if isinstance(b, Packed) else None
    weights = packed.data if packed else arguments.take("matmul", "b", b)
    if not packed and weights.ndim < 2:
        raise UsageError(f"matmul: b has shape {tuple(weights.shape)}; (..., K, N) is wanted")
    K, N = (packed.K, packed.N) if packed else weights.shape[-2:]
    check_depth(tuple(x.shape), K, N)
    several = not packed and weights.ndim > 2
    if rows is not None and several:
        raise UsageError(f"matmul: b has shape {tuple(weights.shape)}; rows needs a matrix (K, N)")
    index = None if rows is None else _row_index(arguments, rows, x)
    batch = _broadcast(x.shape[:-2], weights.shape[:-2]) if several else tuple(x.shape[:-2])
    shape = (*batch, x.shape[-2] if index is None else len(index), N)
    epilogue = _epilogue(arguments, bias, activation, residual, shape, x)
    added = {"bias": epilogue.bias, "residual": epilogue.residual}
    arguments.same_device("matmul", "a", x, b=weights, rows=index, **added)
    dtypes = ("float32", "bfloat16") if arguments is HOST else arguments.results_in(dtype)
    target = result = arguments.result("matmul", out, shape, x, dtypes)
    packed = packed or (None if several else prepare(weights, dtype=dtype))
    inputs, strided = (x, weights, epilogue.bias), packed is not None and packed.rung in TILED
    if out is not None:
        target = arguments.target(result, *inputs, residual=epilogue.residual, strided=strided)
    if packed is None:
        _run_batch(arguments, x, weights, dtype, target, epilogue)
    else:
        _run(arguments, packed, Rows(x.reshape(math.prod(x.shape[:-1]), K), index), target, epilogue)
    return arguments.finish(a, result, target)


def matmul_peaks(a, b: Packed, *, out, peaks):
    """Write out = a @ b as `matmul` does, on a GPU: a (M, K), out float32 (M, N).

    peaks: contiguous float32 (M, peaks_of(N)). Returns it with the largest element of each PEAK columns of out, NaN
    if one is not finite; or None if b's rung stores none. Raises UsageError for an argument that does not fit.
    """
    wanted = (out.shape[0], peaks_of(b.N))
    if tuple(peaks.shape) != wanted or not peaks.is_contiguous() or tensors.kind(peaks) != "float32":
        what = f"peaks is {tensors.kind(peaks)} {tuple(peaks.shape)} with strides {peaks.stride()}"
        raise UsageError(f"matmul_peaks: {what}; float32 {wanted} without gaps is wanted")
    a = DEVICE.take("matmul_peaks", "a", a)
    if a.ndim != 2 or tensors.overlaps(out, a) or tensors.overlaps(peaks, a, out):
        raise UsageError(f"matmul_peaks: a has shape {tuple(a.shape)}; (M, K) is wanted, in memory of its own")
    if b.rung not in TILED or not DEVICE.writes_rows(out):
        matmul(a, b, out=out)
        return None
    check_depth(tuple(a.shape), b.K, b.N)
    DEVICE.same_device("matmul_peaks", "a", a, b=b.data, out=out, peaks=peaks)
    out = DEVICE.result("matmul_peaks", out, (len(a), b.N), a)
    none = DEVICE.plain(None, a)
    _run(DEVICE, b, Rows(a, None), out, Epilogue(none, DEVICE.plain(None, a, rank=2), None, peaks))
    return peaks


def _run_batch(arguments: Arguments, x, b, dtype: str, out, epilogue: Epilogue) -> None:
    """x (..., M, K) by b (..., K, N), matrix by matrix; a b that is broadcast is prepared once."""

    def entry(array, index: tuple[int, ...]) -> tuple[int, ...]:
        """Index of the matrix of `array` that broadcasts to `index` of the batch."""
        own, strides = index[len(index) - array.ndim + 2 :], array.strides if arguments is HOST else array.stride()
        sizes = zip(own, array.shape, strides, strict=False)
        return tuple(i if size > 1 and stride else 0 for i, size, stride in sizes)

    entry_of_b = partial(entry, b)
    for b_index, group in groupby(sorted(np.ndindex(tuple(out.shape[:-2])), key=entry_of_b), key=entry_of_b):
        packed = prepare(b[b_index], dtype=dtype)
        for index in group:
            residual = epilogue.residual[index] if 0 not in epilogue.residual.shape else epilogue.residual
            part = Epilogue(epilogue.bias, residual, epilogue.activation)
            _run(arguments, packed, Rows(x[entry(x, index)], None), out[index], part)


def _run(arguments: Arguments, packed: Packed, rows: Rows, out, epilogue: Epilogue) -> None:
    """One matrix by prepared weights. out: (..., N), with as many rows in all."""
    rung = ladder.choose(Problem(packed.N, packed.K, packed.dtype, arguments.device))
    if rung.name != packed.rung:
        raise UsageError(
            f"matmul: b was prepared for rung {packed.rung}, and {rung.name} is chosen now: prepare it again"
        )
    if 0 in out.shape:
        return
    shape, residual = (rows.count, packed.N), epilogue.residual
    if (
        arguments is HOST
        and out.dtype == BFLOAT16
        and (packed.dtype != "bfloat16" or not 0 < packed.K <= ROUNDED_DEPTH)
    ):
        sums = empty(out.shape)
        _run(arguments, packed, rows, sums, epilogue)
        out[...] = sums
        return
    if arguments is HOST and (residual.ndim != 2 or (residual.size and residual.strides[1] != 4)):
        residual = np.ascontiguousarray(residual)
    if residual.ndim != 2:
        residual = residual.reshape(shape)
    target = rows_for(out) if arguments is HOST else out.view(shape)
    rung.run(rows, packed, target, replace(epilogue, residual=residual))
    if arguments is HOST:
        put_back(out, target)


def _classes(arguments: Arguments) -> tuple[str, ...]:
    return DTYPES if arguments is HOST else DEVICE_DTYPES


def _class_of(arguments: Arguments, b, dtype: str | None) -> str:
    if not isinstance(b, Packed):
        return one_of("matmul", "dtype", dtype or "float32", _classes(arguments))
    if dtype not in (None, b.dtype):
        raise UsageError(f"matmul: dtype is {dtype!r}, but b was prepared for {b.dtype}")
    return b.dtype


def _left(arguments: Arguments, a, dtype: str):
    """a, checked; kernels of class bfloat16 on the CPU read a bfloat16 array without widening it."""
    if arguments is HOST and dtype == "bfloat16":
        array = as_numpy("matmul: a", a)
        if array.dtype == BFLOAT16:
            return array
    return arguments.take("matmul", "a", a)


def _broadcast(left: tuple, right: tuple) -> tuple:
    try:
        return np.broadcast_shapes(tuple(left), tuple(right))
    except ValueError as error:
        dimensions = f"{tuple(left)} of a and {tuple(right)} of b"
        raise UsageError(f"matmul: the batch dimensions {dimensions} do not broadcast") from error


def _row_index(arguments: Arguments, rows, a):
    """int64 (M,), every entry a row of a. On a GPU this waits for the device."""
    index = as_numpy("matmul: rows", rows) if arguments is HOST else arguments.take("matmul", "rows", rows, INTEGERS)
    if index.ndim != 1 or a.ndim != 2 or (arguments is HOST and index.dtype.kind not in "iu"):
        what = f"rows is {arguments.name(index)} and a is {tuple(a.shape)}"
        raise UsageError(f"matmul: {what}; integers (M,) and a matrix are wanted")
    if len(index) and not (int(index.min()) >= 0 and int(index.max()) < len(a)):
        raise UsageError(f"matmul: rows holds {index.min()} to {index.max()}; a has rows 0 to {len(a) - 1}")
    return index.astype(np.int64, copy=False) if isinstance(index, np.ndarray) else index.long()


def _epilogue(arguments: Arguments, bias, activation: str | None, residual, shape: tuple, x) -> Epilogue:
    """Checked; empty arrays for None. On a GPU the residual is contiguous, too."""
    if bias is not None:
        bias = arguments.take("matmul", "bias", bias)
        if tuple(bias.shape) != shape[-1:]:
            raise UsageError(
                f"matmul: bias has shape {tuple(bias.shape)}; {shape[-1:]} is wanted, one value per column"
            )
    if residual is not None:
        residual = arguments.take("matmul", "residual", residual)
        if tuple(residual.shape) != shape:
            raise UsageError(f"matmul: residual has shape {tuple(residual.shape)}; the result's {shape} is wanted")
    if residual is None or arguments is not HOST:
        residual = arguments.plain(residual, x, rank=2)
    return Epilogue(arguments.plain(bias, x), residual, activation)

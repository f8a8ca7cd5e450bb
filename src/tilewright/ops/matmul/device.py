"""matmul on a GPU: what `matmul` and `prepare` do when they are handed torch tensors that live there.

The same arguments and the same function; arrays stay on their device, and work is queued on torch's current stream.
"""

import math
from functools import cache
from itertools import product

from tilewright.errors import UsageError
from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.tensors import FLOATS, overlaps, result_for, same_device, tensor_of
from tilewright.ops.gemm.operands import Epilogue, Packed, Rows
from tilewright.ops.matmul.ladder import ladder
from tilewright.ops.matmul.problem import ACTIVATIONS, DEVICE_DTYPES, Problem, check_depth


def prepare(b, *, dtype: str = "float32") -> Packed:
    """Lay weights b (K, N), a tensor on a GPU, out for the rung that will multiply by them, on that GPU.

    dtype: "float32", "bfloat16", "float16" or "tf32". Raises UsageError for a wrong dtype or rank, Refused if a rung
    forced by `using` does not take it.
    """
    b = tensor_of("matmul", "b", b)
    if b.ndim != 2:
        raise UsageError(f"prepare: b has shape {tuple(b.shape)}; a matrix (K, N) is wanted")
    K, N = b.shape
    rung = ladder.choose(Problem(N, K, one_of("matmul", "dtype", dtype, DEVICE_DTYPES), "cuda"))
    return rung.lay_out(b, rung.name, dtype) if rung.lay_out else Packed(rung.name, K, N, dtype, b.float().contiguous())


def matmul(a, b, *, rows=None, bias=None, activation=None, residual=None, dtype=None, out=None):
    """activation(a @ b + residual + bias) with float32 sums; see `tilewright.ops.matmul.matmul`.

    All arrays are torch tensors on one GPU: a and b float32, bfloat16 or float16, bias and residual float32 or the
    16-bit dtype of the class. out: a float32 tensor, or one of the class's 16-bit dtype; None: a new float32 one.
    Raises UsageError naming the argument that does not fit.
    """
    a = tensor_of("matmul", "a", a)
    dtype = _class_of(b, dtype)
    one_of("matmul", "activation", activation, ACTIVATIONS)
    prepared = isinstance(b, Packed)
    weights = b.data if prepared else tensor_of("matmul", "b", b)
    if not prepared and weights.ndim < 2:
        raise UsageError(f"matmul: b has shape {tuple(weights.shape)}; (..., K, N) is wanted")
    K, N = (b.K, b.N) if prepared else weights.shape[-2:]
    check_depth(tuple(a.shape), K, N)
    several = not prepared and weights.ndim > 2
    if rows is not None:
        rows = _row_index(rows, a, several)
    batch = _broadcast(a.shape[:-2], weights.shape[:-2]) if several else tuple(a.shape[:-2])
    shape = (*batch, a.shape[-2] if rows is None else len(rows), N)
    same_device("matmul", "a", a, weights=weights, bias=bias, residual=residual, out=out, rows=rows)
    result = result_for("matmul", out, shape, a, ("float32", dtype) if dtype in FLOATS else ("float32",))
    epilogue = _epilogue(bias, activation, residual, shape, a)
    target = result if out is None else _target(result, (a, weights, epilogue.bias), epilogue.residual)
    if several:
        a, weights = a.expand(*batch, *a.shape[-2:]), weights.expand(*batch, K, N)
        for at in product(*map(range, batch)):
            part = Epilogue(epilogue.bias, epilogue.residual[at if residual is not None else ...], activation)
            _run(prepare(weights[at], dtype=dtype), Rows(a[at], None), target[at], part)
    else:
        packed = b if prepared else prepare(weights, dtype=dtype)
        flat = target
        if len(shape) > 2:
            a, flat = a.reshape(math.prod(a.shape[:-1]), K), target.view(math.prod(shape[:-1]), N)
            if residual is not None:
                epilogue = Epilogue(epilogue.bias, epilogue.residual.reshape(flat.shape), activation)
        _run(packed, Rows(a, rows), flat, epilogue)
    if target is not result:
        result.copy_(target)
    return result


def _run(packed: Packed, rows: Rows, out, epilogue: Epilogue) -> None:
    """One matrix by one packed matrix, into a contiguous out."""
    rung = ladder.choose(Problem(packed.N, packed.K, packed.dtype, "cuda"))
    if rung.name != packed.rung:
        raise UsageError(
            f"matmul: b was prepared for rung {packed.rung}, and {rung.name} is chosen now: prepare it again"
        )
    if out.numel():
        rung.run(rows, packed, out, epilogue)


def _class_of(b, dtype: str | None) -> str:
    if not isinstance(b, Packed):
        return one_of("matmul", "dtype", dtype or "float32", DEVICE_DTYPES)
    if dtype not in (None, b.dtype):
        raise UsageError(f"matmul: dtype is {dtype!r}, but b was prepared for {b.dtype}")
    return b.dtype


def _broadcast(left: tuple, right: tuple) -> tuple:
    import torch

    try:
        return tuple(torch.broadcast_shapes(left, right))
    except RuntimeError as error:
        raise UsageError(
            f"matmul: the batch dimensions {tuple(left)} of a and {tuple(right)} of b do not broadcast"
        ) from error


def _row_index(rows, a, several: bool):
    """Integers (M,) on a's device, every entry a row of a; entries are looked at, which waits for the device."""
    if not hasattr(rows, "data_ptr") or rows.ndim != 1 or rows.is_floating_point() or a.ndim != 2 or several:
        raise UsageError(
            f"matmul: rows picks from a matrix a (?, K) by a tensor of integers (M,); a is {tuple(a.shape)}"
        )
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < len(a)):
        raise UsageError(f"matmul: rows holds {int(rows.min())} to {int(rows.max())}; a has rows 0 to {len(a) - 1}")
    return rows.long()


def _epilogue(bias, activation, residual, shape: tuple, a) -> Epilogue:
    """Contiguous tensors, empty ones where there is none."""
    if bias is not None and tuple(tensor_of("matmul", "bias", bias).shape) != shape[-1:]:
        raise UsageError(f"matmul: bias has shape {tuple(bias.shape)}; {shape[-1:]} is wanted, one number a column")
    if residual is not None and tuple(tensor_of("matmul", "residual", residual).shape) != shape:
        raise UsageError(f"matmul: residual has shape {tuple(residual.shape)}; the result's {shape} is wanted")
    bias = _nothing(a.device, 1) if bias is None else bias.contiguous()
    return Epilogue(bias, _nothing(a.device, 2) if residual is None else residual.contiguous(), activation)


@cache
def _nothing(device, rank: int):
    """An empty float32 tensor, made once."""
    import torch

    return torch.empty((0,) * rank, device=device)


def _target(out, inputs: tuple, residual):
    """`out` where a kernel may write it while it reads the inputs, else a new tensor, which the caller copies to out.

    It may be exactly the residual: each element of that is read before it is written, and by the same thread.
    """
    apart = _apart(out, residual)
    same = residual.data_ptr() == out.data_ptr() and residual.dtype == out.dtype
    usable = out.is_contiguous() and (apart or same) and all(_apart(out, x) for x in inputs)
    return out if usable else out.new_empty(out.shape)


def _apart(out, other) -> bool:
    """Whether two tensors share no memory: by their addresses, or their storages, which takes three times as long."""
    if other.data_ptr() >= out.data_ptr() + out.nbytes and out.is_contiguous():
        return True
    if other.data_ptr() + other.nbytes <= out.data_ptr() and other.is_contiguous():
        return True
    return not overlaps(out, other)

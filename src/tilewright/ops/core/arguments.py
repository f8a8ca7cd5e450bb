"""Checks the arguments of public functions, and allocates their results: HOST for the CPU, DEVICE for a GPU.

`arguments_of(x)` returns HOST or DEVICE, depending on the memory of x. Both have the same methods, so one public
function serves NumPy arrays and torch tensors. Messages have the form "op: x is ...; ... is wanted".
"""

from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core import arrays
from tilewright.ops.core.gpu import rows as gpu_rows
from tilewright.ops.core.gpu import tensors
from tilewright.ops.core.rows import as_rows

NOTHING = {rank: np.empty((0,) * rank, np.float32) for rank in (1, 2)}


class RowOperands(NamedTuple):
    """Arguments of an operation on rows. x: (..., C). vectors: (C,) each. result: the array that the call returns.
    target: the array that the kernel writes, the result or a buffer of its shape. dtype: the accuracy class."""

    x: Any
    vectors: tuple
    result: Any
    target: Any
    dtype: str


class Host:
    """Arrays in the CPU's memory: NumPy arrays, and arrays that NumPy reads without a copy."""

    device = "cpu"

    def take(self, op: str, name: str, value, dtypes: tuple[str, ...] = ("float32", "bfloat16")) -> np.ndarray:
        """`value` as float32; bfloat16 is widened. Raises UsageError for other dtypes. dtypes: for `Device` only."""
        if tensors.on_gpu(value):
            raise UsageError(f"{op}: {name} is on a GPU and the first argument is not: move them to one device")
        return arrays.as_float32(f"{op}: {name}", value)

    def same_device(self, op: str, first: str, x, **others) -> None:
        """Raises UsageError naming the argument that is on a GPU."""
        for name, other in others.items():
            if tensors.on_gpu(other):
                raise UsageError(f"{op}: {first} is on the CPU and {name} on a GPU: move them to one device")

    def result(self, op: str, out, shape: tuple[int, ...], near, dtypes: tuple[str, ...] = ("float32",)) -> np.ndarray:
        """`out`, or a new float32 array. dtypes: accepted for out; on the CPU "float32" and "bfloat16". Raises
        UsageError for an out that does not fit."""
        return arrays.result_for(op, out, shape, rounded="bfloat16" in dtypes)

    def results_in(self, dtype: str) -> tuple[str, ...]:
        """The dtypes that an out may have in an accuracy class."""
        return ("float32",)

    def target(
        self, result: np.ndarray, *inputs: np.ndarray, residual: np.ndarray | None = None, strided: bool = False
    ) -> np.ndarray:
        """The result where a kernel may write to it while it reads the inputs, otherwise a buffer of its shape. The
        result may be exactly the residual: a kernel reads each element of that before it writes it. strided: for
        `Device` only."""
        return arrays.target_for(result, *inputs, residual=residual)

    def plain(self, x: np.ndarray | None, near: np.ndarray, rank: int = 1) -> np.ndarray:
        """x contiguous, or an empty array of this rank for None."""
        return NOTHING[rank] if x is None else np.ascontiguousarray(x)

    def contiguous(self, x: np.ndarray, dtype: str) -> np.ndarray:
        """x without gaps between its elements, copied if necessary."""
        return np.ascontiguousarray(x)

    def name(self, x) -> str:
        """An argument in messages: its dtype and shape, or its type."""
        return f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"

    def new(self, shape: tuple[int, ...], dtype: str, near) -> np.ndarray:
        """A new array, its contents undefined."""
        return np.empty(shape, dtype)

    def row_operands(
        self, op: str, x, out, *, rank: int = 1, outs: tuple[str, ...] = ("float32",), **vectors
    ) -> RowOperands:
        """Checked arguments of an operation on rows. rank: the least rank of x. outs: dtypes of an out on the CPU."""
        array = self.take(op, "x", x)
        checked = _vectors(self, op, array, rank, vectors)
        result = self.result(op, out, array.shape, array, outs)
        target = result if out is None else arrays.target_for(result, *checked, residual=array)
        return RowOperands(array, tuple(map(np.ascontiguousarray, checked)), result, target, "float32")

    def rows(self, work: RowOperands) -> tuple[np.ndarray, np.ndarray]:
        """x and the target as (rows, C) with contiguous rows, copied if necessary; `put_back` copies what was
        written."""
        return as_rows(work.x), arrays.rows_for(work.target)

    def elements(self, work: RowOperands) -> tuple[np.ndarray, np.ndarray]:
        """As `rows`, but of any width."""
        x, target = work.x, work.target
        if x.flags.c_contiguous and target.flags.c_contiguous:
            return x.reshape(1, -1), target.reshape(1, -1)
        return self.rows(work)

    def put_back(self, work: RowOperands, written: np.ndarray) -> None:
        """Copy what a kernel has written to the target, unless it is the target's memory."""
        arrays.put_back(work.target, written)

    def finish(self, caller, result: np.ndarray, target: np.ndarray):
        """Copy the target to the result, and return it as the kind of array that the caller passed; bfloat16 as a
        NumPy array."""
        arrays.put_back(result, target)
        return result if result.dtype == arrays.BFLOAT16 else arrays.like(caller, result)


class Device:
    """Torch tensors on a GPU, and other libraries' arrays on one. Kernels are queued on torch's current stream, and no
    method waits for them."""

    device = "cuda"

    def take(self, op: str, name: str, value, dtypes: tuple[str, ...] = tensors.FLOATS):
        """The tensor itself. Raises UsageError unless it has one of the dtypes."""
        return tensors.tensor_of(op, name, value, dtypes)

    def same_device(self, op: str, first: str, x, **others) -> None:
        """Raises UsageError naming the argument that is not on x's device. None is accepted."""
        tensors.same_device(op, first, x, **others)

    def result(self, op: str, out, shape: tuple[int, ...], near, dtypes: tuple[str, ...] = ("float32",)):
        """`out`, or a new tensor of the first dtype on the device of `near`. Raises UsageError for an out that does not
        fit."""
        return tensors.result_for(op, out, shape, near, dtypes)

    def results_in(self, dtype: str) -> tuple[str, ...]:
        """The dtypes that an out may have in an accuracy class."""
        return ("float32", dtype) if dtype in tensors.FLOATS else ("float32",)

    def target(self, result, *inputs, residual=None, strided: bool = False):
        """The result where a kernel may write to it while it reads the inputs, otherwise a buffer of its shape. The
        result may be exactly the residual: a kernel reads each element of that before it writes it. strided: the kernel
        takes a matrix whose rows have a stride."""
        usable = result.is_contiguous() or (strided and self.writes_rows(result))
        usable = usable and not tensors.overlaps(result, *inputs)
        if usable and residual is not None and tensors.overlaps(result, residual):
            usable = residual.data_ptr() == result.data_ptr() and residual.dtype == result.dtype
            usable = usable and residual.stride() == result.stride()
        return result if usable else result.new_empty(result.shape)

    def writes_rows(self, x) -> bool:
        """True for a matrix whose rows are contiguous and do not overlap. There may be gaps between rows."""
        return x.ndim == 2 and x.stride(1) == 1 and (len(x) < 2 or x.stride(0) >= x.shape[1])

    def plain(self, x, near, rank: int = 1):
        """x contiguous, or an empty tensor of this rank for None."""
        return tensors.nothing(near.device, rank) if x is None else x.contiguous()

    def contiguous(self, x, dtype: str):
        """x without gaps between its elements, in the dtype of an accuracy class, copied if necessary."""
        return x.to(tensors.torch_dtype(dtype)).contiguous()

    def name(self, x) -> str:
        """An argument in messages: its dtype and shape, or its type."""
        return f"{tensors.kind(x)} {tuple(x.shape)}" if hasattr(x, "data_ptr") else f"a {type(x).__name__}"

    def new(self, shape: tuple[int, ...], dtype: str, near):
        """A new tensor on the device of `near`, its contents undefined."""
        import torch

        return near.new_empty(shape, dtype=getattr(torch, dtype))

    def row_operands(
        self, op: str, x, out, *, rank: int = 1, outs: tuple[str, ...] = ("float32",), **vectors
    ) -> RowOperands:
        """Checked arguments of an operation on rows. rank: the least rank of x. out may be of each float dtype."""
        given = tuple(vectors.values())
        if out is not None and gpu_rows.usable_as_given(x, out, *given) and x.ndim >= rank:
            return RowOperands(x, given, out, out, gpu_rows.kinds_of(x, out, *given))
        x = self.take(op, "x", x)
        checked = _vectors(self, op, x, rank, vectors)
        x, result, target = gpu_rows.with_target(op, x, out)
        return RowOperands(
            x, tuple(map(gpu_rows.ready, checked)), result, target, gpu_rows.kinds_of(x, target, *checked)
        )

    def rows(self, work: RowOperands) -> tuple:
        """x and the target as (rows, C), both contiguous, without a copy."""
        C = work.x.shape[-1]
        return gpu_rows.as_rows(work.x, C), gpu_rows.as_rows(work.target, C)

    def elements(self, work: RowOperands) -> tuple:
        """x and the target, both contiguous."""
        return work.x, work.target

    def put_back(self, work: RowOperands, written) -> None:
        """Do nothing, because the kernel has written to the target itself."""

    def finish(self, caller, result, target):
        """Copy the target to the result, and return it as the kind of array that the caller passed."""
        if target is not result:
            result.copy_(target)
        return result if hasattr(caller, "data_ptr") else arrays.like(caller, result)


HOST, DEVICE = Host(), Device()
Arguments = Host | Device


def arguments_of(value) -> Arguments:
    """DEVICE for an array in a GPU's memory, else HOST."""
    return DEVICE if tensors.on_gpu(value) else HOST


def _vectors(arguments: Arguments, op: str, x, rank: int, vectors: dict) -> list:
    """The vectors, each (C,) and on x's device. Raises UsageError naming the one that does not fit."""
    if x.ndim < rank:
        raise UsageError(f"{op}: x is a single number; (..., C) is wanted")
    checked = {name: arguments.take(op, name, value) for name, value in vectors.items()}
    for name, vector in checked.items():
        if tuple(vector.shape) != (x.shape[-1],):
            shapes = f"{tuple(vector.shape)}; {(x.shape[-1],)} is wanted"
            raise UsageError(f"{op}: {name} has shape {shapes}, one element per column of x")
    arguments.same_device(op, "x", x, **checked)
    return list(checked.values())

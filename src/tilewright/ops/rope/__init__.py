"""Rotary position embedding: pairs of elements of each head, turned by an angle that grows with the position.

from tilewright.ops.rope import inverse_frequencies, prepare, rope
rotation = prepare(inverse_frequencies(64, theta=10000.0), length=2048)     # once per model
y = rope(x, positions, rotation, heads=12)                          # (rows, H * D), (rows,) -> (rows, H * D)
rope(x, positions, rotation, heads=12, out=x)                       # in place
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arguments import DEVICE, HOST, Arguments, arguments_of
from tilewright.ops.core.arrays import BFLOAT16, as_numpy, put_back, rows_for, target_for
from tilewright.ops.core.gpu.rows import kinds_of
from tilewright.ops.core.gpu.tensors import FLOATS, INTEGERS, overlaps
from tilewright.ops.embedding import checked_ids
from tilewright.ops.rope.ladder import ladder
from tilewright.ops.rope.operands import Rotation, angles, inverse_frequencies
from tilewright.ops.rope.problem import Problem, problem_of

__all__ = ["Problem", "Rotation", "inverse_frequencies", "ladder", "prepare", "rope"]


def prepare(frequencies, *, length: int, like=None) -> Rotation:
    """The angles of positions 0 to length - 1, their cosines and sines: 8 * length * F bytes.

    frequencies: float32 (F,), by which positions are multiplied, such as `inverse_frequencies`. like: a tensor on the
    GPU where the rotation will be used; None: the CPU. Raises UsageError for another rank or dtype, and for a length
    below 1.
    """
    array = as_numpy("rope: frequencies", frequencies)
    if array.ndim != 1 or array.dtype != np.float32 or not len(array):
        raise UsageError(f"rope: frequencies is {HOST.name(array)}; float32 (F,) is wanted, F at least 1")
    if length < 1:
        raise UsageError(f"rope: length is {length}; it must be at least 1")
    exact = angles(np.arange(length), array).astype(np.float64)
    table = np.concatenate([np.cos(exact), np.sin(exact)], axis=1).astype(np.float32)
    if like is None:
        return Rotation(np.array(array), table)
    import torch

    return Rotation(*(torch.from_numpy(x).to(like.device) for x in (np.array(array), table)))


def rope(x, positions, rotation: Rotation, *, heads: int, out=None):
    """Each head's first F elements a and next F elements b become a cos - b sin and b cos + a sin; the rest is copied.

    The angle of pair i is float32(position * frequency[i]), in every class; products and sums are float32.
    x: (rows, heads * D) with D at least 2 F, float32 or bfloat16, NumPy or any array with DLPack. positions: integers
    (rows,). rotation: of `prepare`, whose length no position reaches. out: a NumPy array of x's shape to write to,
    float32 or of x's dtype; it may be x. Arrays on a GPU stay there; x may then be float16, too, and a position that
    the rotation has not makes its row NaN, because the host would have to wait to check it.
    Returns float32 (rows, heads * D), the same kind of array as x, or out. A row's bits depend on that row and its
    position. Raises UsageError naming the argument that does not fit. Source: Su et al., "RoFormer", 2021.
    """
    arguments = arguments_of(x)
    rows = _rows(arguments, x, rotation, heads)
    index = _positions(arguments, positions, len(rows), rotation.length)
    arguments.same_device("rope", "x", rows, positions=index, rotation=rotation.table)
    if arguments is DEVICE:
        result = arguments.result("rope", out, tuple(rows.shape), rows, FLOATS)
    else:
        result = arguments.result("rope", out, rows.shape, rows, ("float32", "bfloat16"))
        if result.dtype == BFLOAT16 and rows.dtype != BFLOAT16:
            raise UsageError("rope: out is bfloat16 and x float32; a float32 out is wanted")
    if 0 in rows.shape:
        return arguments.finish(x, result, result)
    run = _run_on_device if arguments is DEVICE else _run_on_host
    return arguments.finish(x, result, run(rows, index, rotation, heads, result))


def _rows(arguments: Arguments, x, rotation: Rotation, heads: int):
    """x, checked; on the CPU bfloat16 is not widened."""
    rows = as_numpy("rope: x", x) if arguments is HOST else arguments.take("rope", "x", x)
    if arguments is HOST and rows.dtype != BFLOAT16:
        rows = arguments.take("rope", "x", x)
    if rows.ndim != 2 or heads < 1 or rows.shape[1] % heads or rows.shape[1] // heads < 2 * rotation.pairs:
        rule = f"(rows, heads * D) is wanted, D at least {2 * rotation.pairs}"
        raise UsageError(f"rope: x is {arguments.name(rows)}, and heads {heads}; {rule}")
    return rows


def _positions(arguments: Arguments, positions, count: int, length: int):
    """Integers (count,); on the CPU each below `length`."""
    if arguments is HOST:
        index = checked_ids(positions, length, "rope: positions", "rotation")
    else:
        index = arguments.take("rope", "positions", positions, INTEGERS)
    if tuple(index.shape) != (count,):
        raise UsageError(f"rope: positions has shape {tuple(index.shape)}; {(count,)} is wanted, one of each row")
    return index


def _run_on_host(x: np.ndarray, positions: np.ndarray, rotation: Rotation, heads: int, result: np.ndarray):
    """The array that the chosen rung wrote: result, or a buffer of its shape."""
    if x.strides[1] != x.itemsize or x.strides[0] % x.itemsize or not x.flags.aligned:
        x = np.ascontiguousarray(x)
    target = target_for(result, *rotation, residual=x)
    flat = rows_for(target)
    dtype = "bfloat16" if x.dtype == BFLOAT16 else "float32"
    rung = ladder.choose(problem_of(x.shape[1] // heads, 2 * rotation.pairs, dtype, "cpu"))
    rung.run(x, np.ascontiguousarray(positions, np.int64), rotation, heads, flat)
    put_back(target, flat)
    return target


def _run_on_device(x, positions, rotation: Rotation, heads: int, result):
    """The same for tensors."""
    x = x if x.stride(1) == 1 else x.contiguous()
    same = x.data_ptr() == result.data_ptr() and x.dtype == result.dtype and x.stride() == result.stride()
    usable = result.stride(1) == 1 and (same or not overlaps(result, x)) and not overlaps(result, *rotation)
    target = result if usable else result.new_empty(result.shape)
    dtype = kinds_of(x, target)
    rung = ladder.choose(problem_of(x.shape[1] // heads, 2 * rotation.pairs, dtype, "cuda"))
    rung.run(x, positions.contiguous(), rotation, heads, target)
    return target

"""Rows of a table: out[..., :] = table[ids[...]], plus rows of a second table by position.

Where a convolution follows, the rows need not be gathered at all: see `tilewright.ops.embedding_conv1d`.
"""

from typing import overload

import numpy as np

from tilewright.errors import UsageError, WrongType
from tilewright.ops.core.arguments import HOST, arguments_of
from tilewright.ops.core.arrays import NO_NUMBERS, Float32, T, Tensor, as_numpy, put_back, rows_for, target_for
from tilewright.ops.core.gpu.rows import kinds_of, ready, writable
from tilewright.ops.core.gpu.tensors import FLOATS, INTEGERS
from tilewright.ops.core.problems import row_problem
from tilewright.ops.embedding.ladder import ladder
from tilewright.ops.embedding.problem import Problem

__all__ = ["Problem", "checked_ids", "embedding", "ladder"]


def checked_ids(ids, V: int, name: str = "ids", table: str = "table") -> np.ndarray:
    """ids as an integer array, each the index of a row of a table with V rows. name, table: for messages.

    Raises UsageError that names the first id out of range and its index.
    """
    array = as_numpy(name, ids)
    if array.dtype.kind not in "iu":
        kind = WrongType if array.dtype.kind in NO_NUMBERS else UsageError
        raise kind(f"{name} is {array.dtype}; integers are wanted")
    if array.size and not (array.min() >= 0 and array.max() < V):
        first = tuple(np.argwhere((array < 0) | (array >= V))[0])
        index = ", ".join(map(str, first))
        raise UsageError(f"{name}[{index}] is {array[first]}; the {table} has rows 0 to {V - 1}")
    return array


@overload
def embedding(
    ids: np.ndarray,
    table: Tensor,
    *,
    out: np.ndarray | None = None,
    positions: Tensor | None = None,
    position_table: Tensor | None = None,
) -> Float32: ...
@overload
def embedding(
    ids: T,
    table: Tensor,
    *,
    out: T | None = None,
    positions: Tensor | None = None,
    position_table: Tensor | None = None,
) -> T: ...
def embedding(ids, table, *, out=None, positions=None, position_table=None):
    """table[ids] + position_table[positions]: ids integers (...), table float32 or bfloat16 (V, C) -> float32 (..., C),
    the same kind of array as ids.

    positions, position_table: integers of ids' shape and a second table (P, C); both or neither. out: a float32 array
    of the result's shape to write to.
    Arrays on a GPU stay there. ids and positions may then be int64 or int32, tables and out also float16, out bfloat16.
    The values of ids are not checked there, because the host would have to wait: an id or a position outside its table
    makes its row NaN. Raises UsageError naming the argument that does not fit; on the CPU also for an id out of range,
    with the index of the first.
    """
    arguments = arguments_of(ids)
    rows = arguments.take("embedding", "table", table)
    if rows.ndim != 2:
        raise UsageError(f"embedding: table has shape {tuple(rows.shape)}; (V, C) is wanted")
    indices, C = _checked(arguments, "ids", ids, len(rows), "table"), rows.shape[1]
    positional = _positional(arguments, positions, position_table, tuple(indices.shape), C)
    others = dict(zip(("positions", "position_table"), positional, strict=False))
    arguments.same_device("embedding", "ids", indices, table=rows, **others)
    dtypes = ("float32",) if arguments is HOST else FLOATS
    result = arguments.result("embedding", out, (*indices.shape, C), rows, dtypes)
    if 0 in result.shape:
        return arguments.finish(ids, result, result)
    run = _run_on_host if arguments is HOST else _run_on_device
    return arguments.finish(ids, result, run(indices, rows, positional, result, out is None))


def _run_on_host(ids: np.ndarray, table: np.ndarray, positional: tuple, result: np.ndarray, new: bool) -> np.ndarray:
    """The array that the chosen rung wrote: result, or a buffer of its shape. positional: (positions, position_table)
    or (). new: the result shares no memory with an argument."""
    target = result if new else target_for(result, table, ids, *positional)
    flat = rows_for(target)
    ladder.choose(row_problem(table.shape[1], "float32", "cpu")).run(
        np.ascontiguousarray(ids.reshape(-1), np.int64), table, flat
    )
    if positional:
        positions, position_table = positional
        flat += position_table[positions.reshape(-1)]
    put_back(target, flat)
    return target


def _run_on_device(ids, table, positional: tuple, result, new: bool):
    """The same for tensors."""
    ids, table = ids.contiguous(), ready(table)
    if positional:
        positions, position_table = positional
        positional = positions.contiguous().view(-1), ready(position_table)
    target = result if new or writable(result, ids, table, *positional) else result.new_empty(result.shape)
    rung = ladder.choose(row_problem(table.shape[1], kinds_of(target, table, *positional[1:]), "cuda"))
    rung.run(ids.view(-1), table, positional or None, target.view(-1, table.shape[1]))
    return target


def _checked(arguments, name: str, ids, V: int, table: str):
    """Integers; on the CPU each is the index of a row of a table with V rows."""
    return checked_ids(ids, V, name, table) if arguments is HOST else arguments.take("embedding", name, ids, INTEGERS)


def _positional(arguments, positions, position_table, shape: tuple[int, ...], C: int) -> tuple:
    """Checked positions of this shape and their table (P, C), or () if there are none."""
    if (positions is None) != (position_table is None):
        missing = "positions" if positions is None else "position_table"
        raise UsageError(f"embedding: {missing} is missing; positions and position_table must be given together")
    if positions is None:
        return ()
    table = arguments.take("embedding", "position_table", position_table)
    if table.ndim != 2 or table.shape[1] != C:
        shapes = f"{tuple(table.shape)}; (P, {C}) is wanted, as wide as the table"
        raise UsageError(f"embedding: position_table has shape {shapes}")
    indices = _checked(arguments, "positions", positions, len(table), "position_table")
    if tuple(indices.shape) != shape:
        raise UsageError(f"embedding: positions has shape {tuple(indices.shape)}; that of ids, {shape}, is wanted")
    return indices, table

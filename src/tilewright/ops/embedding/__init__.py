"""Rows of a table picked by id: out[..., :] = table[ids[...]], and those of a second one, by position, added.

Where a convolution follows, no row needs to be gathered at all: see `tilewright.ops.embedding_conv1d`, the token table.
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arrays import as_float32, as_numpy, like, put_back, result_for, rows_for, target_for
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.embedding.ladder import ladder
from tilewright.ops.embedding.problem import Problem

__all__ = ["Problem", "checked_ids", "embedding", "ladder"]


def checked_ids(ids, V: int, name: str = "ids", table: str = "table") -> np.ndarray:
    """ids as an integer array, every one a row of a table with V rows; name, table: what messages call the two.

    Raises UsageError with the first id out of range and its place.
    """
    array = as_numpy(name, ids)
    if array.dtype.kind not in "iu":
        raise UsageError(f"{name} is {array.dtype}; integers are wanted")
    if array.size and not (array.min() >= 0 and array.max() < V):
        place = np.argwhere((array < 0) | (array >= V))[0]
        where = ", ".join(map(str, place))
        raise UsageError(f"{name}[{where}] is {array[tuple(place)]}; the {table} has rows 0 to {V - 1}")
    return array


def embedding(ids, table, *, out=None, positions=None, position_table=None):
    """table[ids] + position_table[positions]: ids integers (...), table float32 or bfloat16 (V, C) -> float32 (..., C),
    the same kind of array as ids.

    positions, position_table: integers of ids' shape and a second table (P, C); both or neither. out: a float32 array
    of the result's shape to write to. Tensors on a GPU stay there: see `device.py`, which does not look at ids.
    Raises UsageError for ids that are no integers or out of range, with the place of the first.
    """
    if on_gpu(ids):
        from tilewright.ops.embedding import device

        return device.embedding(ids, table, out=out, positions=positions, position_table=position_table)
    rows = as_float32("table", table)
    if rows.ndim != 2:
        raise UsageError(f"embedding: table has shape {rows.shape}; (V, C) is wanted")
    index, C = checked_ids(ids, len(rows)), rows.shape[1]
    places, more = _positions(positions, position_table, index.shape, C)
    result = result_for("embedding", out, (*index.shape, C))
    if result.size:
        rung = ladder.choose(Problem(C))
        target = result if out is None else target_for(result, rows, index, places, more)
        flat = rows_for(target)
        rung.run(np.ascontiguousarray(index.reshape(-1), np.int64), rows, flat)
        if places.size:
            flat += more[places.reshape(-1)]
        put_back(target, flat)
        put_back(result, target)
    return like(ids, result)


def _positions(positions, position_table, shape: tuple[int, ...], C: int) -> tuple[np.ndarray, np.ndarray]:
    """Checked positions and their table; two empty arrays where there are none."""
    if (positions is None) != (position_table is None):
        missing = "positions" if positions is None else "position_table"
        raise UsageError(f"embedding: {missing} is missing; positions and position_table come together")
    if positions is None:
        return np.empty(0, np.int64), np.empty((0, C), np.float32)
    more = as_float32("position_table", position_table)
    if more.ndim != 2 or more.shape[1] != C:
        raise UsageError(f"embedding: position_table has shape {more.shape}; (P, {C}) is wanted, as wide as the table")
    places = checked_ids(positions, len(more), "positions", "position_table")
    if places.shape != shape:
        raise UsageError(f"embedding: positions has shape {places.shape}; that of ids, {shape}, is wanted")
    return places, more

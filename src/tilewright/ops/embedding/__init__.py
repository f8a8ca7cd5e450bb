"""Rows of a table picked by id: out[..., :] = table[ids[...]].

Where a convolution follows, no row needs to be gathered at all: see `tilewright.ops.embedding_conv1d`, the token table.
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops._arrays import as_float32, as_numpy, like, put_back, result_for, rows_for, target_for
from tilewright.ops.embedding.ladder import ladder
from tilewright.ops.embedding.spec import Problem

__all__ = ["Problem", "checked_ids", "embedding", "ladder"]


def checked_ids(ids, V: int) -> np.ndarray:
    """ids as an integer array, every one a row of a table with V rows.

    Raises UsageError with the first id out of range and its place.
    """
    array = as_numpy("ids", ids)
    if array.dtype.kind not in "iu":
        raise UsageError(f"ids is {array.dtype}; integers are wanted")
    if array.size and not (array.min() >= 0 and array.max() < V):
        place = np.argwhere((array < 0) | (array >= V))[0]
        where = ", ".join(map(str, place))
        raise UsageError(f"ids[{where}] is {array[tuple(place)]}; the table has rows 0 to {V - 1}")
    return array


def embedding(ids, table, *, out=None):
    """table[ids]: ids integers (...), table float32 or bfloat16 (V, C) -> float32 (..., C), the same kind of array as
    ids.

    out: a float32 array of the result's shape to write to.
    Raises UsageError for ids that are no integers or out of range, with the place of the first.
    """
    rows = as_float32("table", table)
    if rows.ndim != 2:
        raise UsageError(f"embedding: table has shape {rows.shape}; (V, C) is wanted")
    index = checked_ids(ids, len(rows))
    result = result_for("embedding", out, (*index.shape, rows.shape[1]))
    if result.size:
        rung = ladder.choose(Problem(rows.shape[1]))
        target = result if out is None else target_for(result, rows, index)
        flat = rows_for(target)
        rung.run(np.ascontiguousarray(index.reshape(-1), np.int64), rows, flat)
        put_back(target, flat)
        put_back(result, target)
    return like(ids, result)

"""Rows of a table picked by id: out[..., :] = table[ids[...]], and those of a second one, by position, added.

Where a convolution follows, no row needs to be gathered at all: see `tilewright.ops.embedding_conv1d`, the token table.
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arrays import as_numpy, put_back, rows_for, target_for
from tilewright.ops.core.backend import HOST, backend_of
from tilewright.ops.core.gpu.rows import kinds_of, ready, writable
from tilewright.ops.core.gpu.tensors import FLOATS, INTEGERS
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
    of the result's shape to write to.
    Arrays on a GPU stay there: ids and positions int64 or int32, tables and out may also be float16, out bfloat16. The
    values of ids are not checked there, since that would wait for the GPU: an id or a position that its table does not
    have makes its row NaN. Raises UsageError naming the argument that does not fit, on the CPU also for ids out of
    range, with the index of the first.
    """
    backend = backend_of(ids)
    rows = backend.take("embedding", "table", table)
    if rows.ndim != 2:
        raise UsageError(f"embedding: table has shape {tuple(rows.shape)}; (V, C) is wanted")
    index, C = _index(backend, "ids", ids, len(rows), "table"), rows.shape[1]
    places, more = _positions(backend, positions, position_table, tuple(index.shape), C)
    backend.same_device("embedding", "ids", index, table=rows, positions=places, position_table=more)
    result = backend.result("embedding", out, (*index.shape, C), rows, FLOATS if backend is not HOST else ("float32",))
    if 0 in result.shape:
        return backend.finish(ids, result, result)
    run = _run_on_host if backend is HOST else _run_on_device
    return backend.finish(ids, result, run(index, rows, places, more, result, out is None))


def _run_on_host(index: np.ndarray, rows: np.ndarray, places, more, result: np.ndarray, new: bool) -> np.ndarray:
    """The array that the chosen rung wrote: result, or a buffer of its shape. new: nobody else has the result."""
    others = () if places is None else (places, more)
    target = result if new else target_for(result, rows, index, *others)
    flat = rows_for(target)
    rung = ladder.choose(Problem(rows.shape[1]))
    rung.run(np.ascontiguousarray(index.reshape(-1), np.int64), rows, flat)
    if places is not None:
        flat += more[places.reshape(-1)]
    put_back(target, flat)
    return target


def _run_on_device(index, rows, places, more, result, new: bool):
    """The same for tensors."""
    index, rows = index.contiguous(), ready(rows)
    pair = None if places is None else (places.contiguous().view(-1), ready(more))
    target = result if new or writable(result, index, rows, *pair or ()) else result.new_empty(result.shape)
    tables = (rows, pair[1]) if pair else (rows,)
    rung = ladder.choose(Problem(rows.shape[1], kinds_of(target, *tables), "cuda"))
    rung.run(index.view(-1), rows, pair, target.view(-1, rows.shape[1]))
    return target


def _index(backend, name: str, ids, V: int, table: str):
    """Integers; on the CPU each is a row of a table with V rows."""
    return checked_ids(ids, V, name, table) if backend is HOST else backend.take("embedding", name, ids, INTEGERS)


def _positions(backend, positions, position_table, shape: tuple[int, ...], C: int) -> tuple:
    """Checked positions and their table; None and None where there are none."""
    if (positions is None) != (position_table is None):
        missing = "positions" if positions is None else "position_table"
        raise UsageError(f"embedding: {missing} is missing; positions and position_table come together")
    if positions is None:
        return None, None
    more = backend.take("embedding", "position_table", position_table)
    if more.ndim != 2 or more.shape[1] != C:
        shapes = f"{tuple(more.shape)}; (P, {C}) is wanted, as wide as the table"
        raise UsageError(f"embedding: position_table has shape {shapes}")
    places = _index(backend, "positions", positions, len(more), "position_table")
    if tuple(places.shape) != shape:
        raise UsageError(f"embedding: positions has shape {tuple(places.shape)}; that of ids, {shape}, is wanted")
    return places, more

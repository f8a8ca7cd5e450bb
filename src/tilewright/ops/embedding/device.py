"""embedding on a GPU: what `embedding` does when it is handed torch tensors there."""

from tilewright.errors import UsageError
from tilewright.ops.core.gpu.rows import kinds_of, put_back, ready, writable
from tilewright.ops.core.gpu.tensors import FLOATS, result_for, same_device, tensor_of
from tilewright.ops.embedding.ladder import ladder
from tilewright.ops.embedding.problem import Problem

INTEGERS = ("int64", "int32")


def embedding(ids, table, *, out=None, positions=None, position_table=None):
    """table[ids] + position_table[positions], as `tilewright.ops.embedding.embedding`, on one GPU.

    ids, positions: int64 or int32 (...); tables float32, bfloat16 or float16 (V, C) and (P, C), added in float32. out:
    a tensor (..., C) of one of the three dtypes to write to; None: a new float32 one. Raises UsageError naming the
    argument that does not fit; but an id or a position that its table does not have makes its row NaN, since nobody
    waits for the GPU to look at it.
    """
    tensor_of("embedding", "ids", ids, INTEGERS)
    if tensor_of("embedding", "table", table).ndim != 2:
        raise UsageError(f"embedding: table has shape {tuple(table.shape)}; (V, C) is wanted")
    C = table.shape[1]
    _check_positions(ids, C, positions, position_table)
    same_device("embedding", "ids", ids, table=table, positions=positions, position_table=position_table)
    result = result_for("embedding", out, (*ids.shape, C), ids, FLOATS)
    ids, table = ids.contiguous(), ready(table)
    places = None if positions is None else (positions.contiguous().view(-1), ready(position_table))
    target = result if out is None or writable(out, ids, table, *places or ()) else result.new_empty(result.shape)
    if target.numel():
        tables = (table, places[1]) if places else (table,)
        rung = ladder.choose(Problem(C, kinds_of(target, *tables), "cuda"))
        rung.run(ids.view(-1), table, places, target.view(-1, C))
    return put_back(result, target)


def _check_positions(ids, C: int, positions, position_table) -> None:
    if (positions is None) != (position_table is None):
        missing = "positions" if positions is None else "position_table"
        raise UsageError(f"embedding: {missing} is missing; positions and position_table come together")
    if positions is None:
        return
    if tensor_of("embedding", "positions", positions, INTEGERS).shape != ids.shape:
        shapes = f"{tuple(positions.shape)}; that of ids, {tuple(ids.shape)}, is wanted"
        raise UsageError(f"embedding: positions has shape {shapes}")
    if tensor_of("embedding", "position_table", position_table).ndim != 2 or position_table.shape[1] != C:
        shape = tuple(position_table.shape)
        raise UsageError(f"embedding: position_table has shape {shape}; (P, {C}) is wanted, as wide as the table")

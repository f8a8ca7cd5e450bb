"""From token ids to pooled features: embedding, 1-D convolutions side by side, ReLU, maximum over positions. TextCNN's
first layer.

from tilewright.ops.embedding_conv1d import embedding_conv1d, prepare
prepared = prepare(table, weights, biases, length=16)
features = embedding_conv1d(ids, prepared)      # (B, 16) -> (B, branches * O)
"""

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arrays import as_float32, like, put_back, result_for, rows_for, target_for
from tilewright.ops.core.gpu.tensors import on_gpu
from tilewright.ops.embedding import checked_ids
from tilewright.ops.embedding_conv1d.ladder import ladder
from tilewright.ops.embedding_conv1d.operands import Filters, Prepared
from tilewright.ops.embedding_conv1d.problem import Problem

__all__ = ["Prepared", "Problem", "embedding_conv1d", "ladder", "precompute", "prepare"]


def prepare(table, weights, biases, *, length: int, dtype: str = "float32", memory: int | None = None) -> Prepared:
    """Lay the weights out for the rung that will run, and open its token table.

    table: float32 (V, C). weights: a list of (O, C, K), K at most `length`. biases: a list of (O,). length: L, tokens a
    sentence. dtype: "float32" or "bfloat16", which may take operands below 2^-126 for 0. memory: bytes that the token
    table may occupy (None: no limit; the vocabulary times the taps). Raises UsageError for shapes that do not fit,
    ResourceError if `memory` does not hold the rows of one sentence.
    """
    if on_gpu(table):
        from tilewright.ops.embedding_conv1d import device

        return device.prepare(table, weights, biases, length=length, dtype=dtype, memory=memory)
    rows = as_float32("table", table)
    filters = tuple(as_float32(f"weights[{i}]", w) for i, w in enumerate(weights))
    if (
        rows.ndim != 2
        or not filters
        or any(w.ndim != 3 or w.shape[:2] != (len(filters[0]), rows.shape[1]) for w in filters)
    ):
        shapes = ", ".join(str(w.shape) for w in filters)
        raise UsageError(
            f"embedding_conv1d: table is {rows.shape} and weights are {shapes}; (V, C) and (O, C, K) are wanted"
        )
    if any(not 1 <= w.shape[2] <= length for w in filters):
        raise UsageError(
            f"embedding_conv1d: kernels of {[w.shape[2] for w in filters]} do not fit sentences of {length}"
        )
    bias = [as_float32(f"biases[{i}]", b) for i, b in enumerate(biases)]
    if [b.shape for b in bias] != [(len(w),) for w in filters]:
        raise UsageError(f"embedding_conv1d: biases are {[b.shape for b in bias]}; one number a filter is wanted")
    checked = Filters(filters, np.concatenate(bias))
    rung = ladder.choose(Problem(checked.C, checked.O, checked.kernels, dtype))
    lay_out = rung.lay_out
    assert lay_out is not None, "every rung of this ladder prepares"
    state = lay_out(rows, checked, dtype=dtype, length=length, memory=memory)
    return Prepared(rung.name, dtype, rows, checked, state)


def precompute(ids, prepared: Prepared) -> None:
    """Compute what later calls with these ids will look up, in large products instead of one small one a call. Changes
    no result.

    Does nothing for a rung without a table, or where the table has no room for all of it.
    """
    if on_gpu(prepared.table):
        from tilewright.ops.embedding_conv1d import device

        device.precompute(ids, prepared)
        return
    if hasattr(prepared.state, "precompute"):
        prepared.state.precompute(_checked(ids, prepared))


def _checked(ids, prepared: Prepared) -> np.ndarray:
    """int32 (B, L), every id in the table."""
    checked, longest = checked_ids(ids, len(prepared.table)), max(prepared.filters.kernels)
    if checked.ndim != 2 or checked.shape[1] < longest:
        raise UsageError(f"embedding_conv1d: ids has shape {checked.shape}; (B, L) with L at least {longest} is wanted")
    return np.ascontiguousarray(checked, np.int32)


def embedding_conv1d(ids, prepared: Prepared, *, out=None):
    """relu(conv1d(table[ids])).max over positions, branches side by side: ids int (B, L) -> float32 (B, branches * O).

    out: a float32 array of the result's shape to write to.
    Raises UsageError for ids that are no integers or out of range, with the place of the first, or shorter than the
    largest kernel. A sentence's bits do not depend on the others, on their number, on the table's memory or on the
    number of threads.
    """
    if on_gpu(prepared.table):
        from tilewright.ops.embedding_conv1d import device

        return device.embedding_conv1d(ids, prepared, out=out)
    checked, filters = _checked(ids, prepared), prepared.filters
    rung = ladder.choose(Problem(filters.C, filters.O, filters.kernels, prepared.dtype))
    if rung.name != prepared.rung:
        raise UsageError(
            f"embedding_conv1d: prepared for rung {prepared.rung}, and {rung.name} is chosen now: prepare again"
        )
    result = result_for("embedding_conv1d", out, (len(checked), len(filters.weights) * filters.O))
    if result.size:
        target = result if out is None else rows_for(target_for(result, checked))
        rung.run(checked, prepared, target)
        put_back(result, target)
    return like(ids, result)

"""From token ids to pooled features: embedding, 1-D convolutions side by side, ReLU, maximum over positions. TextCNN's
first layer.

from tilewright.ops.embedding_conv1d import embedding_conv1d, prepare
prepared = prepare(table, weights, biases, length=16)
features = embedding_conv1d(ids, prepared)      # (B, 16) -> (B, branches * O)
"""

from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.arguments import HOST, arguments_of
from tilewright.ops.core.arrays import rows_for
from tilewright.ops.core.gpu.tensors import on_gpu, tensor_of
from tilewright.ops.embedding import checked_ids
from tilewright.ops.embedding_conv1d.ladder import ladder
from tilewright.ops.embedding_conv1d.operands import Filters, Located, Prepared
from tilewright.ops.embedding_conv1d.problem import Problem

__all__ = ["Located", "Prepared", "Problem", "embedding_conv1d", "ladder", "locate", "precompute", "prepare"]

OP = "embedding_conv1d"
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")  # dtypes of ids on a GPU
BATCH = 16384  # sentences that a GPU handles at a time


def prepare(table, weights, biases, *, length: int, dtype: str = "float32", memory: int | None = None) -> Prepared:
    """Lay the weights out for the chosen rung, and open its token table.

    table: float32 (V, C). weights: a list of (O, C, K), K at most `length`. biases: a list of (O,). length: L, tokens
    per sentence. dtype: "float32" or "bfloat16", which may treat operands below 2^-126 as 0. memory: most bytes of the
    token table; None: no limit (the vocabulary times the taps). Arrays on a GPU stay there; dtype may also be
    "float16", a 16-bit class stores the table's rows in 16 bits, and with memory None the table takes what is free but
    for a reserve. Raises UsageError for arrays that do not fit, ResourceError if `memory` does not hold the rows of one
    sentence.
    """
    arguments = arguments_of(table)
    rows = arguments.take(OP, "table", table, ("float32",))
    filters = {f"weights[{i}]": arguments.take(OP, f"weights[{i}]", w, ("float32",)) for i, w in enumerate(weights)}
    bias = {f"biases[{i}]": arguments.take(OP, f"biases[{i}]", b, ("float32",)) for i, b in enumerate(biases)}
    arguments.same_device(OP, "table", rows, **filters, **bias)
    shapes, kernels = [tuple(w.shape) for w in filters.values()], [w.shape[-1] for w in filters.values() if w.ndim]
    if rows.ndim != 2 or not shapes or any(len(s) != 3 or s[:2] != (shapes[0][0], rows.shape[1]) for s in shapes):
        raise UsageError(
            f"{OP}: table is {tuple(rows.shape)} and weights are {shapes}; (V, C) and (O, C, K) are wanted"
        )
    if any(not 1 <= K <= length for K in kernels):
        raise UsageError(
            f"{OP}: kernels have {kernels} taps, sentences {length} tokens; K at most the length {length} is wanted"
        )
    if [tuple(b.shape) for b in bias.values()] != [(O,) for O, _, _ in shapes]:
        found = [tuple(b.shape) for b in bias.values()]
        raise UsageError(f"{OP}: biases are {found}; {(shapes[0][0],)} for each branch is wanted, one value per filter")
    joined = arguments.new((sum(map(len, bias.values())),), "float32", rows)
    for i, values in enumerate(bias.values()):
        joined[i * len(values) : (i + 1) * len(values)] = values
    checked = Filters(tuple(filters.values()), joined)
    rung = ladder.choose(Problem(checked.C, checked.O, checked.kernels, dtype, arguments.device))
    assert rung.lay_out is not None, "every rung of this ladder prepares"
    state = rung.lay_out(rows, checked, dtype=dtype, length=length, memory=memory)
    return Prepared(rung.name, dtype, rows, getattr(state, "filters", checked), state)


def precompute(ids, prepared: Prepared) -> None:
    """Compute the rows that later calls with these ids will need, in large products instead of one small one per call.

    Changes no result. Does nothing for a rung without a table, or if the table does not hold all of the rows.
    """
    if hasattr(prepared.state, "precompute"):
        prepared.state.precompute(_checked(ids, prepared))


def locate(ids, prepared: Prepared) -> Located:
    """ids (B, L), on the host or a GPU, as slots of a GPU's token table, whose missing rows are computed.

    `embedding_conv1d` of the result queues kernels and waits for nothing, so a CUDA graph can hold it. Raises
    UsageError for wrong ids, for a rung without such a table, and if the table does not hold all of the tokens.
    """
    if not hasattr(prepared.state, "slot_of"):
        raise UsageError(f"{OP}: rung {prepared.rung} has no table of slots")
    checked = _checked(ids, prepared)
    batches = list(prepared.state.batches(checked, max(len(checked), 1)))
    if len(batches) > 1:
        raise UsageError(f"{OP}: the table holds {prepared.state.capacity} tokens; ids have more: locate fewer")
    return Located(_sent(batches[0].slots if batches else checked, prepared))


def embedding_conv1d(ids, prepared: Prepared, *, out=None):
    """relu(conv1d(table[ids])).max over positions, branches side by side: ids int (B, L) -> float32 (B, branches * O).

    out: a float32 array of the result's shape to write to. Where the weights are on a GPU, the result is, too; ids may
    be anywhere, or be the result of `locate`; out may have the 16-bit dtype of the class.
    Raises UsageError for ids that are not integers, out of range (with the index of the first), or shorter than the
    largest kernel. A sentence's bits do not depend on the other sentences, their number, the table's memory, or the
    number of threads.
    """
    arguments, filters = arguments_of(prepared.table), prepared.filters
    located = isinstance(ids, Located) and arguments is not HOST
    index: Any = ids if located else _checked(ids, prepared)
    rung = ladder.choose(Problem(filters.C, filters.O, filters.kernels, prepared.dtype, arguments.device))
    if rung.name != prepared.rung:
        raise UsageError(f"{OP}: prepared for rung {prepared.rung}, and {rung.name} is chosen now: prepare again")
    shape = (len(index.slots if located else index), len(filters.weights) * filters.O)
    result = arguments.result(OP, out, shape, prepared.table, arguments.results_in(prepared.dtype))
    if 0 in shape:
        return arguments.finish(ids, result, result)
    if arguments is HOST:
        target = result if out is None else rows_for(arguments.target(result, np.asarray(index)))
        rung.run(index, prepared, target)
    else:
        target = arguments.target(result)
        for slots, part in _pieces(index, prepared, target):
            rung.run(slots, prepared, part)
    return arguments.finish(ids, result, target)


def _pieces(index, prepared: Prepared, target):
    """Yield (slots, rows of target) for some sentences after the other; of a rung without a table ids, not slots."""
    if isinstance(index, Located):
        yield index.slots, target
    elif hasattr(prepared.state, "batches"):
        for batch in prepared.state.batches(index, BATCH):
            yield _sent(batch.slots, prepared), target[batch.first : batch.end]
    else:
        yield _sent(index, prepared), target


def _checked(ids, prepared: Prepared) -> np.ndarray:
    """int32 (B, L) on the host, every id in the table."""
    array = tensor_of(OP, "ids", ids, INTEGERS).cpu().numpy() if on_gpu(ids) else ids
    checked, longest = checked_ids(array, len(prepared.table)), max(prepared.filters.kernels)
    if checked.ndim != 2 or checked.shape[1] < longest:
        raise UsageError(f"{OP}: ids has shape {checked.shape}; (B, L) with L at least {longest} is wanted")
    return np.ascontiguousarray(checked, np.int32)


def _sent(array: np.ndarray, prepared: Prepared):
    """A copy on the table's device."""
    import torch

    return torch.from_numpy(array).to(prepared.table.device)

"""embedding_conv1d on a GPU: the functions of the same names for torch tensors that live there.

The token table's index is on the host: `locate` turns ids into places of the table and computes rows that are missing;
after that, `embedding_conv1d` of what it gave queues kernels and waits for nothing, so a CUDA graph can hold it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.ops.core.gpu.tensors import result_for, same_device, tensor_of
from tilewright.ops.embedding import checked_ids
from tilewright.ops.embedding_conv1d.ladder import ladder
from tilewright.ops.embedding_conv1d.operands import Filters, Prepared
from tilewright.ops.embedding_conv1d.problem import Problem

OP = "embedding_conv1d"
BATCH = 16384  # sentences that a call handles at a time; with little memory for the table, fewer


@dataclass(frozen=True, eq=False)
class Located:
    """Sentences as places in a token table: int32 (B, L) on its device. They hold until rows are computed again in a
    table without room for all tokens."""

    places: Any


def prepare(table, weights, biases, *, length: int, dtype: str = "float32", memory: int | None = None) -> Prepared:
    """Lay the weights out on their GPU, and open a token table there; see `embedding_conv1d.prepare`.

    All are torch tensors on one device, float32. dtype: "float32", "bfloat16" or "float16"; in a 16-bit class the
    table's rows are rounded to it. memory: bytes that the token table may occupy; None: what the GPU has free, but for
    a reserve. Raises UsageError for what does not fit, ResourceError if `memory` does not hold one sentence's rows.
    """
    table = tensor_of(OP, "table", table, ("float32",))
    filters = tuple(tensor_of(OP, f"weights[{i}]", w, ("float32",)) for i, w in enumerate(weights))
    bias = [tensor_of(OP, f"biases[{i}]", b, ("float32",)) for i, b in enumerate(biases)]
    same_device(OP, "table", table, **{f"weights[{i}]": w for i, w in enumerate(filters)})
    same_device(OP, "table", table, **{f"biases[{i}]": b for i, b in enumerate(bias)})
    shapes = [tuple(w.shape) for w in filters]
    if (
        table.ndim != 2
        or not filters
        or any(len(s) != 3 or s[:2] != (shapes[0][0], table.shape[1]) or not 1 <= s[2] <= length for s in shapes)
    ):
        raise UsageError(
            f"{OP}: table is {tuple(table.shape)} and weights are {shapes}; (V, C) and (O, C, K) are wanted, "
            f"K at most the length {length}"
        )
    if [tuple(b.shape) for b in bias] != [s[:1] for s in shapes]:
        raise UsageError(f"{OP}: biases are {[tuple(b.shape) for b in bias]}; one number a filter is wanted")
    import torch

    checked = Filters(filters, torch.cat(bias))
    rung = ladder.choose(Problem(checked.C, checked.O, checked.kernels, dtype, "cuda"))
    lay_out = rung.lay_out
    assert lay_out is not None, "every rung of this ladder prepares"
    state = lay_out(table.contiguous(), checked, dtype=dtype, length=length, memory=memory)
    return Prepared(rung.name, dtype, table, getattr(state, "filters", checked), state)


def precompute(ids, prepared: Prepared) -> None:
    """Compute what later calls with these ids will look up; see `embedding_conv1d.precompute`."""
    if hasattr(prepared.state, "precompute"):
        prepared.state.precompute(_checked(ids, prepared))


def locate(ids, prepared: Prepared) -> Located:
    """ids (B, L), an array or a tensor anywhere, as places of the table, whose missing rows are computed.

    Raises UsageError for wrong ids, for a rung without a table, and where the table has no room for all of them.
    """
    checked = _checked(ids, prepared)
    if not hasattr(prepared.state, "batches"):
        raise UsageError(f"{OP}: rung {prepared.rung} has no table to find places in")
    batches = list(prepared.state.batches(checked, max(len(checked), 1)))
    if len(batches) > 1:
        raise UsageError(f"{OP}: the table has room for {prepared.state.capacity} tokens; ids have more: locate fewer")
    places = batches[0][2] if batches else checked
    return Located(_sent(places, prepared))


def embedding_conv1d(ids, prepared: Prepared, *, out=None):
    """relu(conv1d(table[ids])).max over positions -> float32 (B, branches * O); see `embedding_conv1d`.

    ids: integers (B, L), checked on the host; or what `locate` gave. out: contiguous, float32 or of the class's 16-bit
    dtype.
    """
    filters = prepared.filters
    rung = ladder.choose(Problem(filters.C, filters.O, filters.kernels, prepared.dtype, "cuda"))
    if rung.name != prepared.rung:
        raise UsageError(f"{OP}: prepared for rung {prepared.rung}, and {rung.name} is chosen now: prepare again")
    located = isinstance(ids, Located)
    ids = ids.places if located else _checked(ids, prepared)
    shape = (len(ids), len(filters.weights) * filters.O)
    dtypes = ("float32", prepared.dtype) if prepared.dtype.endswith("16") else ("float32",)
    result = result_for(OP, out, shape, prepared.table, dtypes)
    target = result if result.is_contiguous() else result.new_empty(shape)
    if located or not hasattr(prepared.state, "batches"):
        if target.numel():
            rung.run(ids if located else _sent(ids, prepared), prepared, target)
    else:
        for first, end, places in prepared.state.batches(ids, BATCH):
            rung.run(_sent(places, prepared), prepared, target[first:end])
    if target is not result:
        result.copy_(target)
    return result


def _checked(ids, prepared: Prepared) -> np.ndarray:
    """int32 (B, L) on the host, every id in the table."""
    array = ids.cpu().numpy() if hasattr(ids, "cpu") else ids
    checked, longest = checked_ids(array, len(prepared.table)), max(prepared.filters.kernels)
    if checked.ndim != 2 or checked.shape[1] < longest:
        raise UsageError(f"{OP}: ids has shape {checked.shape}; (B, L) with L at least {longest} is wanted")
    return np.ascontiguousarray(checked, np.int32)


def _sent(array: np.ndarray, prepared: Prepared):
    """A copy on the table's device."""
    import torch

    return torch.from_numpy(array).to(prepared.table.device)

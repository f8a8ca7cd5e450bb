"""The rungs of embedding_conv1d. prepare(table, filters, options) -> state; run(ids, prepared, out)."""

import numpy as np

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import on
from tilewright.ops.embedding_conv1d import gpu_ladder
from tilewright.ops.embedding_conv1d.operands import Filters, Prepared

ladder = Ladder("embedding_conv1d", prefer=("cpu.gather_add", *gpu_ladder.PREFER))
CLASSES = (on("cpu", "float32", "bfloat16"),)


def _prepare_filters(table: np.ndarray, filters: Filters, *, dtype: str, length: int, memory: int | None):
    from tilewright.ops.conv1d import prepare

    return [prepare(weight, dtype=dtype) for weight in filters.weights]


def _prepare_table(table: np.ndarray, filters: Filters, *, dtype: str, length: int, memory: int | None):
    from tilewright.ops.embedding_conv1d.token_table import TokenTable

    return TokenTable(table, filters, dtype=dtype, length=length, memory=memory)


@ladder.rung(
    "cpu.gather",
    after=None,
    needs=CLASSES,
    prepare=_prepare_filters,
    idea="look the rows up, then convolve them with conv1d, ReLU and maximum fused",
)
def gather(ids: np.ndarray, prepared: Prepared, out: np.ndarray) -> None:
    from tilewright.ops.conv1d import conv1d
    from tilewright.ops.embedding import embedding

    filters, O = prepared.filters, prepared.filters.O
    x = embedding(ids, prepared.table).swapaxes(1, 2)  # (B, C, L)
    for branch, weight in enumerate(prepared.state):
        columns = slice(branch * O, (branch + 1) * O)
        out[:, columns] = conv1d(x, weight, bias=filters.bias[columns], activation="relu", pool="max")


def _from_table(ids: np.ndarray, prepared: Prepared, out: np.ndarray, *, vectors: bool) -> None:
    from tilewright.ops.embedding_conv1d.cpu.gather_add import add_rows

    with prepared.state.lock:  # no other thread adds rows or moves them meanwhile
        for first, end in prepared.state.batches(ids):
            add_rows(ids[first:end], prepared.state, out[first:end], vectors=vectors)


@ladder.rung(
    "cpu.table_sums",
    after="cpu.gather",
    needs=CLASSES,
    prepare=_prepare_table,
    idea="each pair of token and tap is multiplied once; a window is a sum of table rows",
)
def table_sums(ids, prepared, out):
    _from_table(ids, prepared, out, vectors=False)


@ladder.rung(
    "cpu.gather_add",
    after="cpu.table_sums",
    needs=CLASSES,
    prepare=_prepare_table,
    idea="vectors, the running maximum in registers, one slice of the table at a time so that it stays in L3",
)
def gather_add(ids, prepared, out):
    _from_table(ids, prepared, out, vectors=True)


gpu_ladder.declare(ladder)

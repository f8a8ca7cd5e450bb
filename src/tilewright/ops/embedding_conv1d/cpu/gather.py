"""The layer as two operations: embedding, then one conv1d per branch.

The limit is conv1d's multiply-adds, since every token of every sentence is multiplied. It is slower than a token table,
which multiplies each distinct token once.
"""

import numpy as np

from tilewright.ops.conv1d import conv1d, prepare
from tilewright.ops.core.layers import layer
from tilewright.ops.embedding import embedding
from tilewright.ops.embedding_conv1d.operands import Filters, Prepared


def prepare_filters(table: np.ndarray, filters: Filters, *, dtype: str, length: int, memory: int | None) -> list:
    """Each branch's weights, prepared for conv1d."""
    prepared = []
    for branch, weight in enumerate(filters.weights, start=1):
        with layer(conv1d=branch):
            prepared.append(prepare(weight, dtype=dtype))
    return prepared


def convolve(ids: np.ndarray, prepared: Prepared, out: np.ndarray) -> None:
    """out (B, branches * O) = the maximum over positions of relu(conv1d(table[ids]))."""
    filters, O = prepared.filters, prepared.filters.O
    x = embedding(ids, prepared.table).swapaxes(1, 2)  # (B, C, L)
    for branch, weight in enumerate(prepared.state):
        columns = slice(branch * O, (branch + 1) * O)
        with layer(conv1d=branch + 1):
            out[:, columns] = conv1d(x, weight, bias=filters.bias[columns], activation="relu", pool="max")

"""embedding_conv1d without a kernel of its own: torch gathers the embeddings, then one conv1d per branch.

The limit is conv1d's multiply-adds: every token of every sentence is multiplied. It is slower than the rungs with a
token table, which multiply each distinct token once.
"""

from tilewright.ops.conv1d import conv1d, prepare
from tilewright.ops.core.ladder import preferring
from tilewright.ops.core.layers import layer
from tilewright.ops.embedding_conv1d.memory import CONVOLUTION
from tilewright.ops.embedding_conv1d.operands import Filters, Prepared


def prepare_filters(table, filters: Filters, *, dtype: str, length: int, memory: int | None) -> list:
    """Each branch's weights, prepared for conv1d. The other arguments are for rungs that build a token table."""
    with preferring(conv1d=CONVOLUTION):
        prepared = []
        for branch, weight in enumerate(filters.weights, start=1):
            with layer(conv1d=branch):
                prepared.append(prepare(weight, dtype=dtype))
    return prepared


def convolve(ids, prepared: Prepared, out) -> None:
    """out (B, branches * O) = the maximum over positions of relu(conv1d(table[ids]) + bias), without padding. ids (B,
    L). prepared.state: what `prepare_filters` returned."""
    filters, O = prepared.filters, prepared.filters.O
    x = prepared.table[ids.long()].transpose(1, 2)  # (B, C, L)
    with preferring(conv1d=CONVOLUTION):
        for branch, weight in enumerate(prepared.state):
            columns = slice(branch * O, (branch + 1) * O)
            with layer(conv1d=branch + 1):
                out[:, columns] = conv1d(x, weight, bias=filters.bias[columns], activation="relu", pool="max")

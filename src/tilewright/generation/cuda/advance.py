"""The end of a decode step in one kernel. PyTorch operations would need twelve kernels."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tilewright.ops.core.gpu.early import early, wait_for_inputs

WARPS = 8


class Rows(NamedTuple):
    """The tensors of a decode step. ids int64 (n,), positions int32 (n,): the token that each row reads next, and its
    position. tokens int64 (lines, at least n): one line per step. line int64 (1,): the line that is written next."""

    ids: Any
    positions: Any
    tokens: Any
    line: Any


@triton.jit(do_not_specialize=["n", "columns", "last"])
def store_tokens(found, logits, rows, n, columns, last, BLOCK: tl.constexpr):
    """One program, for up to BLOCK rows. rows: `Rows` of pointers. columns: of rows.tokens. last: the largest
    position."""
    wait_for_inputs()
    row = tl.arange(0, BLOCK)
    inside, line = row < n, tl.load(rows.line)
    token = tl.load(found + row, mask=inside, other=0)
    if logits is not None:
        size = tl.abs(tl.load(logits + row, mask=inside, other=0.0))
        token = tl.where(size < float("inf"), token, -1)
    position = tl.load(rows.positions + row, mask=inside, other=0)
    tl.debug_barrier()  # all warps have read the line before one of them changes it
    tl.store(rows.ids + row, token, mask=inside)
    tl.store(rows.positions + row, tl.minimum(position + 1, last), mask=inside)
    tl.store(rows.tokens + line * columns + row, token, mask=inside)
    tl.store(rows.line, line + 1)


def advance(found: torch.Tensor, logits: torch.Tensor | None, rows: Rows, length: int) -> None:
    """Store the next tokens, found int64 (n,), in ids and in the current line of tokens, which must exist. Add 1 to
    positions, up to length - 1, and to line.

    logits: of the tokens, float32 (n,); one that is not finite makes its token -1. None: the tokens are stored as they
    are. Finished rows run on until the host knows, which is why positions have a limit.
    """
    n, columns = len(rows.ids), rows.tokens.shape[1]
    block = triton.next_power_of_2(n)
    store_tokens[(1,)](found, logits, rows, n, columns, length - 1, block, num_warps=WARPS, **early(n))

"""The end of a decode step in one kernel. The same in operations of PyTorch takes twelve."""

import torch
import triton
import triton.language as tl

from tilewright.ops.core.gpu.early import early, wait_for_inputs

WARPS = 8


@triton.jit(do_not_specialize=["n", "rows", "last"])
def store_tokens(found, logits, ids, positions, tokens, line, n, rows, last, BLOCK: tl.constexpr):
    """One program, for up to BLOCK rows. Parameters as for `advance`; tokens: pointer to (lines, rows). last: the
    largest position."""
    wait_for_inputs()
    row = tl.arange(0, BLOCK)
    inside, at = row < n, tl.load(line)
    token = tl.load(found + row, mask=inside, other=0)
    if logits is not None:
        size = tl.abs(tl.load(logits + row, mask=inside, other=0.0))
        token = tl.where(size < float("inf"), token, -1)
    position = tl.load(positions + row, mask=inside, other=0)
    tl.store(ids + row, token, mask=inside)
    tl.store(positions + row, tl.minimum(position + 1, last), mask=inside)
    tl.store(tokens + at * rows + row, token, mask=inside)
    tl.store(line, at + 1)


def advance(
    found: torch.Tensor,
    logits: torch.Tensor | None,
    ids: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    line: torch.Tensor,
    length: int,
) -> None:
    """Store the next tokens, found int64 (n,), in ids (n,) and in line `line` of tokens int64 (lines, at least n). Add
    1 to positions int32 (n,), up to length - 1, and to line int64 (1,), which must be a line of tokens.

    logits: of the tokens, float32 (n,); one that is not finite makes its token -1. None: the tokens are stored as they
    are. Finished rows run on until the host knows, which is why positions have a limit.
    """
    n, rows = len(ids), tokens.shape[1]
    operands = found, logits, ids, positions, tokens, line, n, rows, length - 1
    store_tokens[(1,)](*operands, triton.next_power_of_2(n), num_warps=WARPS, **early(n))

"""sample with a small top_k from logits whose product also stored the largest logit of each PEAK tokens.

A key that k of these peaks reach is at or below the k-th best logit. So the k best tokens lie in the groups of PEAK
tokens whose peak reaches it. Only these groups are read: about 60 of 1,571 for a top_k of 50 and 50,257 tokens. The
search goes on as `narrow` does with a short row, among the tokens of these groups that reach the key.

The limit is latency: each halving waits for a sum over the block. Some rows are left to `narrow`: without top_k or with
one above MOST_WANTED, greedy ones, and those with more than FEW tokens at or above the key, because many are equal or
because the best ones lie in few groups.
"""

import torch
import triton
import triton.language as tl

from tilewright.ops.gemm import operands
from tilewright.ops.sample.tile.narrow import drawn_among, token_at
from tilewright.ops.sample.tile.passes import Row, weights_of
from tilewright.ops.sample.tile.records import NO_KEY, WAITS, Sizes, Tokens, key_of, limits_of, scale_of

PEAK = tl.constexpr(operands.PEAK)
FEW = tl.constexpr(512)  # tokens that are searched in registers; groups that are read, at most
GROUPS = tl.constexpr(64)  # that are read at a time
MOST_WANTED = tl.constexpr(256)  # top_k: more tokens than these may reach a key that few groups reach
MOST = 8192  # peaks of a row, in registers
OPTIONS = {"num_warps": 4}


@triton.jit
def high_key(keys, low, end, top_k):
    """(a key that at least top_k of `keys` reach, and not many more; how many do). There is no such key if fewer or
    more reach it. keys: int32 (SIZE,). low, end: int64, the range of the keys. top_k: int64."""
    most = tl.maximum(top_k + top_k // 4, GROUPS)
    count = tl.sum((keys >= low.to(tl.int32)).to(tl.int32), 0)
    while (count > most) & (end - low > 1):
        cut = low + (end - low) // 2
        higher = tl.sum((keys >= cut.to(tl.int32)).to(tl.int32), 0)
        enough = higher >= top_k
        low, end = tl.where(enough, cut, low), tl.where(enough, end, cut)
        count = tl.where(enough, higher, count)
    return low, count


@triton.jit
def high_tokens(row, keys, low, count):
    """(the `Tokens` at or above the key `low`, at most FEW; how many there are). keys: int32 (SIZE,), of the peaks.
    count: how many of them reach `low`. row.workspace: pointer to int32 (2 * FEW,)."""
    least, number = low.to(tl.int32), tl.full((), 0, tl.int32)
    high = keys >= least
    firsts, found = row.workspace, row.workspace + FEW
    tl.store(firsts + tl.cumsum(high.to(tl.int32), 0) - 1, tl.arange(0, keys.shape[0]) * PEAK, mask=high)
    tl.debug_barrier()  # other threads load them
    slots = tl.arange(0, GROUPS * PEAK)
    for group in range(0, count, GROUPS):
        at = group + slots // PEAK
        ids = tl.load(firsts + at, mask=at < count, other=row.V) + slots % PEAK
        x = tl.load(row.start + ids, mask=ids < row.V, other=-float("inf"))
        taken = ((key_of(x) >= least) & (ids < row.V)).to(tl.int32)
        at = number + tl.cumsum(taken, 0) - 1
        tl.store(found + at, ids, mask=(taken > 0) & (at < FEW))
        number += tl.sum(taken, 0)
    tl.debug_barrier()
    valid = tl.arange(0, FEW) < number
    ids = tl.load(found + tl.arange(0, FEW), mask=valid, other=0)
    x = tl.load(row.start + ids, mask=valid, other=-float("inf"))
    return Tokens(ids, key_of(x), weights_of(x, row), valid), number


@triton.jit
def draw_from_peaks(logits, peaks, floats, integers, tokens, workspace, sizes, SIZE: tl.constexpr):
    """One program per row; see `search` for the arguments. peaks: pointer to float32 (n, sizes.groups), the largest
    logit of each PEAK tokens, NaN if one is not finite; what follows them is not read. The token of a row that
    `narrow` has to draw becomes `WAITS`. workspace: pointer to int32 (n, 2 * FEW). SIZE: a power of two, at least
    sizes.groups."""
    i = tl.program_id(0).to(tl.int64)
    limits, token = limits_of(floats, integers, i), tl.full((), WAITS, tl.int32)
    if (limits.top_k > 0) & (limits.top_k <= MOST_WANTED) & (limits.temperature > 0.0):
        inside = tl.arange(0, SIZE) < tl.cdiv(sizes.V, PEAK)
        best = tl.load(peaks + i * sizes.groups + tl.arange(0, SIZE), mask=inside, other=-float("inf"))
        highest, bad = tl.max(best, 0), tl.max((best != best).to(tl.int32), 0)
        token = tl.full((), -1, tl.int32)
        if bad == 0:
            keys = key_of(best)
            lowest = tl.min(tl.where(inside, keys, NO_KEY), 0).to(tl.int64)
            none, start, own = tl.full((), 0, tl.float32), logits + i * sizes.stride, workspace + i * 2 * FEW
            row = Row(start, sizes.V, highest.to(tl.float64), scale_of(limits), lowest, none, none, none, own)
            low, count = high_key(keys, lowest, key_of(highest).to(tl.int64) + 1, limits.top_k)
            token = tl.full((), WAITS, tl.int32)
            if (count >= limits.top_k) & (count <= FEW):
                known, number = high_tokens(row, keys, low, count)
                if number <= FEW:
                    point, token = drawn_among(row, known, limits, low, FEW)
                    if token < 0:
                        token = token_at(row, None, point, False)
    tl.store(tokens + i, token.to(tl.int64))


def run(logits, peaks, floats, integers, tokens) -> None:
    """Draw a token for each row of tensors; see `draw_from_peaks` for the arguments."""
    n, V = logits.shape
    sizes = Sizes(V, logits.stride(0), peaks.shape[1])
    workspace = torch.empty((n, 2 * FEW.value), dtype=torch.int32, device=logits.device)
    size = max(triton.next_power_of_2(sizes.groups), 32 * OPTIONS["num_warps"])
    draw_from_peaks[(n,)](logits, peaks, floats, integers, tokens, workspace, sizes, size, **OPTIONS)

"""sample with a small top_k: as `narrow`, but without a second pass over a long row of scores.

A pass over the row keeps the best score of each of its columns: column i has the tokens i, i + COLUMNS, and so on. If k
columns have a best score at or above a key, then k tokens are at or above it. So the k best tokens are, too, and they
lie in these columns. Such a key is found by halving over the best scores, which are in registers. The tokens of the
columns are loaded once more, at most 1,664 of 50,257, and `narrow` goes on with them as with a short row. If the
product has stored peaks, the kernel in `peaks` draws instead, without a pass over the row.

Reading the row takes about half of the time on an H100, the search the rest. These rows are left to `narrow`: without
top_k or with a larger one, greedy ones, and those in which the columns do not fit, because too many have the same best
score, or because fewer than top_k have a finite one.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tilewright.ops.sample.tile import narrow
from tilewright.ops.sample.tile import peaks as given_peaks
from tilewright.ops.sample.tile.narrow import drawn_among, token_at
from tilewright.ops.sample.tile.passes import Row, weights_of
from tilewright.ops.sample.tile.records import NO_KEY, WAITS, Sizes, Tokens, key_of, limits_of, load_scores, scale_of

COLUMNS = tl.constexpr(4096)  # 16 for each of 256 threads
LEAST = 64  # columns that can be loaded at least, however long a row is; top_k is at most their number
MOST = 8192  # tokens of these columns, in registers
OPTIONS = {"num_warps": 8, "maxnreg": 80}  # three programs share a multiprocessor: some load while others search


class Layout(NamedTuple):
    """size: tokens in registers, at most. height: tokens of a column, rounded up to a power of two."""

    size: int
    height: int


class Best(NamedTuple):
    """tokens: `Tokens`; all from the key `low` on, int64, are valid. found: 1 if they are few enough, int32."""

    tokens: Any
    low: Any
    found: Any


@triton.jit
def best_scores(logits, start, V):
    """(1 if a logit is not finite, int32; the best score of each column, float32 (COLUMNS,)). logits: pointer to the
    row's logits, None if they are its scores. start: pointer to its scores."""
    bad, tops = tl.zeros((COLUMNS,), tl.int32), tl.full((COLUMNS,), -float("inf"), tl.float32)
    for first in range(0, V, COLUMNS):
        ids, x = load_scores(start, first, V, COLUMNS)
        logit = x
        if logits is not None:
            logit = tl.load(logits + ids, mask=ids < V, other=0.0)
        bad |= ((logit - logit != 0.0) & (ids < V)).to(tl.int32)
        tops = tl.maximum(tops, x)
    return tl.max(bad, 0), tops


@triton.jit
def best_tokens(row, tops, top_k, layout: tl.constexpr):
    """The `Best` of a row: at least top_k tokens. tops: float32 (COLUMNS,), the best score of each column. top_k:
    int64, at most layout.size // layout.height."""
    SIZE: tl.constexpr = layout.size
    HEIGHT: tl.constexpr = layout.height
    keys = key_of(tops)
    low, end = row.lowest, key_of(row.most.to(tl.float32)).to(tl.int64) + 1
    count = tl.sum((keys >= low.to(tl.int32)).to(tl.int32), 0)
    while (count > SIZE // HEIGHT) & (end - low > 1):
        cut = low + (end - low) // 2
        higher = tl.sum((keys >= cut.to(tl.int32)).to(tl.int32), 0)
        enough = higher >= top_k
        low, end = tl.where(enough, cut, low), tl.where(enough, end, cut)
        count = tl.where(enough, higher, count)
    found = (count <= SIZE // HEIGHT) & (count >= top_k)
    count, least = tl.where(found, count, 0), tl.where(found, low, NO_KEY).to(tl.int32)
    taken = keys >= least
    at = tl.cumsum(taken.to(tl.int32), 0) - 1
    tl.store(row.workspace + at, tl.arange(0, COLUMNS), mask=taken)
    tl.debug_barrier()  # other threads load them
    slots = tl.arange(0, SIZE)
    ids = tl.load(row.workspace + slots // HEIGHT, mask=slots // HEIGHT < count, other=row.V)
    ids += slots % HEIGHT * COLUMNS
    x = tl.load(row.start + ids, mask=ids < row.V, other=-float("inf"))
    keys = key_of(x)
    valid = (ids < row.V) & (keys >= least)
    return Best(Tokens(ids, keys, weights_of(x, row), valid), low, found.to(tl.int32))


@triton.jit
def columns(logits, scores, floats, integers, tokens, workspace, sizes, layout: tl.constexpr):
    """One program per row; see `search` for the arguments, and `best_scores` for logits. The token of a row that
    `narrow` has to draw becomes `WAITS`. workspace: pointer to int32 (n, layout.size // layout.height)."""
    WIDTH: tl.constexpr = layout.size // layout.height
    i, V = tl.program_id(0).to(tl.int64), sizes.V
    limits, token = limits_of(floats, integers, i), tl.full((), WAITS, tl.int32)
    if (limits.top_k > 0) & (limits.top_k <= WIDTH) & (limits.temperature > 0.0):
        start = scores + i * sizes.stride
        bad, tops = best_scores(None if logits is None else logits + i * sizes.stride, start, V)
        highest = tl.max(tops, 0)
        token = tl.full((), -1, tl.int32)
        if (bad == 0) & (highest - highest == 0.0):
            lowest = tl.min(tl.where(tops > -float("inf"), key_of(tops), NO_KEY), 0).to(tl.int64)
            none = tl.full((), 0, tl.float32)
            own = workspace + i * WIDTH
            row = Row(start, V, highest.to(tl.float64), scale_of(limits), lowest, none, none, none, own)
            best = best_tokens(row, tops, limits.top_k, layout)
            token = tl.full((), WAITS, tl.int32)
            if best.found > 0:
                point, token = drawn_among(row, best.tokens, limits, best.low, layout.size)
                if token < 0:
                    token = token_at(row, None, point, False)
    tl.store(tokens + i, token.to(tl.int64))


def run(logits, scores, floats, integers, tokens, peaks=None) -> None:
    """Draw a token for each row of tensors; see `search.search` for the arguments. peaks: float32 (n, groups), the
    largest score of each PEAK tokens, see `gemm.tile.records.Extras`; None if they are not known."""
    n, V = logits.shape
    height = triton.next_power_of_2(-(-V // COLUMNS.value))
    layout = Layout(max(narrow.CAPACITY, LEAST * height), height)
    if V <= narrow.SHORT_ROW or layout.size > MOST:
        return narrow.run(logits, scores, floats, integers, tokens)
    if peaks is not None and peaks.shape[1] <= given_peaks.MOST:
        given_peaks.run(scores, peaks, floats, integers, tokens)
    else:
        workspace = torch.empty((n, layout.size // layout.height), dtype=torch.int32, device=logits.device)
        given, sizes = None if scores is logits else logits, Sizes(V, logits.stride(0))
        columns[(n,)](given, scores, floats, integers, tokens, workspace, sizes, layout, **OPTIONS)
    return narrow.run_waiting(logits, scores, floats, integers, tokens)

"""Vectors of texts on a GPU, from the hidden states that the last layernorm wrote, and vectors scaled to length 1.

    weightedmean = sum of (t + 1) * row t / sum of (t + 1);   mean_sqrt_len_tokens = sum of rows / sqrt(rows)
    scaled = v / |v|

The plain mean is `ops.pool`.

Each hidden state is read once, so memory bandwidth limits it. Sums are in float64. A text's rows are added in blocks
from its first row on, so that the order of its sums depends on its length alone.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

ROWS, COLUMNS = 32, 128  # of a block: 32 elements for each thread of 4 warps; many texts are one block long
WHOLE = 512  # elements of a vector at a time
KINDS = {"mean_sqrt_len_tokens": 1, "weightedmean": 2, "max": 3, "cls": 4, "lasttoken": 5}


class PoolSizes(NamedTuple):
    """C: elements of a hidden state. stride: elements from one row of out to the next. skip: rows at the start of each
    text that are not pooled."""

    C: int
    stride: int
    skip: int


@triton.jit
def pool_text(x, bounds, out, sizes, KIND: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr):
    """One program per text and BC columns. x: pointer to (R, C) of any float dtype, bounds: to int64 (n + 1,), out: to
    float32 rows. sizes: `PoolSizes`. KIND: see KINDS."""
    text, columns, C = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC), sizes.C
    begin = tl.load(bounds + text)
    T = (tl.load(bounds + text + 1) - begin).to(tl.int32)
    first, end, inside = tl.minimum(sizes.skip, T - 1), T, columns < C
    if KIND == 4:
        end = first + 1
    if KIND == 5:
        first = T - 1
    total = tl.zeros((BC,), tl.float64)
    wrong = tl.zeros((BC,), tl.int32)  # NaNs, which a maximum drops
    if KIND == 3:
        total = tl.full((BC,), float("-inf"), tl.float64)
    for at in range(first, end, BT):
        rows = at + tl.arange(0, BT)
        mask = (rows < end)[:, None] & inside[None, :]
        elements = x + (begin + rows)[:, None] * C + columns[None, :]
        if KIND == 3:
            values = tl.load(elements, mask=mask, other=float("-inf")).to(tl.float64)
            total = tl.maximum(total, tl.max(values, 0))
            wrong += tl.sum((values != values).to(tl.int32), 0)
        else:
            values = tl.load(elements, mask=mask, other=0.0).to(tl.float64)
            if KIND == 2:
                values *= (rows + 1).to(tl.float64)[:, None]
            total += tl.sum(values, 0)
    if KIND == 3:
        total = tl.where(wrong > 0, float("nan"), total)
    count = (end - first).to(tl.float64)
    if KIND == 1:
        total = total / tl.sqrt(count)
    if KIND == 2:
        total = total / (count * (first + 1 + end).to(tl.float64) * 0.5)
    tl.store(out + text.to(tl.int64) * sizes.stride + columns, total.to(tl.float32), mask=inside)


@triton.jit
def scale_row(x, out, D, least, BD: tl.constexpr):
    """One program per row of x, a pointer to (n, D) of any float dtype: out = x / max(|x|, least), float32."""
    row, columns = tl.program_id(0).to(tl.int64) * D, tl.arange(0, BD)
    squares = tl.zeros((BD,), tl.float64)
    for start in range(0, D, BD):
        values = tl.load(x + row + start + columns, mask=start + columns < D, other=0.0).to(tl.float64)
        squares += values * values
    length = tl.maximum(tl.sqrt(tl.sum(squares, 0)), least)
    for start in range(0, D, BD):
        inside = start + columns < D
        values = tl.load(x + row + start + columns, mask=inside, other=0.0).to(tl.float64)
        tl.store(out + row + start + columns, (values / length).to(tl.float32), mask=inside)


def pool_into(x: torch.Tensor, bounds: torch.Tensor, pooling: str, skip: int, out: torch.Tensor) -> None:
    """Write one of `backends.pooling.pooled`'s vectors. pooling: of KINDS. x: contiguous. out: float32 (n, C)."""
    n, C = out.shape
    grid = n, triton.cdiv(C, COLUMNS)
    pool_text[grid](x, bounds, out, PoolSizes(C, out.stride(0), skip), KINDS[pooling], ROWS, COLUMNS)


def scale(x: torch.Tensor, least: float) -> torch.Tensor:
    """See `backends.pooling.unit`."""
    x = x.contiguous()
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    scale_row[(len(x),)](x, out, x.shape[1], least, WHOLE)
    return out

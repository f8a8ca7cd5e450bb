"""Whole rows in registers: read once, written once."""

from functools import cache

import triton
import triton.language as tl

from tilewright.ops.core.gpu.blocks import RowBlock

SHARE = 1024  # elements of a program, if several short rows fit
WARPS = 1  # more exchange both sums and stores of 16 bytes through shared memory: 0.122 ms, not 0.102, at C = 1,600


@triton.jit(do_not_specialize=["M"])
def registers(x, weight, bias, out, M, eps, block: tl.constexpr):
    """out (M, C) = layernorm of x's rows, block.BM rows per program; block.BC is at least C.

    Mean, deviations and the mean of their squares come from registers, so it moves as many bytes as a copy. Loses where
    a row is a little longer than a power of two. The registers of a warp limit C.
    """
    C: tl.constexpr = block.C
    BM: tl.constexpr = block.BM
    BC: tl.constexpr = block.BC
    share: tl.constexpr = 1 / C
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BC)
    inside = (columns < C)[None, :]
    at = tl.minimum(rows, M - 1).to(tl.int64)[:, None] * C + columns[None, :]
    number = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, mask=columns < C, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=columns < C, other=0.0).to(tl.float32)
    mean = tl.sum(number, 1) * share
    apart = tl.where(inside, number - mean[:, None], 0.0)
    variance = tl.sum(apart * apart, 1) * share
    result = apart * tl.rsqrt(variance + eps)[:, None] * scale[None, :] + shift[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside & (rows < M)[:, None])


@cache
def shape_for(C: int) -> tuple[int, int, int]:
    """(ROWS, COLUMNS, warps) by the width alone: the order of a sum follows from them."""
    columns = triton.next_power_of_2(C)
    return max(SHARE // columns, 1), columns, WARPS


def run(x, weight, bias, eps: float, out, shape: tuple[int, int, int] | None = None) -> None:
    """The rung's run function; shape: other than the rung's own, for measurements."""
    M, C = x.shape
    rows, columns, warps = shape or shape_for(C)
    registers[(-(-M // rows),)](x, weight, bias, out, M, eps, RowBlock(C, rows, columns), num_warps=warps)

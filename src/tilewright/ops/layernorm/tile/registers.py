"""Whole rows in registers: read once, written once."""

from functools import cache

import triton
import triton.language as tl

SHARE = 1024  # numbers of several rows that a program holds, where they are short
WARPS = 1  # more would meet in shared memory, for both sums and for stores of 16 bytes: 0.122 ms for 0.102 at C = 1,600


@triton.jit(do_not_specialize=["M"])
def registers(x, weight, bias, out, M, eps, SHAPE: tl.constexpr):
    """out (M, C) = layernorm of x's rows; SHAPE: C, rows of x a program, and their columns, a power of two.

    Mean, deviations and their squares' mean are taken from registers, so the bytes are those of a copy. Loses where a
    row is a little longer than a power of two, and ends where the registers of a warp do.
    """
    C: tl.constexpr = SHAPE[0]
    ROWS: tl.constexpr = SHAPE[1]
    COLUMNS: tl.constexpr = SHAPE[2]
    share: tl.constexpr = 1 / C
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
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
    registers[(-(-M // rows),)](x, weight, bias, out, M, eps, (C, rows, columns), num_warps=warps)

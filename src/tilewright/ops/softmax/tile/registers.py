"""Whole rows in registers: read once, written once."""

from functools import cache

import triton
import triton.language as tl

from tilewright.ops.elementwise.tile.functions import exp_to

SHARE = 512  # numbers that a warp holds, 16 a thread: of one row, or of several short ones


@triton.jit(do_not_specialize=["M"])
def registers(x, out, M, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out (M, C) = softmax of x's rows; ROWS of them a program, COLUMNS >= C a power of two.

    The largest number, exp and its sum are taken from registers: eight bytes of memory a number, and no more. Loses
    where a row is a little longer than a power of two, and ends where registers do.
    """
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = (columns < C)[None, :]
    read = tl.minimum(rows, M - 1).to(tl.int64)[:, None] * C + columns[None, :]
    number = tl.load(x + read, mask=inside, other=-float("inf")).to(tl.float32)
    power = exp_to(out, number - tl.max(number, 1)[:, None])
    share = power * tl.div_rn(1.0, tl.sum(power, 1))[:, None]
    tl.store(out + read, share.to(out.dtype.element_ty), mask=inside & (rows < M)[:, None])


@cache
def shape_for(C: int) -> tuple[int, int, int]:
    """(ROWS, COLUMNS, warps) by the width alone: the order of a sum follows from them."""
    columns = triton.next_power_of_2(C)
    rows = max(SHARE // columns, 1)
    return rows, columns, min(max(columns // SHARE, 1), 16)


def run(x, out, shape: tuple[int, int, int] | None = None) -> None:
    """The rung's run function; shape: other than the rung's own, for measurements."""
    M, C = x.shape
    rows, columns, warps = shape or shape_for(C)
    registers[(-(-M // rows),)](x, out, M, C, rows, columns, num_warps=warps)

"""softmax with whole rows in registers: out[i, c] = exp(x[i, c] - max of row i) / sum of those exps.

Each element is read once and written once, so it is limited by memory as a copy is. Changes from `online`: no second
read. It is slow where C is a little larger than a power of two, and takes no row that registers cannot hold.
"""

from functools import cache

import triton
import triton.language as tl

from tilewright.ops.core.gpu.blocks import RowBlock
from tilewright.ops.elementwise.tile.functions import exp_to

WARP_ELEMENTS = 512  # elements per warp, of one row or several short ones: 16 per thread


@triton.jit(do_not_specialize=["M"])
def registers(x, out, M, block: tl.constexpr):
    """x, out: pointers to (M, C) of any float dtype, contiguous. block: a `RowBlock` whose BC is at least C."""
    C: tl.constexpr = block.C
    BM: tl.constexpr = block.BM
    BC: tl.constexpr = block.BC
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BC)
    inside = (columns < C)[None, :]
    offsets = tl.minimum(rows, M - 1).to(tl.int64)[:, None] * C + columns[None, :]
    values = tl.load(x + offsets, mask=inside, other=-float("inf")).to(tl.float32)
    powers = exp_to(out, values - tl.max(values, 1)[:, None])
    result = powers * tl.div_rn(1.0, tl.sum(powers, 1))[:, None]
    tl.store(out + offsets, result.to(out.dtype.element_ty), mask=inside & (rows < M)[:, None])


@cache
def block_for(C: int) -> tuple[RowBlock, int]:
    """(block, warps) by the width alone, because the order of a sum follows from them."""
    BC = triton.next_power_of_2(C)
    return RowBlock(C, max(WARP_ELEMENTS // BC, 1), BC), min(max(BC // WARP_ELEMENTS, 1), 16)


def run(x, out) -> None:
    """Launch `registers` on x and out (M, C)."""
    M, C = x.shape
    block, warps = block_for(C)
    registers[(-(-M // block.BM),)](x, out, M, block, num_warps=warps)

"""layernorm with whole rows in registers: out[i, c] = (x[i, c] - mean) / sqrt(variance + eps) * weight[c] + bias[c].

Each element is read once and written once, so it is limited by memory as a copy is. Changes from `chunks`: mean,
deviations and variance come from registers, so there is no second and third read. With few rows a program on a Hopper
GPU starts early, and has weight and bias fetched into the L2 cache while it waits for its rows. It is slow where C is a
little larger than a power of two, and takes no row that the registers of a warp cannot hold.
"""

from functools import cache

import triton
import triton.language as tl

from tilewright.ops.core.gpu.blocks import RowBlock
from tilewright.ops.core.gpu.early import ROWS, early, prefetch, wait_for_inputs
from tilewright.ops.gemm.tile.start import forms, start

PROGRAM_ELEMENTS = 1024  # if several short rows fit
LINE = tl.constexpr(32)  # elements of float32 in a cache line
REGISTERS = 128  # most per thread: with the compiler's choice, 69 at C = 768, weights are loaded after the mean
WARPS = 1  # more exchange both sums and stores of 16 bytes through shared memory: 0.122 ms, not 0.102, at C = 1,600


@triton.jit(do_not_specialize=["M"])
def registers(x, weight, bias, out, M, eps, block: tl.constexpr, EARLY: tl.constexpr):
    """x, out: pointers to (M, C), weight, bias: to (C,), contiguous, each of any float dtype. block: a `RowBlock` whose
    BC is at least C. EARLY: fetch weight and bias before the rows; it changes no bit."""
    C: tl.constexpr = block.C
    BM: tl.constexpr = block.BM
    BC: tl.constexpr = block.BC
    LINES: tl.constexpr = max(BC // LINE, 1)
    if EARLY:
        lines = tl.minimum(tl.arange(0, LINES) * LINE, C - 1)
        prefetch(weight + lines)
        prefetch(bias + lines)
    wait_for_inputs()
    inverse_C: tl.constexpr = 1 / C
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BC)
    inside = (columns < C)[None, :]
    offsets = tl.minimum(rows, M - 1).to(tl.int64)[:, None] * C + columns[None, :]
    values = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, mask=columns < C, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=columns < C, other=0.0).to(tl.float32)
    mean = tl.sum(values, 1) * inverse_C
    deviation = tl.where(inside, values - mean[:, None], 0.0)
    variance = tl.sum(deviation * deviation, 1) * inverse_C
    result = deviation * tl.rsqrt(variance + eps)[:, None] * scale[None, :] + shift[None, :]
    tl.store(out + offsets, result.to(out.dtype.element_ty), mask=inside & (rows < M)[:, None])


@cache
def block_for(C: int) -> RowBlock:
    """By the width alone, because the order of a sum follows from it."""
    BC = triton.next_power_of_2(C)
    return RowBlock(C, max(PROGRAM_ELEMENTS // BC, 1), BC)


def run(x, weight, bias, eps: float, out) -> None:
    """Launch `registers` on x and out (M, C)."""
    M, C = x.shape
    block = block_for(C)
    EARLY = M <= ROWS  # 102,400 rows of 768 take 0.49 ms, not 0.15, if every program prefetches
    key = ("layernorm", x.device, C, EARLY, *forms((x, weight, bias, out), (M,)))
    arguments = x, weight, bias, out, M, float(eps), block, EARLY  # an integer eps would be compiled into the kernel
    start(registers, key, (-(-M // block.BM), 1), arguments, num_warps=WARPS, maxnreg=REGISTERS, **early(M))

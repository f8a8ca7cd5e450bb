"""softmax of rows of any length, in chunks: out[i, c] = exp(x[i, c] - max of row i) / sum of those exps.

Two passes over a row: the maximum and the sum together, the sum rescaled whenever the maximum grows; then the result.
Memory bandwidth is the limit; the second pass reads from the L2 cache, because few programs run and each takes one row
after the other. It is slower than `registers` wherever a row fits in registers: it reads twice and computes exp twice.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

import triton
import triton.language as tl

from tilewright.ops.core.gpu.tensors import multiprocessors
from tilewright.ops.elementwise.tile.functions import exp_to

CHUNK = 16384  # most elements of a row that a program holds at once
WARP_ELEMENTS = 512  # elements of a chunk per warp: 16 per thread
CACHED = 1 << 16  # elements in flight per multiprocessor: 132 of an H200's take 35 MB of an L2 cache of 50


@triton.jit(do_not_specialize=["M"])
def online(x, out, M, C: tl.constexpr, CHUNK: tl.constexpr):
    """x, out: pointers to (M, C) of any float dtype, contiguous. CHUNK: elements of a row at a time, a power of two."""
    for i in range(tl.program_id(0), M, tl.num_programs(0)):
        row = tl.full((), C, tl.int64) * i
        normalise(x + row, out + row, C, CHUNK)


@triton.jit
def normalise(x, out, C: tl.constexpr, CHUNK: tl.constexpr):
    """softmax of one row of C elements."""
    columns = tl.arange(0, CHUNK)
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, C, CHUNK):
        offsets = start + columns
        values = tl.load(x + offsets, mask=offsets < C, other=-float("inf")).to(tl.float32)
        grown = tl.maximum(largest, tl.max(values, 0))
        base = tl.where(grown == -float("inf"), 0.0, grown)  # only masked elements so far
        total = total * exp_to(out, largest - base) + tl.sum(exp_to(out, values - base), 0)
        largest = grown
    inverse = tl.div_rn(1.0, total)
    for start in range(0, C, CHUNK):
        offsets = start + columns
        values = tl.load(x + offsets, mask=offsets < C, other=-float("inf")).to(tl.float32)
        tl.store(out + offsets, (exp_to(out, values - largest) * inverse).to(out.dtype.element_ty), mask=offsets < C)


def run(x, out) -> None:
    """Launch `online` on x and out (M, C)."""
    M, C = x.shape
    chunk = min(triton.next_power_of_2(C), CHUNK)  # by the width alone, because the order of a sum follows from it
    programs = min(M, multiprocessors() * max(CACHED // C, 1))
    online[(programs,)](x, out, M, C, chunk, num_warps=max(chunk // WARP_ELEMENTS, 1))

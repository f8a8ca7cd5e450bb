"""softmax of rows of any length, in chunks: out[i, c] = exp(x[i, c] - max of row i) / sum of those exps.

Two passes over a row. The first finds the maximum and the sum together: the sum is rescaled whenever the maximum grows.
The second goes backwards, so it begins with the chunk that is still in registers, and writes the result. The next chunk
is loaded while one is computed. The second pass reads from the L2 cache, if the rows of all programs fit there: few
programs run. Memory bandwidth is the limit, then the rate of exp. It is slower than `registers` wherever a row fits in
registers: it reads twice and computes exp twice.

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
def load_chunk(x, start, C: tl.constexpr, CHUNK: tl.constexpr):
    """float32 (CHUNK,): elements of a row from `start` on, -inf from C on."""
    columns = start + tl.arange(0, CHUNK)
    return tl.load(x + columns, mask=columns < C, other=-float("inf")).to(tl.float32)


@triton.jit
def power(out, x, C: tl.constexpr, CHUNK: tl.constexpr):
    """e**x, x <= 0. In rows of several chunks it is the GPU's own exp, two instructions, with a relative error of
    |x| / 2 times float32's epsilon. The twenty of `exp_to` would take nearly as long as the memory."""
    if C > CHUNK:
        return tl.exp(x)
    else:
        return exp_to(out, x)


@triton.jit
def store_chunk(out, start, values, largest, inverse, C: tl.constexpr, CHUNK: tl.constexpr):
    """The result of a chunk. inverse: of the row's sum."""
    columns = start + tl.arange(0, CHUNK)
    result = power(out, values - largest, C, CHUNK) * inverse
    tl.store(out + columns, result.to(out.dtype.element_ty), mask=columns < C)


@triton.jit
def absorb(out, largest, total, values, C: tl.constexpr, CHUNK: tl.constexpr):
    """The maximum of a row and its sum of exps, with one more chunk."""
    grown = tl.maximum(largest, tl.max(values, 0))
    base = tl.where(grown == -float("inf"), 0.0, grown)  # only masked elements so far
    total *= power(out, largest - base, C, CHUNK)
    return grown, total + tl.sum(power(out, values - base, C, CHUNK), 0)


@triton.jit
def normalise(x, out, C: tl.constexpr, CHUNK: tl.constexpr):
    """softmax of one row of C elements."""
    LAST: tl.constexpr = (C - 1) // CHUNK * CHUNK  # the start of the last chunk
    largest, total = tl.full((), -float("inf"), tl.float32), tl.full((), 0.0, tl.float32)
    values = load_chunk(x, 0, C, CHUNK)
    for start in range(0, LAST, CHUNK):
        following = load_chunk(x, start + CHUNK, C, CHUNK)
        largest, total = absorb(out, largest, total, values, C, CHUNK)
        values = following
    largest, total = absorb(out, largest, total, values, C, CHUNK)
    inverse = tl.div_rn(1.0, total)
    for done in range(0, LAST, CHUNK):
        preceding = load_chunk(x, LAST - done - CHUNK, C, CHUNK)
        store_chunk(out, LAST - done, values, largest, inverse, C, CHUNK)
        values = preceding
    store_chunk(out, 0, values, largest, inverse, C, CHUNK)


def run(x, out) -> None:
    """Launch `online` on x and out (M, C)."""
    M, C = x.shape
    chunk = min(triton.next_power_of_2(C), CHUNK)  # by the width alone, because the order of a sum follows from it
    programs = min(M, multiprocessors() * max(CACHED // C, 1))
    online[(programs,)](x, out, M, C, chunk, num_warps=max(chunk // WARP_ELEMENTS, 1))

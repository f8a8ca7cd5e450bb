"""Rows of any length, a chunk of one at a time: read twice, the second time from the L2 cache where it holds them."""

import triton
import triton.language as tl

from tilewright.ops.core.gpu.tensors import multiprocessors
from tilewright.ops.elementwise.tile.functions import exp_to

CHUNK = 16384  # numbers of a row that a program has at once, at most
SHARE = 512  # of them that a warp has, 16 a thread
CACHED = 1 << 16  # numbers of rows under way in a multiprocessor: 132 of an H200's take 35 MB of an L2 cache of 50


@triton.jit(do_not_specialize=["M"])
def online(x, out, M, C: tl.constexpr, CHUNK: tl.constexpr):
    """out (M, C) = softmax of x's rows; a program takes one after the other, so that few are under way, and the second
    reading finds them in the L2 cache.

    Loses to rows in registers wherever those fit: it reads twice, and takes exp twice.
    """
    for i in range(tl.program_id(0), M, tl.num_programs(0)):
        row = tl.full((), C, tl.int64) * i
        normalise(x + row, out + row, C, CHUNK)


@triton.jit
def normalise(x, out, C: tl.constexpr, CHUNK: tl.constexpr):
    """One row: first the largest number and the sum together, the sum rescaled where the largest grows; then the
    shares. Source: Milakov and Gimelshein, 2018."""
    columns = tl.arange(0, CHUNK)
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, C, CHUNK):
        here = start + columns
        number = tl.load(x + here, mask=here < C, other=-float("inf")).to(tl.float32)
        grown = tl.maximum(largest, tl.max(number, 0))
        base = tl.where(grown == -float("inf"), 0.0, grown)  # nothing but masked numbers yet
        total = total * exp_to(out, largest - base) + tl.sum(exp_to(out, number - base), 0)
        largest = grown
    inverse = tl.div_rn(1.0, total)
    for start in range(0, C, CHUNK):
        here = start + columns
        number = tl.load(x + here, mask=here < C, other=-float("inf")).to(tl.float32)
        tl.store(out + here, (exp_to(out, number - largest) * inverse).to(out.dtype.element_ty), mask=here < C)


def run(x, out, most: int = CHUNK, share: int = SHARE, cached: int = CACHED) -> None:
    """The rung's run function; most, share, cached: other than CHUNK, SHARE and CACHED, for measurements."""
    M, C = x.shape
    chunk = min(triton.next_power_of_2(C), most)  # by the width alone: the order of a sum follows from it
    programs = min(M, multiprocessors() * max(cached // C, 1))
    online[(programs,)](x, out, M, C, chunk, num_warps=max(chunk // share, 1))

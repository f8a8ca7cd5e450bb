"""Rows of any length, a chunk of one at a time: read twice, the second time from the L2 cache where it holds them."""

from functools import cache

import triton
import triton.language as tl

from tilewright.ops._device import multiprocessors
from tilewright.ops.elementwise.tile.functions import exp_to

CHUNK = 16384  # numbers of a row that a program has at once, at most
SHARE = 512  # of them that a warp has, 16 a thread
CACHED = 1 << 16  # numbers of rows under way in a multiprocessor: 132 of an H200's take 35 MB of an L2 cache of 50


@triton.jit(do_not_specialize=["M"])
def online(x, out, M, SHAPE: tl.constexpr):
    """out (M, C) = softmax of x's rows; SHAPE: C, numbers of a chunk, of the last one (a power of two, or 0).

    A program takes one row after the other, so that few are under way, and the second reading finds them in the L2
    cache. Loses to rows in registers wherever those fit: it reads twice, and takes exp twice.
    """
    C: tl.constexpr = SHAPE[0]
    for i in range(tl.program_id(0), M, tl.num_programs(0)):
        row = tl.full((), C, tl.int64) * i
        normalise(x + row, out + row, SHAPE)


@triton.jit
def normalise(x, out, SHAPE: tl.constexpr):
    """One row: first the largest number and the sum together, the sum rescaled where the largest grows; then the
    shares. Source: Milakov and Gimelshein, 2018."""
    C: tl.constexpr = SHAPE[0]
    CHUNK: tl.constexpr = SHAPE[1]
    LAST: tl.constexpr = SHAPE[2]
    WHOLE: tl.constexpr = C // CHUNK * CHUNK
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, WHOLE, CHUNK):
        largest, total = summed(x + start, out, largest, total, CHUNK, CHUNK)
    if LAST:
        largest, total = summed(x + WHOLE, out, largest, total, C - WHOLE, LAST)
    inverse = tl.div_rn(1.0, total)
    for start in range(0, WHOLE, CHUNK):
        here = start + tl.arange(0, CHUNK)
        share = exp_to(out, tl.load(x + here).to(tl.float32) - largest) * inverse
        tl.store(out + here, share.to(out.dtype.element_ty))
    if LAST:
        here = WHOLE + tl.arange(0, LAST)
        share = exp_to(out, tl.load(x + here, mask=here < C, other=0.0).to(tl.float32) - largest) * inverse
        tl.store(out + here, share.to(out.dtype.element_ty), mask=here < C)


@triton.jit
def summed(x, out, largest, total, COUNT: tl.constexpr, SIZE: tl.constexpr):
    """(largest, total) after COUNT numbers more, which begin at x; SIZE >= COUNT is a power of two."""
    columns = tl.arange(0, SIZE)
    if COUNT == SIZE:
        number = tl.load(x + columns).to(tl.float32)
    else:
        number = tl.load(x + columns, mask=columns < COUNT, other=-float("inf")).to(tl.float32)
    grown = tl.maximum(largest, tl.max(number, 0))
    base = tl.where(grown == -float("inf"), 0.0, grown)  # nothing but masked numbers yet
    return grown, total * exp_to(out, largest - base) + tl.sum(exp_to(out, number - base), 0)


@cache
def shape_for(C: int, most: int = CHUNK) -> tuple[int, int, int]:
    """SHAPE by the width alone: the order of a sum follows from it."""
    chunk = min(triton.next_power_of_2(C), most)
    return C, chunk, triton.next_power_of_2(C % chunk) if C % chunk else 0


def run(x, out, most: int = CHUNK, share: int = SHARE, cached: int = CACHED) -> None:
    """The rung's run function; most, share, cached: other than CHUNK, SHARE and CACHED, for measurements."""
    M, C = x.shape
    shape = shape_for(C, most)
    programs = min(M, multiprocessors() * max(cached // C, 1))
    online[(programs,)](x, out, M, shape, num_warps=max(shape[1] // share, 1))

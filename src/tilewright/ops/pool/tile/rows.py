"""pool in Triton: out[i, c] = the sum of x[t, c] over the rows of text i, divided by their number.

Each element is read once, so memory bandwidth is the limit. Changes from a thread per column: a program loads a block
of rows at once. Sums are in float64. A text's rows are added in blocks from its first row on, so the order of its sums
depends on its length alone. It is slow for texts of a few rows, because most of a block is masked.
"""

from typing import NamedTuple

import triton
import triton.language as tl

ROWS, COLUMNS = 32, 128  # of a block: 32 elements for each thread of 4 warps; many texts are one block long


class Sizes(NamedTuple):
    """R, C: extents of x. stride, out_stride: elements from one row to the next."""

    R: int
    C: int
    stride: int
    out_stride: int


@triton.jit
def mean(x, begin, end, out, sizes, BT: tl.constexpr, BC: tl.constexpr):
    """One program per text and BC columns. x, out: pointers to (R, C) and (n, C) of any float dtypes. begin, end: to
    integers (n,); a range that is not inside x gives NaN. sizes: `Sizes`."""
    text, columns = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    start, stop = tl.load(begin + text).to(tl.int64), tl.load(end + text).to(tl.int64)
    known = (start >= 0) & (start < stop) & (stop <= sizes.R)
    T = tl.where(known, stop - start, 0).to(tl.int32)
    inside = columns < sizes.C
    total = tl.zeros((BC,), tl.float64)
    for at in range(0, T, BT):
        rows = at + tl.arange(0, BT)
        elements = x + (start + rows)[:, None] * sizes.stride + columns[None, :]
        values = tl.load(elements, mask=(rows < T)[:, None] & inside[None, :], other=0.0)
        total += tl.sum(values.to(tl.float64), 0)
    found = tl.where(known, total / tl.maximum(T, 1).to(tl.float64), float("nan"))
    target = out + text.to(tl.int64) * sizes.out_stride + columns
    tl.store(target, found.to(tl.float32).to(out.dtype.element_ty), mask=inside)


def run(x, begin, end, out) -> None:
    """Launch `mean` on tensors with contiguous rows."""
    (n, C), sizes = out.shape, Sizes(*x.shape, x.stride(0), out.stride(0))
    mean[(n, triton.cdiv(C, COLUMNS))](x, begin, end, out, sizes, ROWS, COLUMNS)

"""rope in Triton: with a and b the halves of a head's rotated part, a cos - b sin, b cos + a sin.

Memory bandwidth is the limit: each element is read and written once, and the rows of the table come from a cache. A
program has a block of rows of one head. It is slow where few elements are rotated: a program's lanes are a power of
two.
"""

from functools import cache
from typing import Any, NamedTuple

import triton
import triton.language as tl

PROGRAM_ELEMENTS, WARPS = 1024, 2  # of half a head's rotated part: 16 elements per thread


class Form(NamedTuple):
    """Compile-time sizes. D: elements of a head. F: pairs that are rotated. BM: rows per program. BF, BR: powers of
    two, of pairs and of elements that are not rotated."""

    D: int
    F: int
    BM: int
    BF: int
    BR: int


class Rows(NamedTuple):
    """A pointer to (rows, heads * D) of any float dtype, and the elements from one row to the next."""

    data: Any
    stride: int


@triton.jit(do_not_specialize=["rows", "length"])
def rotate(x, positions, table, out, rows, length, form: tl.constexpr):
    """x, out: `Rows`; out may be x. positions: pointer to int32 or int64 (rows,). table: pointer to float32
    (length, 2 F), cosines and then sines. A row of a position outside the table becomes NaN."""
    D: tl.constexpr = form.D
    F: tl.constexpr = form.F
    own = tl.program_id(0) * form.BM + tl.arange(0, form.BM)
    at = tl.minimum(own, rows - 1).to(tl.int64)
    position = tl.load(positions + at).to(tl.int64)
    known = (position >= 0) & (position < length)
    c, inside = tl.arange(0, form.BF)[None, :], (own < rows)[:, None]
    turn = tl.where(known, position, 0)[:, None] * (2 * F) + c
    w = tl.where(known[:, None], tl.load(table + turn, mask=c < F, other=0.0), float("nan"))
    v = tl.where(known[:, None], tl.load(table + turn + F, mask=c < F, other=0.0), float("nan"))
    start = at[:, None] * x.stride + tl.program_id(1) * D
    to = at[:, None] * out.stride + tl.program_id(1) * D
    a = tl.load(x.data + start + c, mask=c < F, other=0.0).to(tl.float32)
    b = tl.load(x.data + start + F + c, mask=c < F, other=0.0).to(tl.float32)
    tl.store(out.data + to + c, (a * w - b * v).to(out.data.dtype.element_ty), mask=inside & (c < F))
    tl.store(out.data + to + F + c, (b * w + a * v).to(out.data.dtype.element_ty), mask=inside & (c < F))
    if 2 * F < D:
        r = 2 * F + tl.arange(0, form.BR)[None, :]
        rest = tl.load(x.data + start + r, mask=r < D, other=0.0).to(tl.float32)
        rest = tl.where(known[:, None], rest, float("nan"))
        tl.store(out.data + to + r, rest.to(out.data.dtype.element_ty), mask=inside & (r < D))


@cache
def form_for(D: int, F: int) -> Form:
    """By the sizes of a head alone."""
    BF, BR = triton.next_power_of_2(F), triton.next_power_of_2(max(D - 2 * F, 1))
    return Form(D, F, max(PROGRAM_ELEMENTS // max(BF, BR), 1), BF, BR)


def run(x, positions, rotation, heads: int, out) -> None:
    """Launch `rotate` on tensors."""
    rows, width = x.shape
    form = form_for(width // heads, rotation.pairs)
    grid = (-(-rows // form.BM), heads)
    operands = Rows(x, x.stride(0)), positions, rotation.table, Rows(out, out.stride(0))
    rotate[grid](*operands, rows, rotation.length, form, num_warps=WARPS)

"""From rows of the token table to features: add the rows of a window, take the maximum over positions.

out[s, branch * O + f] = relu(max over positions p of bias[f] + sum over taps t of row(t, slots[s, p + t])[f]).

The limit is loads of rows, one megabyte per sentence of the course's model, each element used once. Whole rows of 4 KiB
are read from device memory. But a thousand sentences share most of their words. If all programs work on the same 128
bytes of every row, that slice stays in L2, and its most frequent rows in L1. It is slow for few sentences: nothing is
reused.
"""

from itertools import accumulate
from typing import NamedTuple

import triton
import triton.language as tl

from tilewright.ops.embedding_conv1d.device_table import DeviceTable
from tilewright.ops.embedding_conv1d.operands import Filters, Prepared

CHUNK = 1024  # elements that a program of `cut` copies


class Slices(NamedTuple):
    """Compile-time extents of `gather_add`.

    length: tokens of a sentence. O: filters of a branch. groups: rows of a token, one per tap of each branch. width:
    columns of a slice. sentences: computed by one program.
    """

    length: int
    O: int
    groups: int
    width: int
    sentences: int


class Rows(NamedTuple):
    """Compile-time extents of `cut`: rows of a token, filters of a branch, columns of a slice."""

    groups: int
    O: int
    width: int


@triton.jit
def branch_maximum(rows, slots, bias, live, sizes: tl.constexpr, K: tl.constexpr, FIRST: tl.constexpr):
    """relu of the largest sum over positions, (sentences, width).

    rows: pointers (width,) to group 0 of slot 0 in the slice. slots: pointers to each sentence's first slot. bias:
    (width,). live: False for sentences beyond the batch. K: taps of the branch. FIRST: the group of its tap 0.
    """
    WIDTH: tl.constexpr = sizes.width
    best = tl.zeros((live.shape[0], WIDTH), tl.float32)
    start = best + bias[None, :]
    for position in range(sizes.length - K + 1):
        total = start
        for tap in tl.static_range(K):
            slot = tl.load(slots + position + tap, mask=live, other=0).to(tl.int64)
            row = slot * (sizes.groups * WIDTH) + (FIRST + tap) * WIDTH
            total += tl.load(rows[None, :] + row[:, None]).to(tl.float32)
        best = tl.maximum(best, total, propagate_nan=tl.PropagateNan.ALL)
    return best


@triton.jit
def gather_add(cache, slots, bias, out, shape, BOUNDS: tl.constexpr, sizes: tl.constexpr):
    """A program computes some sentences and one slice of columns. Adjacent programs use the same slice.

    cache: (slices, capacity, groups, width), float32 or 16 bits wide. slots: int32 (B, length). bias: float32
    (branches * O,). out: (B, branches * O). shape: (B, capacity). BOUNDS: the group of each branch's first tap, then
    the number of groups.
    """
    B, capacity = shape
    O: tl.constexpr = sizes.O
    WIDTH: tl.constexpr = sizes.width
    BRANCHES: tl.constexpr = len(BOUNDS) - 1
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    rows = cache + tl.program_id(1).to(tl.int64) * capacity * (sizes.groups * WIDTH) + tl.arange(0, WIDTH)
    sentences = tl.program_id(0).to(tl.int64) * sizes.sentences + tl.arange(0, sizes.sentences)
    live = sentences < B
    for branch in tl.static_range(BRANCHES):
        b = tl.load(bias + branch * O + columns, mask=columns < O, other=0.0)
        at = slots + sentences * sizes.length
        best = branch_maximum(rows, at, b, live, sizes, BOUNDS[branch + 1] - BOUNDS[branch], BOUNDS[branch])
        at = out + (sentences * (BRANCHES * O))[:, None] + (branch * O + columns)[None, :]
        tl.store(at, best.to(out.dtype.element_ty), mask=live[:, None] & (columns < O)[None, :])


@triton.jit
def cut(rows, slots, cache, capacity, sizes: tl.constexpr, BLOCK: tl.constexpr):
    """cache[slice, slots[n], group] = columns from slice * width on of rows[n, group].

    rows: (n, groups, O). slots: int64 (n,). capacity: slots of the cache. One program per BLOCK elements of a token.
    """
    O: tl.constexpr = sizes.O
    WIDTH: tl.constexpr = sizes.width
    n = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < sizes.groups * O
    group, column = element // O, element % O
    slot = tl.load(slots + n)
    at = ((column // WIDTH).to(tl.int64) * capacity + slot) * (sizes.groups * WIDTH) + group * WIDTH + column % WIDTH
    tl.store(cache + at, tl.load(rows + n * (sizes.groups * O) + element, mask=inside), mask=inside)


def cut_rows(rows, slots, cache) -> None:
    """Copy rows (n, groups, O) to `slots` of cache (slices, capacity, groups, width)."""
    n, groups, O = rows.shape
    cut[(n, triton.cdiv(groups * O, CHUNK))](rows, slots, cache, cache.shape[1], Rows(groups, O, cache.shape[3]), CHUNK)


def add_rows(slots, prepared: Prepared, out) -> None:
    """out (B, branches * O), float32 or 16 bits wide, from slots int32 (B, L) of the table."""
    table = prepared.state
    filters, (slices, capacity, groups, width) = table.filters, table.cache.shape
    bounds = tuple(accumulate(filters.kernels, initial=0))
    sentences = max(512 // width, 1)  # four elements per thread of 4 warps
    sizes = Slices(slots.shape[1], filters.O, groups, width, sentences)
    grid = (triton.cdiv(len(slots), sentences), slices)
    gather_add[grid](table.cache, slots, filters.bias, out, (len(slots), capacity), bounds, sizes, num_warps=4)


def prepare_slices(table, filters: Filters, *, dtype: str, length: int, memory: int | None) -> DeviceTable:
    """An empty token table for these weights, whose rows are cut into slices."""
    return DeviceTable(table, filters, dtype=dtype, length=length, memory=memory, cut=cut_rows)

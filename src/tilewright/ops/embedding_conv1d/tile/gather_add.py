"""From rows of the token table to features: add the rows of a window, keep the largest sum.

out[s, branch * O + f] = relu(max over positions p of bias[f] + sum over taps t of row(t, ids[s, p + t])[f]).

A sentence of the course's model reads one megabyte of rows, each row once. Whole rows of 4 KiB come from device memory.
But a thousand sentences share most of their words. If all programs work on the same 128 bytes of every row, that slice
stays in L2, and its most frequent rows in L1.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from tilewright.ops.embedding_conv1d.device_table import DeviceTable
from tilewright.ops.embedding_conv1d.operands import Filters, Prepared

CHUNK = 1024  # elements of a product that a program moves


class Slices(NamedTuple):
    """Compile-time extents of `gather_add`.

    length: tokens of a sentence. O: filters of a branch. groups: products of a token, one per tap of each branch.
    width: columns of a slice. sentences: of a program.
    """

    length: int
    O: int
    groups: int
    width: int
    sentences: int


class Rows(NamedTuple):
    """Compile-time extents of `cut`: products of a token, filters of a branch, columns of a slice."""

    groups: int
    O: int
    width: int


@triton.jit
def branch_maximum(rows, places, bias, live, sizes: tl.constexpr, K: tl.constexpr, FIRST: tl.constexpr):
    """relu of the largest sum over positions, (sentences, width).

    rows: of group 0, place 0, the slice's columns. places: of each sentence's first token. FIRST: the group of tap 0.
    """
    WIDTH: tl.constexpr = sizes.width
    best = tl.zeros((live.shape[0], WIDTH), tl.float32)
    start = best + bias[None, :]
    for position in range(sizes.length - K + 1):
        total = start
        for tap in tl.static_range(K):
            place = tl.load(places + position + tap, mask=live, other=0).to(tl.int64)
            row = place * (sizes.groups * WIDTH) + (FIRST + tap) * WIDTH
            total += tl.load(rows[None, :] + row[:, None]).to(tl.float32)
        best = tl.maximum(best, total, propagate_nan=tl.PropagateNan.ALL)
    return best


@triton.jit
def gather_add(kept, places, bias, out, shape, BOUNDS: tl.constexpr, sizes: tl.constexpr):
    """A program computes some sentences and one slice of columns. Adjacent programs use the same slice.

    kept: (slices, capacity, groups, width). places: int32 (B, length). shape: (B, capacity). BOUNDS: the group of each
    branch's first tap, then the number of groups.
    """
    B, capacity = shape
    O: tl.constexpr = sizes.O
    WIDTH: tl.constexpr = sizes.width
    BRANCHES: tl.constexpr = len(BOUNDS) - 1
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    rows = kept + tl.program_id(1).to(tl.int64) * capacity * (sizes.groups * WIDTH) + tl.arange(0, WIDTH)
    sentences = tl.program_id(0).to(tl.int64) * sizes.sentences + tl.arange(0, sizes.sentences)
    live = sentences < B
    for branch in tl.static_range(BRANCHES):
        b = tl.load(bias + branch * O + columns, mask=columns < O, other=0.0)
        at = places + sentences * sizes.length
        best = branch_maximum(rows, at, b, live, sizes, BOUNDS[branch + 1] - BOUNDS[branch], BOUNDS[branch])
        at = out + (sentences * (BRANCHES * O))[:, None] + (branch * O + columns)[None, :]
        tl.store(at, best.to(out.dtype.element_ty), mask=live[:, None] & (columns < O)[None, :])


@triton.jit
def cut(rows, places, kept, capacity, sizes: tl.constexpr, BLOCK: tl.constexpr):
    """kept[slice, places[n], group] = columns from slice * width on of rows[n, group].

    One program per BLOCK elements of a token.
    """
    O: tl.constexpr = sizes.O
    WIDTH: tl.constexpr = sizes.width
    n = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = number < sizes.groups * O
    group, column = number // O, number % O
    place = tl.load(places + n)
    at = ((column // WIDTH).to(tl.int64) * capacity + place) * (sizes.groups * WIDTH) + group * WIDTH + column % WIDTH
    tl.store(kept + at, tl.load(rows + n * (sizes.groups * O) + number, mask=inside), mask=inside)


def cut_rows(rows, places, kept) -> None:
    """Put rows (n, groups, O) at `places` of kept (slices, capacity, groups, width)."""
    n, groups, O = rows.shape
    cut[(n, triton.cdiv(groups * O, CHUNK))](rows, places, kept, kept.shape[1], Rows(groups, O, kept.shape[3]), CHUNK)


def add_rows(places, prepared: Prepared, out) -> None:
    """out (B, branches * O), float32 or 16 bits wide, from rows of the table, places int32 (B, L)."""
    table = prepared.state
    filters, (slices, capacity, groups, width) = table.filters, table.kept.shape
    bounds = [0]
    for K in filters.kernels:
        bounds.append(bounds[-1] + K)
    sentences = max(512 // width, 1)  # 16 bytes a thread and row
    sizes = Slices(places.shape[1], filters.O, groups, width, sentences)
    grid = (triton.cdiv(len(places), sentences), slices)
    gather_add[grid](table.kept, places, filters.bias, out, (len(places), capacity), tuple(bounds), sizes, num_warps=4)


def prepare_slices(table, filters: Filters, *, dtype: str, length: int, memory: int | None) -> DeviceTable:
    """An empty token table for these weights, whose rows are cut into slices."""
    return DeviceTable(table, filters, dtype=dtype, length=length, memory=memory, cut=cut_rows)

"""From rows of the token table to features: add the rows of a window, keep the largest sum.

out[s, branch * O + f] = relu(max over positions p of bias[f] + sum over taps t of row(t, ids[s, p + t])[f]).

One megabyte of rows is read a sentence of the course's model, and each row once; so the question is where rows come
from. Whole rows of 4 KiB come from device memory. But a thousand sentences share most of their words: where all
programs work on one slice of 128 bytes of every row, what they need of it stays in L2, and the most frequent in L1.
"""

import triton
import triton.language as tl

from tilewright.ops.embedding_conv1d.device_table import DeviceTable
from tilewright.ops.embedding_conv1d.operands import Filters, Prepared

CHUNK = 1024  # numbers of a product that a program moves


@triton.jit
def branch_maximum(rows, places, bias, live, SIZES: tl.constexpr, K: tl.constexpr, FIRST: tl.constexpr):
    """relu of the largest sum over positions, (sentences, width).

    rows: of group 0, place 0, the slice's columns. places: of each sentence's first token. FIRST: the group of tap 0.
    """
    LENGTH: tl.constexpr = SIZES[0]
    GROUPS: tl.constexpr = SIZES[2]
    WIDTH: tl.constexpr = SIZES[3]
    best = tl.zeros((live.shape[0], WIDTH), tl.float32)
    start = best + bias[None, :]
    for position in range(LENGTH - K + 1):
        total = start
        for tap in tl.static_range(K):
            place = tl.load(places + position + tap, mask=live, other=0).to(tl.int64)
            row = place * (GROUPS * WIDTH) + (FIRST + tap) * WIDTH
            total += tl.load(rows[None, :] + row[:, None]).to(tl.float32)
        best = tl.maximum(best, total, propagate_nan=tl.PropagateNan.ALL)
    return best


@triton.jit
def gather_add(kept, places, bias, out, shape, BOUNDS: tl.constexpr, SIZES: tl.constexpr):
    """A program has some sentences and one slice of columns; programs side by side have the same slice.

    kept: (slices, capacity, groups, width). places: int32 (B, length). shape: (B, capacity). BOUNDS: the group of each
    branch's first tap, then the number of groups. SIZES: length, O, groups, width, sentences of a program.
    """
    B, capacity = shape
    O: tl.constexpr = SIZES[1]
    WIDTH: tl.constexpr = SIZES[3]
    BRANCHES: tl.constexpr = len(BOUNDS) - 1
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    rows = kept + tl.program_id(1).to(tl.int64) * capacity * (SIZES[2] * WIDTH) + tl.arange(0, WIDTH)
    sentences = tl.program_id(0).to(tl.int64) * SIZES[4] + tl.arange(0, SIZES[4])
    live = sentences < B
    for branch in tl.static_range(BRANCHES):
        b = tl.load(bias + branch * O + columns, mask=columns < O, other=0.0)
        at = places + sentences * SIZES[0]
        best = branch_maximum(rows, at, b, live, SIZES, BOUNDS[branch + 1] - BOUNDS[branch], BOUNDS[branch])
        at = out + (sentences * (BRANCHES * O))[:, None] + (branch * O + columns)[None, :]
        tl.store(at, best.to(out.dtype.element_ty), mask=live[:, None] & (columns < O)[None, :])


@triton.jit
def cut(rows, places, kept, capacity, SIZES: tl.constexpr, BLOCK: tl.constexpr):
    """kept[slice, places[n], group] = columns slice * width onwards of rows[n, group]; a program a BLOCK of a token's
    numbers. SIZES: groups, O, width."""
    O: tl.constexpr = SIZES[1]
    WIDTH: tl.constexpr = SIZES[2]
    n = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = number < SIZES[0] * O
    group, column = number // O, number % O
    place = tl.load(places + n)
    at = ((column // WIDTH).to(tl.int64) * capacity + place) * (SIZES[0] * WIDTH) + group * WIDTH + column % WIDTH
    tl.store(kept + at, tl.load(rows + n * (SIZES[0] * O) + number, mask=inside), mask=inside)


def cut_rows(rows, places, kept) -> None:
    """Put rows (n, groups, O) at `places` of kept (slices, capacity, groups, width)."""
    n, groups, O = rows.shape
    cut[(n, triton.cdiv(groups * O, CHUNK))](rows, places, kept, kept.shape[1], (groups, O, kept.shape[3]), CHUNK)


def add_rows(places, prepared: Prepared, out) -> None:
    """out (B, branches * O), float32 or 16 bits wide, from rows of the table, places int32 (B, L)."""
    table = prepared.state
    filters, (slices, capacity, groups, width) = table.filters, table.kept.shape
    bounds = [0]
    for K in filters.kernels:
        bounds.append(bounds[-1] + K)
    sentences = max(512 // width, 1)  # 16 bytes a thread and row
    sizes = (places.shape[1], filters.O, groups, width, sentences)
    grid = (triton.cdiv(len(places), sentences), slices)
    gather_add[grid](table.kept, places, filters.bias, out, (len(places), capacity), tuple(bounds), sizes, num_warps=4)


def prepare_slices(table, filters: Filters, *, dtype: str, length: int, memory: int | None) -> DeviceTable:
    """An empty token table for these weights, whose rows are cut into slices."""
    return DeviceTable(table, filters, dtype=dtype, length=length, memory=memory, cut=cut_rows)

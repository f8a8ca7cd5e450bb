"""Decoding: one new position per sequence. The program that attends to its key and value appends them to the cache."""

import triton
import triton.language as tl

from tilewright.ops.attention.tile.blocks import absorb, begin, box, keys_from, nothing, rows_of, write_rows

STAGES = tl.constexpr(3)  # heads in flight
AHEAD = tl.constexpr(2)  # blocks in flight: with three, fewer programs share a multiprocessor


@triton.jit
def places_of(rows, cache, row, head, slot, sizes, D: tl.constexpr):
    """Pointers to a head's keys, its values, its new key and its new value."""
    start = (slot.to(tl.int64) * sizes.heads + head) * sizes.length * D
    k = rows.k + row.to(tl.int64) * sizes.k_stride + head * D
    v = rows.v + row.to(tl.int64) * sizes.v_stride + head * D
    return cache.k + start, cache.v + start, k, v


@triton.jit
def keep(new, kept, position, D: tl.constexpr, DP: tl.constexpr):
    """Copy one row of a head to its position."""
    d = tl.arange(0, DP)
    tl.store(kept + position * D + d, tl.load(new + d, mask=d < D), mask=d < D)


@triton.jit
def last_block(kept, new, start, position, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr):
    """(BN, DP): positions from `start` on, zeros after `position`. The row at `position` is `new`: not read back."""
    positions, d = start + tl.arange(0, BN), tl.arange(0, DP)
    at = tl.where((positions == position)[:, None], new + d[None, :], kept + positions[:, None] * D + d[None, :])
    return tl.load(at, mask=box(positions <= position, d, D), other=0.0)


@triton.jit
def step(rows, cache, out, at_rows, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """Attend from one query per row to its whole sequence. One program per head of a row. Zeros for slot -1.

    The matrix unit's other fifteen rows are idle: memory is the limit, and the bits are those of `blocks.look`.
    rows, of the cache's dtype, at_rows, sizes: `records.Rows`, `At`, `RowSizes`; otherwise as `blocks.look`, with
    BM = 16.
    """
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    SHORT: tl.constexpr = form.short
    PRECISION: tl.constexpr = form.precision
    head, row = tl.program_id(0) % sizes.heads, tl.program_id(0) // sizes.heads
    slot, position = tl.load(at_rows.slots + row), tl.load(at_rows.positions + row)
    queries = tl.arange(0, BM)
    sums, weights, tops = nothing(BM, DP)
    if slot < 0:
        write_rows((sums, weights, tops), out, row, sizes.out_stride, head, queries == 0, D)
        return
    keys, values, k_new, v_new = places_of(rows, cache, row, head, slot, sizes, D)
    q = rows_of(rows.q, row, sizes.q_stride, head, queries == 0, D, DP, BM)
    if SHORT:
        k = last_block(keys, k_new, 0, position, D, DP, BN)
        v = last_block(values, v_new, 0, position, D, DP, BN)
        seen = (tl.arange(0, BN) <= position)[None, :] & (queries >= 0)[:, None]
        sums, weights, tops = begin(q, k, v, seen, scale, PRECISION)
    else:
        whole = position // BN * BN
        for at in tl.range(0, whole, BN):
            k, v = keys_from(keys, at, None, D, DP, BN), keys_from(values, at, None, D, DP, BN)
            sums, weights, tops = absorb((sums, weights, tops), q, k, v, None, scale, PRECISION)
        k = last_block(keys, k_new, whole, position, D, DP, BN)
        v = last_block(values, v_new, whole, position, D, DP, BN)
        seen = (whole + tl.arange(0, BN) <= position)[None, :] & (queries >= 0)[:, None]
        sums, weights, tops = absorb((sums, weights, tops), q, k, v, seen, scale, PRECISION)
    keep(k_new, keys, position, D, DP)
    keep(v_new, values, position, D, DP)
    write_rows((sums, weights, tops), out, row, sizes.out_stride, head, queries == 0, D)


@triton.jit
def step_in_turn(rows, cache, out, at_rows, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """`step` for sequences of at most one block. A program takes block.heads heads and prefetches the next ones.

    Loses where there are few rows.
    """
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    HEADS: tl.constexpr = block.heads
    PRECISION: tl.constexpr = form.precision
    groups = sizes.heads // HEADS
    row, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    slot, position = tl.load(at_rows.slots + row), tl.load(at_rows.positions + row)
    queries = tl.arange(0, BM)
    if slot < 0:
        for i in range(HEADS):
            write_rows(nothing(BM, DP), out, row, sizes.out_stride, group * HEADS + i, queries == 0, D)
        return
    for i in tl.range(0, HEADS, num_stages=STAGES):
        head = group * HEADS + i
        keys, values, k_new, v_new = places_of(rows, cache, row, head, slot, sizes, D)
        q = rows_of(rows.q, row, sizes.q_stride, head, queries == 0, D, DP, BM)
        k = last_block(keys, k_new, 0, position, D, DP, BN)
        v = last_block(values, v_new, 0, position, D, DP, BN)
        seen = (tl.arange(0, BN) <= position)[None, :] & (queries >= 0)[:, None]
        state = begin(q, k, v, seen, scale, PRECISION)
        keep(k_new, keys, position, D, DP)
        keep(v_new, values, position, D, DP)
        write_rows(state, out, row, sizes.out_stride, head, queries == 0, D)


@triton.jit
def step_along(rows, cache, out, at_rows, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """`step` for sequences of several blocks. A program takes block.heads heads and prefetches the next block, of this
    head or of the next. Loses where there are few rows."""
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    HEADS: tl.constexpr = block.heads
    PRECISION: tl.constexpr = form.precision
    groups = sizes.heads // HEADS
    row, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    slot, position = tl.load(at_rows.slots + row), tl.load(at_rows.positions + row)
    queries = tl.arange(0, BM)
    if slot < 0:
        for i in range(HEADS):
            write_rows(nothing(BM, DP), out, row, sizes.out_stride, group * HEADS + i, queries == 0, D)
        return
    blocks = position // BN + 1
    sums, weights, tops = nothing(BM, DP)
    for i in tl.range(0, HEADS * blocks, num_stages=AHEAD):
        head, at = group * HEADS + i // blocks, i % blocks * BN
        keys, values, k_new, v_new = places_of(rows, cache, row, head, slot, sizes, D)
        q = rows_of(rows.q, row, sizes.q_stride, head, queries == 0, D, DP, BM)
        k = last_block(keys, k_new, at, position, D, DP, BN)
        v = last_block(values, v_new, at, position, D, DP, BN)
        seen = (at + tl.arange(0, BN) <= position)[None, :] & (queries >= 0)[:, None]
        first = at == 0
        sums, weights = tl.where(first, 0.0, sums), tl.where(first, 0.0, weights)
        tops = tl.where(first, float("-inf"), tops)
        sums, weights, tops = absorb((sums, weights, tops), q, k, v, seen, scale, PRECISION)
        if at + BN > position:
            keep(k_new, keys, position, D, DP)
            keep(v_new, values, position, D, DP)
            write_rows((sums, weights, tops), out, row, sizes.out_stride, head, queries == 0, D)


@triton.jit
def absorb_one(state, q, k, v, seen, scale):
    """`blocks.absorb` for one query (DP,) by multiply-adds: state (sums (DP,), weight, top), float32."""
    sums, weight, top = state
    scores = tl.sum(k.to(tl.float32) * q[None, :], 1)
    if seen is not None:
        scores = tl.where(seen, scores, float("-inf"))
    peak = tl.maximum(top, tl.max(scores, 0) * scale)
    shares = tl.exp2(tl.fma(scores, scale, -peak))
    shrunk = tl.exp2(top - peak)
    sums = tl.fma(sums, shrunk, tl.sum(shares[:, None] * v.to(tl.float32), 0))
    return sums, tl.fma(weight, shrunk, tl.sum(shares, 0)), peak


@triton.jit
def step_plain(rows, cache, out, at_rows, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """`step` by multiply-adds of float32, with other bits. Matrix units would take three products of split numbers, and
    splitting alone takes longer than loading. Loses in 16 bits, which need no splitting."""
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    SHORT: tl.constexpr = form.short
    head, row = tl.program_id(0) % sizes.heads, tl.program_id(0) // sizes.heads
    slot, position = tl.load(at_rows.slots + row), tl.load(at_rows.positions + row)
    d = tl.arange(0, DP)
    target = out + row.to(tl.int64) * sizes.out_stride + head * D + d
    if slot < 0:
        tl.store(target, tl.zeros((DP,), out.dtype.element_ty), mask=d < D)
        return
    keys, values, k_new, v_new = places_of(rows, cache, row, head, slot, sizes, D)
    q = tl.load(rows.q + row.to(tl.int64) * sizes.q_stride + head * D + d, mask=d < D, other=0.0).to(tl.float32)
    sums, weight, top = tl.zeros((DP,), tl.float32), 0.0, float("-inf")
    whole = 0 if SHORT else position // BN * BN
    if not SHORT:
        for at in tl.range(0, whole, BN):
            k, v = keys_from(keys, at, None, D, DP, BN), keys_from(values, at, None, D, DP, BN)
            sums, weight, top = absorb_one((sums, weight, top), q, k, v, None, scale)
    k = last_block(keys, k_new, whole, position, D, DP, BN)
    v = last_block(values, v_new, whole, position, D, DP, BN)
    sums, weight, top = absorb_one((sums, weight, top), q, k, v, whole + tl.arange(0, BN) <= position, scale)
    keep(k_new, keys, position, D, DP)
    keep(v_new, values, position, D, DP)
    tl.store(target, (sums * (1 / weight)).to(out.dtype.element_ty), mask=d < D)

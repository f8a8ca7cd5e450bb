"""Decoding: one new position per sequence. The program that attends to its key and value appends them to the cache.

out[row] = softmax(scale * q[row] @ k.T) @ v over all positions of the row's slot, the new one included, for each head.
Every key and value is read once for one query, so the bandwidth of the cache is the limit. Against `blocks` nothing is
appended by a separate kernel, and slots and positions are read on the device, so a CUDA graph can hold the step.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.tile.blocks import (
    absorb,
    empty_state,
    first_block,
    in_head,
    load_block,
    load_rows,
    write_rows,
    write_zeros,
)
from tilewright.ops.core.gpu.early import wait_for_inputs

STAGES = tl.constexpr(3)  # heads in flight
BLOCK_STAGES = tl.constexpr(2)  # blocks in flight: with three, fewer programs share a multiprocessor


@triton.jit
def pointers_of(rows, cache, row, head, slot, sizes, D: tl.constexpr):
    """Pointers to a head's keys, its values, its new key and its new value."""
    start = (slot.to(tl.int64) * sizes.heads + head) * sizes.length * D
    k = rows.k + row.to(tl.int64) * sizes.k_stride + head * D
    v = rows.v + row.to(tl.int64) * sizes.v_stride + head * D
    return cache.k + start, cache.v + start, k, v


@triton.jit
def append_row(new, target, position, D: tl.constexpr, DP: tl.constexpr):
    """Copy one row of a head to its position of the head at pointer `target`."""
    d = tl.arange(0, DP)
    tl.store(target + position * D + d, tl.load(new + d, mask=d < D), mask=d < D)


@triton.jit
def load_last_block(cached, new, start, position, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr):
    """(BN, DP): positions from `start` on, zeros after `position`. The row at `position` is loaded from `new`."""
    positions, d = start + tl.arange(0, BN), tl.arange(0, DP)
    at = tl.where((positions == position)[:, None], new + d[None, :], cached + positions[:, None] * D + d[None, :])
    return tl.load(at, mask=in_head(positions <= position, d, D), other=0.0)


@triton.jit
def step(rows, cache, out, targets, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """Attend from one query per row to its whole sequence. One program per head of a row. Zeros for slot -1.

    Fifteen of sixteen rows of the matrix unit are idle. That costs nothing, because memory is the limit, and gives the
    bits of `blocks.attend`. rows, of the cache's dtype, targets, sizes: `records.Rows`, `Targets`, `RowSizes`; other
    parameters as for `blocks.attend`, with BM = 16.
    """
    wait_for_inputs()
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    SHORT: tl.constexpr = form.short
    head, row = tl.program_id(0) % sizes.heads, tl.program_id(0) // sizes.heads
    slot, position = tl.load(targets.slots + row), tl.load(targets.positions + row)
    queries = tl.arange(0, BM)
    if slot < 0:
        write_zeros(out, row, sizes.out_stride, head, D, DP)
        return
    keys, values, k_new, v_new = pointers_of(rows, cache, row, head, slot, sizes, D)
    q = load_rows(rows.q, row, sizes.q_stride, head, queries == 0, D, DP, BM)
    if SHORT:
        k = load_last_block(keys, k_new, 0, position, D, DP, BN)
        v = load_last_block(values, v_new, 0, position, D, DP, BN)
        mask = (tl.arange(0, BN) <= position)[None, :] & (queries >= 0)[:, None]
        sums, totals, _ = first_block(q, k, v, mask, scale)
    else:
        sums, totals, maxima = empty_state(BM, DP)
        whole = position // BN * BN
        for at in tl.range(0, whole, BN):
            k, v = load_block(keys, at, None, D, DP, BN), load_block(values, at, None, D, DP, BN)
            sums, totals, maxima = absorb((sums, totals, maxima), q, k, v, None, scale)
        k = load_last_block(keys, k_new, whole, position, D, DP, BN)
        v = load_last_block(values, v_new, whole, position, D, DP, BN)
        mask = (whole + tl.arange(0, BN) <= position)[None, :] & (queries >= 0)[:, None]
        sums, totals, maxima = absorb((sums, totals, maxima), q, k, v, mask, scale)
    append_row(k_new, keys, position, D, DP)
    append_row(v_new, values, position, D, DP)
    write_rows(sums, totals, out, row, sizes.out_stride, head, queries == 0, D)


@triton.jit
def step_heads(rows, cache, out, targets, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """`step` for sequences of at most one block. A program takes block.heads heads and prefetches the next ones.

    It is slow for few rows: then the launch has too few programs to fill the GPU.
    """
    wait_for_inputs()
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    HEADS: tl.constexpr = block.heads
    groups = sizes.heads // HEADS
    row, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    slot, position = tl.load(targets.slots + row), tl.load(targets.positions + row)
    queries = tl.arange(0, BM)
    if slot < 0:
        for i in range(HEADS):
            write_zeros(out, row, sizes.out_stride, group * HEADS + i, D, DP)
        return
    for i in tl.range(0, HEADS, num_stages=STAGES):
        head = group * HEADS + i
        keys, values, k_new, v_new = pointers_of(rows, cache, row, head, slot, sizes, D)
        q = load_rows(rows.q, row, sizes.q_stride, head, queries == 0, D, DP, BM)
        k = load_last_block(keys, k_new, 0, position, D, DP, BN)
        v = load_last_block(values, v_new, 0, position, D, DP, BN)
        mask = (tl.arange(0, BN) <= position)[None, :] & (queries >= 0)[:, None]
        sums, totals, _ = first_block(q, k, v, mask, scale)
        append_row(k_new, keys, position, D, DP)
        append_row(v_new, values, position, D, DP)
        write_rows(sums, totals, out, row, sizes.out_stride, head, queries == 0, D)


@triton.jit
def step_blocks(rows, cache, out, targets, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """`step` for sequences of several blocks. A program takes block.heads heads and prefetches the next block, of this
    head or of the next. It is slow for few rows: too few programs run to fill the GPU."""
    wait_for_inputs()
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    HEADS: tl.constexpr = block.heads
    groups = sizes.heads // HEADS
    row, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    slot, position = tl.load(targets.slots + row), tl.load(targets.positions + row)
    queries = tl.arange(0, BM)
    if slot < 0:
        for i in range(HEADS):
            write_zeros(out, row, sizes.out_stride, group * HEADS + i, D, DP)
        return
    blocks = position // BN + 1
    sums, totals, maxima = empty_state(BM, DP)
    for i in tl.range(0, HEADS * blocks, num_stages=BLOCK_STAGES):
        head, at = group * HEADS + i // blocks, i % blocks * BN
        keys, values, k_new, v_new = pointers_of(rows, cache, row, head, slot, sizes, D)
        q = load_rows(rows.q, row, sizes.q_stride, head, queries == 0, D, DP, BM)
        k = load_last_block(keys, k_new, at, position, D, DP, BN)
        v = load_last_block(values, v_new, at, position, D, DP, BN)
        mask = (at + tl.arange(0, BN) <= position)[None, :] & (queries >= 0)[:, None]
        first = at == 0
        sums, totals = tl.where(first, 0.0, sums), tl.where(first, 0.0, totals)
        maxima = tl.where(first, float("-inf"), maxima)
        sums, totals, maxima = absorb((sums, totals, maxima), q, k, v, mask, scale)
        if at + BN > position:
            append_row(k_new, keys, position, D, DP)
            append_row(v_new, values, position, D, DP)
            write_rows(sums, totals, out, row, sizes.out_stride, head, queries == 0, D)


@triton.jit
def absorb_one(state, q, k, v, mask, scale):
    """`blocks.absorb` for one query (DP,) by multiply-adds: state (sums (DP,), total, maximum), float32."""
    sums, total, maximum = state
    scores = tl.sum(k.to(tl.float32) * q[None, :], 1)
    if mask is not None:
        scores = tl.where(mask, scores, float("-inf"))
    larger = tl.maximum(maximum, tl.max(scores, 0) * scale)
    weights = tl.exp2(tl.fma(scores, scale, -larger))
    rescale = tl.exp2(maximum - larger)
    sums = tl.fma(sums, rescale, tl.sum(weights[:, None] * v.to(tl.float32), 0))
    return sums, tl.fma(total, rescale, tl.sum(weights, 0)), larger


@triton.jit
def step_plain(rows, cache, out, targets, sizes, scale, block: tl.constexpr, form: tl.constexpr):
    """`step` by multiply-adds of float32, with other bits. Matrix units would need three products of split elements,
    and splitting takes longer than loading. It is slower than `step` in 16 bits, where nothing is split. form.ahead is
    for few rows: two blocks at a time take more registers, so fewer programs share a multiprocessor."""
    wait_for_inputs()
    BN: tl.constexpr = block.BN
    D: tl.constexpr = block.D
    DP: tl.constexpr = block.DP
    AHEAD: tl.constexpr = form.ahead
    head, row = tl.program_id(0) % sizes.heads, tl.program_id(0) // sizes.heads
    slot, position = tl.load(targets.slots + row), tl.load(targets.positions + row)
    d = tl.arange(0, DP)
    target = out + row.to(tl.int64) * sizes.out_stride + head * D + d
    if slot < 0:
        write_zeros(out, row, sizes.out_stride, head, D, DP)
        return
    keys, values, k_new, v_new = pointers_of(rows, cache, row, head, slot, sizes, D)
    k, v = load_block(keys, 0, position, D, DP, BN), load_block(values, 0, position, D, DP, BN)
    q = tl.load(rows.q + row.to(tl.int64) * sizes.q_stride + head * D + d, mask=d < D, other=0.0).to(tl.float32)
    k_last, v_last = tl.load(k_new + d, mask=d < D, other=0.0), tl.load(v_new + d, mask=d < D, other=0.0)
    sums, total, maximum = tl.zeros((DP,), tl.float32), 0.0, float("-inf")
    whole = position // BN * BN
    for at in range(0, whole, BN):
        if AHEAD:
            k_next = load_block(keys, at + BN, position, D, DP, BN)
            v_next = load_block(values, at + BN, position, D, DP, BN)
        sums, total, maximum = absorb_one((sums, total, maximum), q, k, v, None, scale)
        if not AHEAD:
            k_next = load_block(keys, at + BN, position, D, DP, BN)
            v_next = load_block(values, at + BN, position, D, DP, BN)
        k, v = k_next, v_next
    positions = whole + tl.arange(0, BN)
    k = tl.where((positions == position)[:, None], k_last[None, :], k)
    v = tl.where((positions == position)[:, None], v_last[None, :], v)
    sums, total, maximum = absorb_one((sums, total, maximum), q, k, v, positions <= position, scale)
    tl.store(keys + position * D + d, k_last, mask=d < D)
    tl.store(values + position * D + d, v_last, mask=d < D)
    tl.store(target, (sums * (1 / total)).to(out.dtype.element_ty), mask=d < D)

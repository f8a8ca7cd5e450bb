"""Decoding: one new position a sequence, whose key and value are kept by the program that looks at them."""

import triton
import triton.language as tl

from tilewright.ops.attention.tile.blocks import absorb, begin, box, keys_from, nothing, rows_of, write_rows

STAGES = tl.constexpr(3)  # heads on their way
AHEAD = tl.constexpr(2)  # blocks: with three fewer programs share a multiprocessor


@triton.jit
def places_of(qkv, cache, row, head, slot, sizes, D: tl.constexpr):
    """Where a head's keys begin, its values, its new key and its new value."""
    heads, length, _, k_stride, v_stride, _ = sizes
    start = (slot.to(tl.int64) * heads + head) * length * D
    k = qkv[1] + row.to(tl.int64) * k_stride + head * D
    v = qkv[2] + row.to(tl.int64) * v_stride + head * D
    return cache[0] + start, cache[1] + start, k, v


@triton.jit
def keep(new, kept, position, D: tl.constexpr, DP: tl.constexpr):
    """Copy one row of a head to its position."""
    d = tl.arange(0, DP)
    tl.store(kept + position * D + d, tl.load(new + d, mask=d < D), mask=d < D)


@triton.jit
def last_block(kept, new, start, position, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr):
    """(BN, DP) from `start` on, zeros behind `position`, where the row is `new`: it is not read back."""
    rows, d = start + tl.arange(0, BN), tl.arange(0, DP)
    at = tl.where((rows == position)[:, None], new + d[None, :], kept + rows[:, None] * D + d[None, :])
    return tl.load(at, mask=box(rows <= position, d, D), other=0.0)


@triton.jit
def step(qkv, cache, out, places, sizes, scale, SHAPE: tl.constexpr, FORM: tl.constexpr):
    """One query a row against all of its sequence: a program a head of a row. Zeros for rows of slot -1.

    The matrix unit's other fifteen rows are idle: memory is the limit, and the bits are those of `blocks.look`.
    qkv, of the cache's dtype; places: (slots, positions). sizes: (heads, length, row stride of q, of k, of v, of out);
    otherwise as `blocks.look`, with BM = 16.
    """
    BM: tl.constexpr = SHAPE[0]
    BN: tl.constexpr = SHAPE[1]
    D: tl.constexpr = SHAPE[2]
    DP: tl.constexpr = SHAPE[3]
    SHORT: tl.constexpr = FORM[1]
    PRECISION: tl.constexpr = FORM[2]
    head, row = tl.program_id(0) % sizes[0], tl.program_id(0) // sizes[0]
    slot, position = tl.load(places[0] + row), tl.load(places[1] + row)
    queries = tl.arange(0, BM)
    sums, weights, tops = nothing(BM, DP)
    if slot < 0:
        write_rows((sums, weights, tops), out, row, sizes[5], head, queries == 0, D)
        return
    keys, values, k_new, v_new = places_of(qkv, cache, row, head, slot, sizes, D)
    q = rows_of(qkv[0], row, sizes[2], head, queries == 0, D, DP, BM)
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
    write_rows((sums, weights, tops), out, row, sizes[5], head, queries == 0, D)


@triton.jit
def step_in_turn(qkv, cache, out, places, sizes, scale, SHAPE: tl.constexpr, FORM: tl.constexpr):
    """`step` for sequences of a block at most, where a program takes several heads: the next are on their way while one
    is looked at. Loses where there are few rows. SHAPE: (16, BN, D, DP, heads of a program)."""
    BM: tl.constexpr = SHAPE[0]
    BN: tl.constexpr = SHAPE[1]
    D: tl.constexpr = SHAPE[2]
    DP: tl.constexpr = SHAPE[3]
    HEADS: tl.constexpr = SHAPE[4]
    PRECISION: tl.constexpr = FORM[2]
    groups = sizes[0] // HEADS
    row, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    slot, position = tl.load(places[0] + row), tl.load(places[1] + row)
    queries = tl.arange(0, BM)
    if slot < 0:
        for i in range(HEADS):
            write_rows(nothing(BM, DP), out, row, sizes[5], group * HEADS + i, queries == 0, D)
        return
    for i in tl.range(0, HEADS, num_stages=STAGES):
        head = group * HEADS + i
        keys, values, k_new, v_new = places_of(qkv, cache, row, head, slot, sizes, D)
        q = rows_of(qkv[0], row, sizes[2], head, queries == 0, D, DP, BM)
        k = last_block(keys, k_new, 0, position, D, DP, BN)
        v = last_block(values, v_new, 0, position, D, DP, BN)
        seen = (tl.arange(0, BN) <= position)[None, :] & (queries >= 0)[:, None]
        state = begin(q, k, v, seen, scale, PRECISION)
        keep(k_new, keys, position, D, DP)
        keep(v_new, values, position, D, DP)
        write_rows(state, out, row, sizes[5], head, queries == 0, D)


@triton.jit
def step_along(qkv, cache, out, places, sizes, scale, SHAPE: tl.constexpr, FORM: tl.constexpr):
    """`step` for sequences of several blocks, where a program takes several heads: block after block, the next one on
    its way, be it of this head or of the next. Loses where there are few rows. SHAPE: as of `step_in_turn`."""
    BM: tl.constexpr = SHAPE[0]
    BN: tl.constexpr = SHAPE[1]
    D: tl.constexpr = SHAPE[2]
    DP: tl.constexpr = SHAPE[3]
    HEADS: tl.constexpr = SHAPE[4]
    PRECISION: tl.constexpr = FORM[2]
    groups = sizes[0] // HEADS
    row, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    slot, position = tl.load(places[0] + row), tl.load(places[1] + row)
    queries = tl.arange(0, BM)
    if slot < 0:
        for i in range(HEADS):
            write_rows(nothing(BM, DP), out, row, sizes[5], group * HEADS + i, queries == 0, D)
        return
    blocks = position // BN + 1
    sums, weights, tops = nothing(BM, DP)
    for i in tl.range(0, HEADS * blocks, num_stages=AHEAD):
        head, at = group * HEADS + i // blocks, i % blocks * BN
        keys, values, k_new, v_new = places_of(qkv, cache, row, head, slot, sizes, D)
        q = rows_of(qkv[0], row, sizes[2], head, queries == 0, D, DP, BM)
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
            write_rows((sums, weights, tops), out, row, sizes[5], head, queries == 0, D)


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
def step_plain(qkv, cache, out, places, sizes, scale, SHAPE: tl.constexpr, FORM: tl.constexpr):
    """The same by multiply-adds of float32: matrix units would take three products of numbers cut in two, and the
    cutting alone takes longer than memory. Its bits are its own. Loses in 16 bits, where numbers come as they are."""
    BN: tl.constexpr = SHAPE[1]
    D: tl.constexpr = SHAPE[2]
    DP: tl.constexpr = SHAPE[3]
    SHORT: tl.constexpr = FORM[1]
    head, row = tl.program_id(0) % sizes[0], tl.program_id(0) // sizes[0]
    slot, position = tl.load(places[0] + row), tl.load(places[1] + row)
    d = tl.arange(0, DP)
    target = out + row.to(tl.int64) * sizes[5] + head * D + d
    if slot < 0:
        tl.store(target, tl.zeros((DP,), out.dtype.element_ty), mask=d < D)
        return
    keys, values, k_new, v_new = places_of(qkv, cache, row, head, slot, sizes, D)
    q = tl.load(qkv[0] + row.to(tl.int64) * sizes[2] + head * D + d, mask=d < D, other=0.0).to(tl.float32)
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

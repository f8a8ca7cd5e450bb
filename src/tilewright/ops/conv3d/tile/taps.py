"""Volumes with many channels on matrix units: for each tap (one element of the filter) of the window weights (O, C) by
elements (C, outputs)."""

import triton
import triton.language as tl

from tilewright.ops.conv3d.tile.border import source_index


@triton.jit
def taps(x, out, weights, extents, sizes, window, MODE: tl.constexpr, block: tl.constexpr):
    """out (O, planes, height, width) of x (C, D, H, W), float32 as two bfloat16 limbs.

    extents, sizes, window, block: `records.Volumes`, `DeepSizes`, `Border`, `TapBlock`. weights: limbs (2, taps, O
    rounded up to whole tiles, sizes.deep).

    Adjacent outputs are in one row, so loads are of adjacent elements. Matrix units truncate their sums, so they sum
    one block of channels at a time. The kernel adds each sum to the total outside them, with rounding. It is slow where
    a tile has more channels than x.
    """
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    BC: tl.constexpr = block.BC
    C, D, H, W, O = extents.C, extents.D, extents.H, extents.W, extents.O
    height, width, count = extents.height, extents.width, extents.count
    KD, KH, KW, deep = sizes.KD, sizes.KH, sizes.KW, sizes.deep
    at = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    line = at // width
    column, row, plane = (at % width).to(tl.int32), (line % height).to(tl.int32), (line // height).to(tl.int32)
    o, c = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BC)
    rows, volume = tl.num_programs(1) * BN, (tl.full((), D, tl.int64) if block.long else D) * H * W
    low = KD * KH * KW * rows * deep
    spots = (c * volume)[:, None] + ((plane * H + row) * W + column)[None, :]  # (BC, BM) of a window's first tap
    totals = tl.zeros((BN, BM), tl.float32)
    for step in tl.range(KD * KH * KW * (deep // BC)):
        tap, first = step // (deep // BC), step % (deep // BC) * BC
        u, v, w = tap // (KH * KW) - window.above, tap // KW % KH - window.before, tap % KW - window.left
        z, y, t = source_index(plane + u, D, MODE), source_index(row + v, H, MODE), source_index(column + w, W, MODE)
        there, channel = (at < count) & (tl.minimum(tl.minimum(z, y), t) >= 0), first + c
        inside = there[None, :] & (channel < C)[:, None]
        if MODE == "constant" or MODE == "valid":  # from the first tap to this one, all outputs have the same offset
            elements = tl.load(x + (first * volume + (u * H + v) * W + w) + spots, mask=inside, other=window.fill)
        else:
            where = (channel * volume)[:, None] + ((z * H + y) * W + t)[None, :]
            elements = tl.load(x + where, mask=inside, other=window.fill)
        if block.ragged:  # weights are 0 there, but the elements loaded may be infinite
            elements = tl.where((channel < C)[:, None], elements, 0.0)
        high = elements.to(tl.bfloat16)
        rest = (elements - high.to(tl.float32)).to(tl.bfloat16)
        of = weights + ((tap * rows + o)[:, None] * deep + channel[None, :])
        own, own_rest = tl.load(of), tl.load(of + low)
        part = tl.dot(own, rest, tl.dot(own_rest, high))
        totals += tl.dot(own, high, part)
    target = out + o.to(tl.int64)[:, None] * count + at[None, :]
    tl.store(target, totals, mask=(o < O)[:, None] & (at < count)[None, :])

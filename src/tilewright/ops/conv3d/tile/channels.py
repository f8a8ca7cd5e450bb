"""Volumes with channels as one matrix product: weights (O, C * taps) by the windows' numbers (C * taps, outputs), which
are fetched as they are needed and never written out."""

import triton
import triton.language as tl

from tilewright.ops.conv3d.tile.border import place


@triton.jit
def channels(x, out, weights, places, extents, window, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """out (O, planes, height, width) of x (C, D, H, W).

    extents: D, H, W, O, height, width, numbers of a volume of out, C * taps, and that up to whole blocks, the depth.
    weights: (depth, O). places: int32 (4, depth), the channel of each, and where in the window it lies. window: how far
    it begins before its output, and what stands where MODE says none. BLOCK: outputs, channels of out and depth of a
    tile. Multiply-adds of float32; loses where there are few channels to share a number that was fetched.
    """
    BM: tl.constexpr = BLOCK[0]
    BN: tl.constexpr = BLOCK[1]
    BK: tl.constexpr = BLOCK[2]
    D, H, W, O, height, width, count, taps, depth = extents
    above, before, left, fill = window
    at = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    line = at // width
    column, row, plane = (at % width).to(tl.int32), (line % height).to(tl.int32), (line // height).to(tl.int32)
    totals = tl.zeros((BM, BN), tl.float32)
    for start in range(0, depth, BK):
        k = start + tl.arange(0, BK)
        channel = tl.load(places + k).to(tl.int64)
        z = place(plane[:, None] + (tl.load(places + depth + k) - above)[None, :], D, MODE)
        y = place(row[:, None] + (tl.load(places + 2 * depth + k) - before)[None, :], H, MODE)
        t = place(column[:, None] + (tl.load(places + 3 * depth + k) - left)[None, :], W, MODE)
        there = (at < count)[:, None] & (tl.minimum(tl.minimum(z, y), t) >= 0)
        numbers = tl.load(x + ((channel[None, :] * D + z) * H + y) * W + t, mask=there, other=fill)
        numbers = tl.where((k < taps)[None, :], numbers, 0.0)
        right = tl.load(weights + k[:, None] * O + o[None, :], mask=(o < O)[None, :], other=0.0)
        totals = tl.dot(numbers, right, totals, input_precision="ieee")
    target = out + o.to(tl.int64)[None, :] * count + at[:, None]
    tl.store(target, totals, mask=(at < count)[:, None] & (o < O)[None, :])

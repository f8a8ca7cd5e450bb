"""Volumes with channels as one matrix product: weights (O, C * taps) by elements of windows (C * taps, outputs).

The kernel loads the elements as it needs them and never stores that matrix.
"""

import triton
import triton.language as tl

from tilewright.ops.conv3d.tile.border import place


@triton.jit
def channels(x, out, weights, places, extents, window, MODE: tl.constexpr, block: tl.constexpr):
    """out (O, planes, height, width) of x (C, D, H, W).

    extents, window, block: `records.Product`, `Border`, `Block`. weights: (depth, O). places: int32 (4, depth): of each
    weight the channel, and the plane, row and column in the window. Multiply-adds of float32; loses where few channels
    share a loaded element.
    """
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    BK: tl.constexpr = block.BK
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

"""Volumes with channels as one matrix product: weights (O, C * taps) by elements of windows (C * taps, outputs).

A tap is one element of the filter.

The kernel loads the elements as it needs them and never stores that matrix.
"""

import triton
import triton.language as tl

from tilewright.ops.conv3d.tile.border import source_index


@triton.jit
def channels(x, out, weights, tap_positions, extents, window, MODE: tl.constexpr, block: tl.constexpr):
    """out (O, planes, height, width) of x (C, D, H, W).

    extents, window, block: `records.Product`, `Border`, `Block`. weights: (depth, O). tap_positions: int32 (4, depth),
    the channel of each weight, and its plane, row and column in the window. It multiplies float32. It is slow where few
    channels share a loaded element.
    """
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    BK: tl.constexpr = block.BK
    D, H, W, O = extents.D, extents.H, extents.W, extents.O
    height, width, count, depth = extents.height, extents.width, extents.count, extents.depth
    at = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    line = at // width
    column, row, plane = (at % width).to(tl.int32), (line % height).to(tl.int32), (line // height).to(tl.int32)
    totals = tl.zeros((BM, BN), tl.float32)
    for start in range(0, depth, BK):
        k = start + tl.arange(0, BK)
        channel = tl.load(tap_positions + k).to(tl.int64)
        z = source_index(plane[:, None] + (tl.load(tap_positions + depth + k) - window.above)[None, :], D, MODE)
        y = source_index(row[:, None] + (tl.load(tap_positions + 2 * depth + k) - window.before)[None, :], H, MODE)
        t = source_index(column[:, None] + (tl.load(tap_positions + 3 * depth + k) - window.left)[None, :], W, MODE)
        there = (at < count)[:, None] & (tl.minimum(tl.minimum(z, y), t) >= 0)
        elements = tl.load(x + ((channel[None, :] * D + z) * H + y) * W + t, mask=there, other=window.fill)
        elements = tl.where((k < extents.taps)[None, :], elements, 0.0)
        right = tl.load(weights + k[:, None] * O + o[None, :], mask=(o < O)[None, :], other=0.0)
        totals = tl.dot(elements, right, totals, input_precision="ieee")
    target = out + o.to(tl.int64)[None, :] * count + at[:, None]
    tl.store(target, totals, mask=(at < count)[:, None] & (o < O)[None, :])

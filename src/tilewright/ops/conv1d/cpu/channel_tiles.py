"""A tile of positions x output channels in registers, from the first input channel and tap to the last; threads draw the tiles.

A step takes one tap of one input channel: consecutive numbers of x, one a position, times a vector of weights, one an output channel.
It is matmul's outer product without packing x: a number of x serves all channels of the tile, a weight all its positions. The tile is
square, so that it can be turned round in registers on its way to out, where positions are contiguous.
It loses where a sample has fewer positions than a tile, and where C * K is so large that the weights of a tile, read again for each tile
of positions, leave the cache: nothing here keeps a block of the sum's depth near, as matmul does.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops._threads import launch
from tilewright.ops.conv1d.cpu.finish import ACTIVATIONS, OUTPUT_3D, POOLS, RELU
from tilewright.ops.conv1d.cpu.phases import phased
from tilewright.ops.conv1d.operands import Epilogue, Packed, Window

CHUNK = 1024  # positions in a task: at C * K of 9 and 16 channels that is 6,000 cycles of products


def tile_side() -> int:
    """Channels of a tile, and positions: a vector's lanes; 8 where vectors are shorter, for enough sums at a time."""
    return max(cpu().lanes, 8)


def pack_channels(weight: np.ndarray, rung: str) -> Packed:
    """weight (O, C, K) in panels of as many channels as a tile has: [ceil(O / side)][C][K][side], zeros beyond O."""
    O, C, K = weight.shape
    side = tile_side()
    panels = np.zeros((-(-O // side), C, K, side), np.float32)
    for panel, o in zip(panels, range(0, O, side), strict=True):
        some = weight[o : o + side].transpose(1, 2, 0)  # (C, K, up to side)
        panel[..., : some.shape[2]] = some
    return Packed(rung, O, C, K, "float32", panels.reshape(-1))


@functools.cache
def tile_kernel(side: int):
    """The kernel for tiles of side x side."""

    @simd.inline
    def tile(x, at, weights, w_at, taps, plan):
        """side positions x side channels: the sum over channels and taps."""
        C, channel = plan[3], plan[5]
        block = simd.block_zeros(side, 1, side)
        for _ in range(C):
            for t in range(taps.size):
                block = simd.block_rank1(block, x, at + simd.fetch(taps, t), weights, w_at)
                w_at += side
            at += channel
        return block

    @simd.inline
    def put_tile(block, out, b, o, l, scratch):
        """out[b, o : o + side, l : l + side] = the tile turned round; what lies beyond out is dropped."""
        stride, left = out.strides[1] // 4, out.shape[2] - l
        at = b * (out.strides[0] // 4) + o * stride + l
        turned = simd.block_transpose(block)
        if o + side <= out.shape[1]:
            simd.block_store(turned, out, at, stride, left)
        else:
            simd.block_store(turned, scratch, 0, side, side)
            for r in range(out.shape[1] - o):
                simd.store_first(out, at + r * stride, simd.load(scratch, r * side, side), left)

    @simd.inline
    def larger(best, block, rows, scratch):
        """best = max(best, the block's first rows), lane by lane: a channel is a lane."""
        simd.block_store(block, scratch, 0, side, side)
        for r in range(min(rows, side)):
            best = simd.maximum(best, simd.load(scratch, r * side, side))
        return best

    @simd.inline
    def one_task(task, x, weights, taps, bias, out, plan, scratch):
        """One panel of channels, one sample, positions first to end."""
        B, O, C, positions, channel, chunk = plan[1], plan[2], plan[3], plan[4], plan[5], plan[6]
        chunks = (positions + chunk - 1) // chunk
        o, b, first = task // chunks // B * side, task // chunks % B, task % chunks * chunk
        best = simd.splat(np.float32(-np.inf), side)
        for l in range(first, min(first + chunk, positions), side):
            block = tile(x, b * C * channel + l, weights, o * C * taps.size, taps, plan)
            if bias.size:
                block = simd.block_add(block, bias, o, 0, O - o)
            if plan[7] == RELU:
                block = simd.block_maximum(block, simd.block_zeros(side, 1, side))
            if plan[8]:
                best = larger(best, block, positions - l, scratch)
            else:
                put_tile(block, out, b, o, l, scratch)
        if plan[8]:
            simd.store_first(out, b * (out.strides[0] // 4) + o, best, O - o)

    signature = types.void(simd.INPUT, simd.INPUT, simd.INDICES, simd.INPUT, OUTPUT_3D, simd.PLAN, simd.OUTPUT)

    @simd.kernel(signature, name=f"conv1d.channel_tiles.{side}")
    def tiles(x, weights, taps, bias, out, plan, scratch):
        """x (B, C, stride, row). plan: next task, B, O, C, positions, stride * row, positions in a task, activation, pool."""
        B, O, positions, chunk = plan[1], plan[2], plan[4], plan[6]
        tasks = B * ((O + side - 1) // side) * ((positions + chunk - 1) // chunk)
        task = simd.fetch_add(plan, 0, 1)
        while task < tasks:
            one_task(task, x, weights, taps, bias, out, plan, scratch)
            task = simd.fetch_add(plan, 0, 1)

    return tiles


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, window: Window, epilogue: Epilogue) -> None:
    """The rung's run function; with pooling the channels of out are contiguous too."""
    B, side, O = len(x), tile_side(), weights.O
    flat, row = phased(x, window.padding, window.stride, beyond=side)
    taps = np.arange(weights.K) * window.dilation
    starts = taps % window.stride * row + taps // window.stride
    positions = window.positions(x.shape[2], weights.K)
    chunk = positions if epilogue.pool else CHUNK
    options = ACTIVATIONS[epilogue.activation], POOLS[epilogue.pool]
    plan = np.array([0, B, O, weights.C, positions, window.stride * row, chunk, *options], np.int64)
    tasks = B * -(-O // side) * -(-positions // chunk)
    launch(tile_kernel(side), flat, weights.data, starts, epilogue.bias, out, plan, tasks=tasks, words=side * side)

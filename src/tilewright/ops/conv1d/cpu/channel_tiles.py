"""A tile of output channels x positions stays in registers, from the first input channel and tap (one element of the
filter) to the last.

out[b, o, l] = activation(bias[o] + sum over c, t of weight[o, c, t] * x[b, c, l * stride + t * dilation]), or its
maximum over l. A step takes one tap of one input channel: each channel's weight, broadcast, times vectors of
consecutive positions of x. This is matmul's outer product without packing x: an element of x is used for all channels
of the tile, a weight for all its positions. `prepare` packs weights in panels, a tile's channels side by side. Threads
take tiles. The limit is the multiply-add rate.

It is slow where a sample has fewer positions than a vector has lanes. It is slow where C * K is so large that a tile's
weights, read again for every tile of positions, leave the cache.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.conv1d.cpu.finish import ACTIVATIONS, OUTPUT_3D, POOLS, RELU
from tilewright.ops.conv1d.cpu.phases import phased
from tilewright.ops.conv1d.operands import Epilogue, Packed, Window
from tilewright.ops.core.launch import launch

# lanes: (channels, vectors of positions) of a tile, and the same where one vector holds all positions. 16 sums, or 8 in
# AVX2's 16 registers, suffice for two FMAs per cycle of latency 4, and two loads per cycle supply them
TILES = {16: ((8, 2), (16, 1)), 8: ((4, 2), (8, 1)), 4: ((8, 2), (16, 1))}
CHUNK = 1024  # positions in a task: 1,000 cycles per channel and tap, and a tile's weights stay in L1


def panel_height() -> int:
    """Channels of a panel of weights: as many as the highest tile has."""
    return TILES[cpu().lanes][1][0]


def pack_channels(weight: np.ndarray, rung: str, dtype: str = "float32") -> Packed:
    """weight (O, C, K) in panels of channels: [ceil(O / height)][C][K][height], zeros beyond O."""
    O, C, K = weight.shape
    height = panel_height()
    panels = np.zeros((-(-O // height), C, K, height), np.float32)
    for panel, o in zip(panels, range(0, O, height), strict=True):
        some = weight[o : o + height].transpose(1, 2, 0)  # (C, K, up to height)
        panel[..., : some.shape[2]] = some
    return Packed(rung, O, C, K, "float32", panels.reshape(-1))


@functools.cache
def scratch_kernels(rows: int, vectors: int, lanes: int):
    """Inline functions (clear, fold, put_best, put_rows) on scratch: NR ones, a tile, and the maximum so far."""
    NR = lanes * vectors
    TILE, BEST, END = NR, NR + rows * NR, NR + 2 * rows * NR

    @simd.inline
    def clear(scratch):
        """Write the ones, and minus infinity to the tile and the maximum; a lane without a position keeps it."""
        for i in range(0, NR, lanes):
            simd.store(scratch, i, simd.splat(np.float32(1), lanes))
        for i in range(TILE, END, lanes):
            simd.store(scratch, i, simd.splat(np.float32(-np.inf), lanes))

    @simd.inline
    def fold(scratch):
        """best = max(best, tile), lane by lane; a lane beyond the last position has an earlier tile's value."""
        for i in range(0, rows * NR, lanes):
            larger = simd.maximum(simd.load(scratch, BEST + i, lanes), simd.load(scratch, TILE + i, lanes))
            simd.store(scratch, BEST + i, larger)

    @simd.inline
    def put_best(scratch, out, b, o):
        """out[b, o : o + rows, 0] = the maximum of each channel."""
        for r in range(min(rows, out.shape[1] - o)):
            best = simd.load(scratch, BEST + r * NR, lanes)
            for v in range(lanes, NR, lanes):
                best = simd.maximum(best, simd.load(scratch, BEST + r * NR + v, lanes))
            out[b, o + r, 0] = simd.reduce_max(best)

    @simd.inline
    def put_rows(scratch, out, at, stride, count, left):
        """Copy the tile's first `count` rows to out, `left` positions at most."""
        for r in range(count):
            for v in range(0, NR, lanes):
                simd.store_first(out, at + r * stride + v, simd.load(scratch, TILE + r * NR + v, lanes), left - v)

    return clear, fold, put_best, put_rows


class Tiles(NamedTuple):
    """B samples, O output channels, C input channels. channel: elements of x per channel. chunk: positions in a task.
    activation, pool: entries of `ACTIVATIONS` and `POOLS`."""

    B: int
    O: int
    C: int
    positions: int
    channel: int
    chunk: int
    activation: int
    pool: int


class Strip(NamedTuple):
    """The outputs of a task: channels from o on, and positions first to end of sample b."""

    o: int
    b: int
    first: int
    end: int


class Operands(NamedTuple):
    """Operands of every tile: x, panels of weights, the offset of each tap in x, and the bias."""

    x: np.ndarray
    weights: np.ndarray
    taps: np.ndarray
    bias: np.ndarray


@functools.cache
def tile_kernel(rows: int, vectors: int, lanes: int, height: int):
    """The kernel for tiles of rows channels x vectors * lanes positions, and panels of height channels."""
    clear, fold, put_best, put_rows = scratch_kernels(rows, vectors, lanes)
    NR = TILE = lanes * vectors

    @simd.inline
    def convolve_strip(strip, operands, out, job, scratch):
        """The channels and positions of a `Strip`, a tile at a time."""
        o, positions, taps = strip.o, job.positions, operands.taps
        stride, panel_at = out.strides[1] // 4, o // height * height * job.C * taps.size + o % height
        for l in range(strip.first, strip.end, NR):
            w_at, x_at = panel_at, strip.b * job.C * job.channel + l
            block = simd.block_zeros(rows, vectors, lanes)
            for _ in range(job.C):
                for t in range(taps.size):
                    block = simd.block_rank1(block, operands.weights, w_at, operands.x, x_at + simd.fetch(taps, t))
                    w_at += height
                x_at += job.channel
            if operands.bias.size:
                block = simd.block_rank1(block, operands.bias, o, scratch, 0)  # one more step, whose x is one
            if job.activation == RELU:
                block = simd.block_maximum(block, simd.block_zeros(rows, vectors, lanes))
            at = strip.b * (out.strides[0] // 4) + o * stride + l
            if job.pool:
                simd.block_store(block, scratch, TILE, NR, positions - l)
                fold(scratch)
            elif o + rows <= job.O:
                simd.block_store(block, out, at, stride, positions - l)
            else:
                simd.block_store(block, scratch, TILE, NR, NR)
                put_rows(scratch, out, at, stride, job.O - o, positions - l)

    signature = types.void(
        simd.INPUT, simd.INPUT, simd.INDICES, simd.INPUT, OUTPUT_3D, simd.record(Tiles), simd.TASKS, simd.OUTPUT
    )

    @simd.kernel(signature, name=f"conv1d.channel_tiles.{rows}x{vectors}x{lanes}")
    def tiles(x, weights, taps, bias, out, job, tasks, scratch):
        """x: flat (B, C, stride, row). weights: of `pack_channels`. taps: element offset in x of each tap. bias: (O,)
        rounded up to panels, or empty. out: (B, O, positions or 1). A task is one tile of channels and a chunk of a
        sample's positions."""
        chunks, operands = (job.positions + job.chunk - 1) // job.chunk, Operands(x, weights, taps, bias)
        clear(scratch)
        task = simd.draw(tasks)
        while task >= 0:
            o, b = task // (job.B * chunks) * rows, task // chunks % job.B
            first = task % chunks * job.chunk
            end = min(first + job.chunk, job.positions)
            convolve_strip(Strip(o, b, first, end), operands, out, job, scratch)
            if job.pool:
                put_best(scratch, out, b, o)
                clear(scratch)
            task = simd.draw(tasks)

    return tiles


def convolve(x: np.ndarray, weights: Packed, out: np.ndarray, window: Window, epilogue: Epilogue) -> None:
    """x (B, C, L) convolved into out (B, O, positions), or (B, O, 1) with pooling."""
    B, lanes, height, positions = len(x), cpu().lanes, panel_height(), window.positions(x.shape[2], weights.K)
    rows, vectors = TILES[lanes][positions <= lanes]
    flat, row = phased(x, window.padding, window.stride, beyond=lanes * vectors)
    taps = np.arange(weights.K) * window.dilation
    starts = taps % window.stride * row + taps // window.stride
    bias = np.zeros(-(-epilogue.bias.size // height) * height, np.float32)  # a tile reads all of its channels
    bias[: epilogue.bias.size] = epilogue.bias
    chunk = positions if epilogue.pool else CHUNK
    tasks = -(-weights.O // rows) * B * -(-positions // chunk)
    job = Tiles(B, weights.O, weights.C, positions, channel=window.stride * row, chunk=chunk,
                activation=ACTIVATIONS[epilogue.activation], pool=POOLS[epilogue.pool])  # fmt: skip
    kernel = tile_kernel(rows, vectors, lanes, height)
    launch(kernel, flat, weights.data, starts, bias, out, job, tasks=tasks, words=(2 * rows + 1) * lanes * vectors)

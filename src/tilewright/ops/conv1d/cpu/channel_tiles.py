"""A tile of output channels x positions stays in registers, from the first input channel and tap to the last.

A step takes one tap of one input channel: the weights of the tile's channels, each in every lane, times vectors of
consecutive positions of x. It is matmul's outer product without packing x: a number of x serves all channels of the
tile, a weight all its positions, and sums go to out as they are. Weights are turned round once, by `prepare`, so that a
tile's channels lie side by side. Threads draw tiles.

It loses where a sample has fewer positions than a vector has lanes, and where C * K is so large that a tile's weights,
read again for every tile of positions, leave the cache.
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

# lanes: (channels, vectors of positions) of a tile; the same where one vector has room for all positions. 16 sums, 8 in
# AVX2's 16 registers, are enough for two FMAs a cycle of latency 4, and two loads a cycle keep up
TILES = {16: ((8, 2), (16, 1)), 8: ((4, 2), (8, 1)), 4: ((8, 2), (16, 1))}
CHUNK = 1024  # positions in a task: 1,000 cycles for one channel and tap, and a tile's weights stay in L1 for all


def panel_height() -> int:
    """Channels whose weights lie side by side: those of the highest tile, so that every tile's do."""
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
    """(clear, fold, put_best, put_rows): what is done in scratch: NR ones, a tile, and the largest so far."""
    NR = lanes * vectors
    TILE, BEST, END = NR, NR + rows * NR, NR + 2 * rows * NR

    @simd.inline
    def clear(scratch):
        """Ones, and minus infinity: a lane that never had a position never wins."""
        for i in range(0, NR, lanes):
            simd.store(scratch, i, simd.splat(np.float32(1), lanes))
        for i in range(TILE, END, lanes):
            simd.store(scratch, i, simd.splat(np.float32(-np.inf), lanes))

    @simd.inline
    def fold(scratch):
        """best = max(best, tile), lane by lane; beyond the last position a lane holds what the tile before had."""
        for i in range(0, rows * NR, lanes):
            larger = simd.maximum(simd.load(scratch, BEST + i, lanes), simd.load(scratch, TILE + i, lanes))
            simd.store(scratch, BEST + i, larger)

    @simd.inline
    def put_best(scratch, out, b, o):
        """out[b, o : o + rows, 0] = the largest of each channel."""
        for r in range(min(rows, out.shape[1] - o)):
            best = simd.load(scratch, BEST + r * NR, lanes)
            for v in range(lanes, NR, lanes):
                best = simd.maximum(best, simd.load(scratch, BEST + r * NR + v, lanes))
            out[b, o + r, 0] = simd.reduce_max(best)

    @simd.inline
    def put_rows(scratch, out, at, stride, count, left):
        """The tile's first rows to out."""
        for r in range(count):
            for v in range(0, NR, lanes):
                simd.store_first(out, at + r * stride + v, simd.load(scratch, TILE + r * NR + v, lanes), left - v)

    return clear, fold, put_best, put_rows


class Tiles(NamedTuple):
    """B samples of C channels to O channels; `channel` elements of x per channel; `chunk` positions in a task."""

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
    """What every tile reads: panels of weights, the offset of each tap in x, and the bias."""

    weights: np.ndarray
    taps: np.ndarray
    bias: np.ndarray


@functools.cache
def tile_kernel(rows: int, vectors: int, lanes: int, height: int):
    """The kernel for tiles of rows channels x vectors * lanes positions, and panels of height channels."""
    clear, fold, put_best, put_rows = scratch_kernels(rows, vectors, lanes)
    NR = TILE = lanes * vectors

    @simd.inline
    def convolve_strip(strip, x, operands, out, job, scratch):
        """The channels and positions of a `Strip`, a tile at a time."""
        (o, b, first, end), (weights, taps, bias), C, positions = strip, operands, job.C, job.positions
        channel = job.channel
        stride, panel_at = out.strides[1] // 4, o // height * height * C * taps.size + o % height
        for l in range(first, end, NR):
            w_at, x_at = panel_at, b * C * channel + l
            block = simd.block_zeros(rows, vectors, lanes)
            for _ in range(C):
                for t in range(taps.size):
                    block = simd.block_rank1(block, weights, w_at, x, x_at + simd.fetch(taps, t))
                    w_at += height
                x_at += channel
            if bias.size:
                block = simd.block_rank1(block, bias, o, scratch, 0)  # one more step, whose x is one
            if job.activation == RELU:
                block = simd.block_maximum(block, simd.block_zeros(rows, vectors, lanes))
            at = b * (out.strides[0] // 4) + o * stride + l
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
        """x (B, C, stride, row). A task is one tile of channels, over a chunk of a sample's positions."""
        chunks, operands = (job.positions + job.chunk - 1) // job.chunk, Operands(weights, taps, bias)
        clear(scratch)
        task = simd.draw(tasks)
        while task >= 0:
            o, b = task // (job.B * chunks) * rows, task // chunks % job.B
            first = task % chunks * job.chunk
            end = min(first + job.chunk, job.positions)
            convolve_strip(Strip(o, b, first, end), x, operands, out, job, scratch)
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

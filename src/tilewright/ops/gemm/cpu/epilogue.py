"""The epilogue of every CPU rung: residual, bias and activation, so that fused and unfused rungs compute the same."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.memory import LINE

ACTIVATIONS = {None: 0, "relu": 1, "gelu_tanh": 2, "gelu": 3, "tanh": 4}
RELU, GELU_TANH, GELU, TANH = (ACTIVATIONS[name] for name in ("relu", "gelu_tanh", "gelu", "tanh"))
SLOPE, CUBIC = math.sqrt(2 / math.pi), 0.044715  # of GELU's tanh form
HALF_ROOT = math.sqrt(0.5)


class Target(NamedTuple):
    """out, and what is added to each sum before the activation; an empty residual or bias adds nothing."""

    out: np.ndarray  # (M, N)
    residual: np.ndarray  # (M, N)
    bias: np.ndarray  # (N,)


class Tile(NamedTuple):
    """A tile of `height` x `columns` sums in scratch, from an offset on; `stride` elements from one row to the next."""

    scratch: np.ndarray
    offset: int
    stride: int
    height: int
    columns: int


@simd.inline
def activate_number(x, activation):
    """One float32, computed in float64; a NaN stays."""
    if activation == RELU:
        return np.float32(0) if x < 0 else x
    if activation == GELU_TANH:
        t = SLOPE * (x + CUBIC * math.pow(np.float64(x), 3.0))
        return np.float32(0.5 * x * (1 + math.tanh(t))) if x > -np.inf else np.float32(0)
    if activation == GELU:
        return np.float32(0.5 * x * math.erfc(-HALF_ROOT * x)) if x > -np.inf else np.float32(0)
    if activation == TANH:
        return np.float32(math.tanh(np.float64(x)))
    return x


@simd.inline
def activate(x, activation):
    """A vector."""
    if activation == RELU:
        return simd.maximum(x, simd.fill(x, 0.0))
    if activation == GELU_TANH:
        return simd.gelu_tanh(x)
    if activation == GELU:
        return simd.gelu_exact(x)
    if activation == TANH:
        return simd.tanh(x)
    return x


@simd.inline
def activate_roughly(x, activation):
    """A vector that will be rounded to bfloat16: GELU to 14 bits is enough for 8."""
    if activation == GELU_TANH:
        return simd.gelu_tanh_bfloat16(x)
    return activate(x, activation)


@simd.inline
def finish(total, i, j, bias, residual, activation):
    """One element: activation(residual[i, j] + total + bias[j]); an empty bias or residual counts as none."""
    if residual.size:
        total += residual[i, j]
    if bias.size:
        total += bias[j]
    return activate_number(total, activation)


@simd.inline
def prefetch_block(out, i, j, height, columns):
    """Prefetch the lines of out that a block will be written to, while its products are computed."""
    stride = out.strides[0] // out.itemsize
    for r in range(i, i + height):
        for c in range(j, j + columns, LINE // out.itemsize):
            simd.prefetch_write(out, r * stride + c)


def rounding_finisher(lanes: int):
    """`finisher` for an out of bfloat16."""
    return finisher(lanes, rounds=True)


def rounded_out(out: np.ndarray) -> tuple[np.ndarray, Callable]:
    """(out as a kernel takes it, the finisher for it)."""
    return (out.view(np.uint16), rounding_finisher) if out.dtype == BFLOAT16 else (out, finisher)


@functools.cache
def finisher(lanes: int, rounds: bool = False):
    """The inline function that finishes a tile of sums in scratch and stores it in out.

    It runs as soon as the sums leave the registers. In a second pass, rows of out would miss L1: they are pages apart
    and evict one another. rounds: out is bfloat16, as uint16. The sums are then over all of K, since partial sums in
    out would be rounded.
    """
    rounded = simd.store_converted if cpu().has("avx512bf16") and lanes == 16 else simd.store_rounded
    store, activated = (rounded, activate_roughly) if rounds else (simd.store, activate)

    @simd.inline
    def whole(tile, target, i, j, first, activation):
        """Rows of whole vectors: a mask would cost more than the bias."""
        scratch, (out, residual, bias) = tile.scratch, target
        o_stride, r_stride = out.strides[0] // out.itemsize, residual.strides[0] // 4
        for r in range(tile.height):
            for c in range(0, tile.columns, lanes):
                x = simd.load(scratch, tile.offset + r * tile.stride + c, lanes)
                if not first:
                    x = simd.add(x, simd.load(out, (i + r) * o_stride + j + c, lanes))
                elif residual.size:
                    x = simd.add(x, simd.load(residual, (i + r) * r_stride + j + c, lanes))
                if bias.size:
                    x = simd.add(x, simd.load(bias, j + c, lanes))
                store(out, (i + r) * o_stride + j + c, activated(x, activation))

    @simd.inline
    def part(tile, target, i, j, first, activation):
        """Rows that end within a vector."""
        scratch, (out, residual, bias) = tile.scratch, target
        o_stride, r_stride = out.strides[0] // out.itemsize, residual.strides[0] // 4
        for r in range(tile.height):
            for c in range(0, tile.columns, lanes):
                x, left = simd.load(scratch, tile.offset + r * tile.stride + c, lanes), tile.columns - c
                if not first:
                    x = simd.add(x, simd.load_first(out, (i + r) * o_stride + j + c, left, lanes))
                elif residual.size:
                    x = simd.add(x, simd.load_first(residual, (i + r) * r_stride + j + c, left, lanes))
                if bias.size:
                    x = simd.add(x, simd.load_first(bias, j + c, left, lanes))
                simd.put_first(out, (i + r) * o_stride + j + c, activated(x, activation), left)

    @simd.inline
    def finish_tile(tile, target, i, j, first, activation):
        """Finish a `Tile` at row i, column j of a `Target`. first: out holds no sums of an earlier block of K.

        The constants passed to `whole` make the compiler specialise its loop for the two most frequent activations.
        """
        if tile.columns % lanes:
            part(tile, target, i, j, first, activation)
        elif activation == GELU_TANH:
            whole(tile, target, i, j, first, GELU_TANH)
        elif activation == 0:
            whole(tile, target, i, j, first, 0)
        else:
            whole(tile, target, i, j, first, activation)

    return finish_tile

"""index, value (M,) of the largest element in each row of a (M, K) @ b (K, N), without writing the product.

The packed kernels of `gemm` compare a tile of sums while it is in cache, instead of storing it as `cpu.logits` does. A
task is MC rows x NC columns, so each row has one best column per group of NC; the groups are compared last. K is one
block, because there is no memory for partial sums. The limit is the rate of multiply-adds; with few rows it is reading
the weights from memory, and little is gained. It is slow if there are few columns and grow from left to right: each
tile then has a new best and searches for its column.
"""

import functools

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.cpu import amx, loops
from tilewright.ops.gemm.cpu.loops import Product, columns_of, product_kernel
from tilewright.ops.gemm.cpu.pack import TILINGS
from tilewright.ops.gemm.cpu.words import words_of
from tilewright.ops.gemm.operands import Packed, Rows
from tilewright.ops.matmul_argmax.operands import KINDS, Prepared

EMPTY = np.empty(0, np.float32)


@functools.cache
def best_of_tile(lanes: int):
    """The inline function that finishes a tile; out (M, 2 * groups): the best value and its column in each group."""

    @simd.inline
    def finish_tile(tile, target, i, j, first, NC):
        """As that of `gemm.cpu.epilogue.finisher`. NC: columns in a group."""
        scratch, width, out = tile.scratch, tile.stride, target.out
        for r in range(tile.height):
            best_at = (i + r) * (out.strides[0] // 4) + 2 * (j // NC)
            start, most = tile.offset + r * width, np.float32(-np.inf)
            if tile.columns == width:
                largest = simd.load(scratch, start, lanes)
                for c in range(lanes, width, lanes):
                    largest = simd.maximum(largest, simd.load(scratch, start + c, lanes))
                most = simd.reduce_max(largest)
            else:
                for c in range(tile.columns):
                    most = max(most, simd.fetch(scratch, start + c))
            if most > out[i + r, 2 * (j // NC)]:
                column = 0
                while simd.fetch(scratch, start + column) != most:
                    column += 1
                simd.put(out, best_at, most)
                simd.put(out, best_at + 1, np.float32(j + column))

    return finish_tile


def search(a: np.ndarray, prepared: Prepared, index: np.ndarray, value: np.ndarray) -> None:
    """index, value (M,) of the largest element of each row of a @ prepared.weights."""
    index[...], value[...] = best(KINDS[prepared.weights.rung], a, prepared.weights)


def best(kind: str, a: np.ndarray, weights: Packed, *, emulated: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(index, value) of the largest element of each row of a @ weights. kind: a key of PRODUCTS, or "amx"."""
    lanes, M, N = cpu().lanes, len(a), weights.N
    rows = Rows(a if kind == "float32" else np.ascontiguousarray(a), None)
    steps = weights.K if kind == "float32" else words_of(weights.K)
    origin, starts, step = rows.addresses()
    MC = amx.rows_of(M, steps, 1) if kind == "amx" else loops.rows_of(kind)
    NC = columns_of(M, N, TILINGS[lanes].NR, MC)
    groups = -(-N // NC)
    found = empty((M, 2 * groups))
    found[:, 0::2], found[:, 1::2] = -np.inf, 0
    if kind == "amx":
        kernel, words = amx.product_kernel(1, emulated, best_of_tile), amx.PACKED + MC * steps
    else:
        kernel, words = product_kernel(kind, lanes, best_of_tile), loops.scratch_words(kind, steps, lanes)
    job = Product(M, N, K=steps, depth=weights.K, step=step, MC=MC, KC=steps, NC=NC, argument=NC)
    arrays = origin, starts, weights.data, found, EMPTY, EMPTY.reshape(0, 0)
    launch(kernel, *arrays, job, tasks=-(-M // MC) * groups, words=words)
    group, every = found[:, 0::2].argmax(axis=1), np.arange(M)
    return found[every, 2 * group + 1].astype(np.int64), found[every, 2 * group]

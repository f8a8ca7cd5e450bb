"""The argmax epilogue: `matmul`'s packed kernel, whose tiles end in a comparison instead of a store.

A task is MC rows x NC columns, so each row has a best column a group of NC; the groups' are compared last. A sum is
taken in one block of K, because a partial one has nowhere to stay.
Wins little where rows are few: the time is the weights' way from memory, and what is not written is short. Loses where
columns are few and grow from left to right: each tile then has a new best, and looks for its column number by number.
"""

import functools

import numpy as np

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.matmul.cpu import amx, packed
from tilewright.ops.matmul.cpu.pack import TILINGS
from tilewright.ops.matmul.cpu.packed import columns_of, product_kernel
from tilewright.ops.matmul.cpu.words import words_of
from tilewright.ops.matmul.operands import Packed, Rows

EMPTY = np.empty(0, np.float32)


@functools.cache
def keep_best(lanes: int):
    """The inline function that ends a tile: out holds a value and its column for each row and group of columns."""

    @simd.inline
    def finish_tile(tile, target, corner, size, stage):
        """As `matmul.cpu.finish.finisher`'s; stage: (unused, columns in a group)."""
        (scratch, at, width), (out, _, _), (i, j), (height, columns), (_, NC) = tile, target, corner, size, stage
        for r in range(height):
            place = (i + r) * (out.strides[0] // 4) + 2 * (j // NC)
            start, most = at + r * width, np.float32(-np.inf)
            if columns == width:
                largest = simd.load(scratch, start, lanes)
                for c in range(lanes, width, lanes):
                    largest = simd.maximum(largest, simd.load(scratch, start + c, lanes))
                most = simd.reduce_max(largest)
            else:
                for c in range(columns):
                    most = max(most, simd.fetch(scratch, start + c))
            if most > out[i + r, 2 * (j // NC)]:
                column = 0
                while simd.fetch(scratch, start + column) != most:
                    column += 1
                simd.put(out, place, most)
                simd.put(out, place + 1, np.float32(j + column))

    return finish_tile


def best(kind: str, a: np.ndarray, weights: Packed, *, emulated: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The rung's run function; kind: of product, see `matmul.cpu.packed`, or "amx"."""
    lanes, M, N = cpu().lanes, len(a), weights.N
    rows = Rows(a if kind == "float32" else np.ascontiguousarray(a), None)
    steps = weights.K if kind == "float32" else words_of(weights.K)
    origin, starts, step = rows.addresses()
    MC = amx.rows_of(M, steps, 1) if kind == "amx" else packed.rows_of(kind)
    NC = columns_of(M, N, TILINGS[lanes].NR, MC)
    groups = -(-N // NC)
    found = empty((M, 2 * groups))  # a value and its column for each group
    found[:, 0::2], found[:, 1::2] = -np.inf, 0
    if kind == "amx":
        kernel, words = amx.product_kernel(1, emulated, keep_best), amx.PACKED + MC * steps
        plan = np.array([0, M, N, steps, weights.K, NC, NC, MC], np.int64)  # NC again: columns in a group
    else:
        kernel, words = product_kernel(kind, lanes, keep_best), packed.room_for(kind, steps, lanes)
        plan = np.array([0, M, N, steps, step, steps, NC, NC, weights.K], np.int64)  # NC again: columns in a group
    arrays = (origin, starts, weights.data, found, EMPTY, EMPTY.reshape(0, 0), plan)
    launch(kernel, *arrays, tasks=-(-M // MC) * groups, words=words)
    group, every = found[:, 0::2].argmax(axis=1), np.arange(M)
    return found[every, 2 * group + 1].astype(np.int64), found[every, 2 * group]

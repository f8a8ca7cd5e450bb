"""Packing for 16-bit rungs: pairs of bfloat16 along K in 32-bit words, in the panels of `pack`.

A word of B's panel holds k = 2p and 2p + 1 of one column, a word of A's panel the same k of one row. K is filled with
zeros to a multiple of 32, the depth of an AMX tile. With two limbs, the panels of the rounded numbers are followed by
those of the remainders.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.matmul.cpu.pack import TILINGS
from tilewright.ops.matmul.operands import Packed, Rows

TILE_WORDS = 16  # words along K in an AMX tile


def words_of(K: int) -> int:
    """Words along K in a packed operand."""
    return -(-K // (2 * TILE_WORDS)) * TILE_WORDS


def in_words(rows: Rows) -> tuple[Rows, bool]:
    """(the left operand as a bfloat16 kernel reads it, whether those are words): bfloat16 rows of whole tiles are words
    already, everything else becomes float32 with contiguous rows, for the kernel to round."""
    a = rows.array
    if a.dtype == BFLOAT16:
        begins = a.__array_interface__["data"][0]
        if a.strides[1] == 2 and not (a.strides[0] % 4 or begins % 4 or a.shape[1] % (2 * TILE_WORDS)):
            return Rows(a.view(np.float32), rows.index), True
        a = a.astype(np.float32)
    return Rows(a if a.strides[1] == 4 else np.ascontiguousarray(a), rows.index), False


@functools.cache
def word_packer(lanes: int):
    """The inline function that packs one panel of A in words; A's rows are contiguous."""
    gather = simd.block_gather_converted if cpu().has("avx512bf16") and lanes == 16 else simd.block_gather_rounded

    @simd.inline
    def pack_rows(rows, source, starts, corner, depth, plan, target, at):
        """target[at + q * rows + i] = word p + q of row first + i, q below depth. corner: (first, p); plan[8]: K in
        numbers.

        Up to `lanes` rows of scratch beyond the panel may be written.
        """
        (first, p), numbers = corner, plan[8]
        last = first + rows - 1
        for q in range(0, depth, lanes):
            square = simd.block_zeros(lanes, 1, lanes)
            square = gather(square, source, starts, first, last, 2 * (p + q), numbers - 2 * (p + q))
            simd.block_store(simd.block_transpose(square), target, at + q * rows, rows, lanes)

    return pack_rows


@functools.cache
def widened_packer(lanes: int, words: bool):
    """The inline function that packs one panel of A as the float32 numbers of its words. words: A comes in them."""
    gather = simd.block_gather_converted if cpu().has("avx512bf16") and lanes == 16 else simd.block_gather_rounded

    @simd.inline
    def pack_rows(rows, source, starts, corner, depth, plan, target, at):
        """target[at + (2 * q + half) * rows + i] = number 2 * (p + q) + half of row first + i, q below depth; else as
        the packer of `word_packer`."""
        (first, p), numbers = corner, plan[8]
        last, step = first + rows - 1, 2 * rows
        whole = depth - depth % lanes if words else depth
        for q in range(0, whole, lanes):
            square = simd.block_zeros(lanes, 1, lanes)
            if words:
                square = simd.block_gather(square, source, starts, first, last, p + q)
            else:
                square = gather(square, source, starts, first, last, 2 * (p + q), numbers - 2 * (p + q))
            square = simd.block_transpose(square)
            simd.block_store(simd.first_halves(square), target, at + q * step, step, rows)
            simd.block_store(simd.second_halves(square), target, at + q * step + rows, step, rows)
        for i in range(rows):
            for q in range(whole, depth):
                word = simd.load_first(source, starts[first + i] + p + q, 1, lanes)
                simd.store_first(target, at + q * step + i, simd.first_halves(word), 1)
                simd.store_first(target, at + q * step + rows + i, simd.second_halves(word), 1)

    return pack_rows


@functools.cache
def word_panel_kernel(lanes: int):
    """The kernel that packs B in words."""
    NR = TILINGS[lanes].NR

    @simd.inline
    def pair(source, at, second, left, remainder):
        """Words of the numbers at `at` and `second` elements further (0: none), `left` columns, as rounded or as
        remainder."""
        low = simd.load_first(source, at, left, lanes)
        high = simd.load_first(source, at + second, left if second else 0, lanes)
        return simd.pair_remainder(low, high) if remainder else simd.pair_rounded(low, high)

    signature = types.void(simd.INPUT, simd.PLAN, simd.OUTPUT, simd.OUTPUT)

    @simd.kernel(signature, name=f"matmul.pack_words.{lanes}")
    def fill_words(source, plan, panels, scratch):
        """plan: next task, K, N, words, row stride, limbs. A task is a panel of one limb; source is row-major."""
        K, N, words, stride, limbs = plan[1], plan[2], plan[3], plan[4], plan[5]
        count = (N + NR - 1) // NR
        task = simd.fetch_add(plan, 0, 1)
        while task < limbs * count:
            first, at = task % count * NR, task * words * NR
            for p in range(words):
                for j in range(0, NR, lanes):
                    left = N - first - j if 2 * p < K else 0
                    start, second = 2 * p * stride + first + j, stride if 2 * p + 1 < K else 0
                    simd.store(panels, at + p * NR + j, pair(source, start, second, left, task >= count))
            task = simd.fetch_add(plan, 0, 1)

    return fill_words


def pack_words(b: np.ndarray, rung: str, *, limbs: int) -> Packed:
    """b (K, N), float32, as panels of words; limbs 1 for bfloat16, 2 for the float32 class."""
    K, N = b.shape
    lanes = cpu().lanes
    NR = TILINGS[lanes].NR
    count, words = -(-N // NR), words_of(K)
    panels = empty(limbs * count * words * NR)
    if panels.size:
        b = np.ascontiguousarray(b)
        plan = np.array([0, K, N, words, N, limbs], np.int64)
        launch(word_panel_kernel(lanes), b.reshape(-1), plan, panels, tasks=limbs * count, words=1)
    return Packed(rung, K, N, "bfloat16" if limbs == 1 else "float32", panels)

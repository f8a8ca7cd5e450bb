"""Packing for 16-bit rungs: pairs of bfloat16 along K in 32-bit words, in the panels of `pack`.

A word of B's panel holds elements k = 2p and 2p + 1 of one column, a word of A's panel the same k of one row. Zeros
fill K up to a multiple of 32, the depth of an AMX tile. With two limbs, the panels of the remainders follow the panels
of the rounded elements.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.arrays import BFLOAT16
from tilewright.ops.core.launch import launch
from tilewright.ops.core.memory import empty
from tilewright.ops.gemm.cpu.tiling import TILE_WORDS, TILINGS, words_of
from tilewright.ops.gemm.operands import Packed, Rows


def in_words(rows: Rows) -> tuple[Rows, bool]:
    """(the left operand as a bfloat16 kernel reads it, True if that is words). bfloat16 rows of whole tiles are words
    already. All other rows become float32 with contiguous elements, which the kernel rounds."""
    a = rows.array
    if a.dtype == BFLOAT16:
        address = a.__array_interface__["data"][0]
        if a.strides[1] == 2 and not (a.strides[0] % 4 or address % 4 or a.shape[1] % (2 * TILE_WORDS)):
            return Rows(a.view(np.float32), rows.index), True
        a = a.astype(np.float32)
    return Rows(a if a.strides[1] == 4 else np.ascontiguousarray(a), rows.index), False


@functools.cache
def word_packer(lanes: int):
    """The inline function that packs one panel of A in words; A's rows are contiguous."""
    gather = simd.block_gather_converted if cpu().has("avx512bf16") and lanes == 16 else simd.block_gather_rounded

    @simd.inline
    def pack_rows(rows, source, first, p, depth, target, at):
        """target[at + q * rows + i] = word p + q of row first + i for q < depth. source: a `pack.Source`.

        It may write up to `lanes` rows of scratch beyond the panel.
        """
        last = first + rows - 1
        for q in range(0, depth, lanes):
            k = 2 * (p + q)
            square = simd.block_zeros(lanes, 1, lanes)
            square = gather(square, source.values, source.starts, first, last, k, source.K - k)
            simd.block_store(simd.block_transpose(square), target, at + q * rows, rows, lanes)

    return pack_rows


@functools.cache
def widened_packer(lanes: int, words: bool):
    """The inline function that packs one panel of A as float32, element by element. words: A's rows are words."""
    gather = simd.block_gather_converted if cpu().has("avx512bf16") and lanes == 16 else simd.block_gather_rounded

    @simd.inline
    def pack_rows(rows, source, first, p, depth, target, at):
        """target[at + (2 * q + half) * rows + i] = element 2 * (p + q) + half of row first + i; otherwise as the
        function of `word_packer`."""
        values, starts = source.values, source.starts
        last, step = first + rows - 1, 2 * rows
        whole = depth - depth % lanes if words else depth
        for q in range(0, whole, lanes):
            square = simd.block_zeros(lanes, 1, lanes)
            if words:
                square = simd.block_gather(square, values, starts, first, last, p + q)
            else:
                k = 2 * (p + q)
                square = gather(square, values, starts, first, last, k, source.K - k)
            square = simd.block_transpose(square)
            simd.block_store(simd.first_halves(square), target, at + q * step, step, rows)
            simd.block_store(simd.second_halves(square), target, at + q * step + rows, step, rows)
        for i in range(rows):
            for q in range(whole, depth):
                word = simd.load_first(values, starts[first + i] + p + q, 1, lanes)
                simd.store_first(target, at + q * step + i, simd.first_halves(word), 1)
                simd.store_first(target, at + q * step + rows + i, simd.second_halves(word), 1)

    return pack_rows


class Limbs(NamedTuple):
    """B (K, N), row-major, `stride` elements from row to row. It becomes panels of `words` words along K.

    panels: of one limb. The panels of the second limb, the remainders, follow them.
    """

    K: int
    N: int
    stride: int
    words: int
    panels: int


@functools.cache
def word_panel_kernel(lanes: int):
    """The kernel that packs B in words."""
    NR = TILINGS[lanes].NR

    @simd.inline
    def pair(source, at, second, left, remainder):
        """Words of `left` columns: the elements at `at` and `second` elements further (0: none), rounded, or their
        remainders."""
        low = simd.load_first(source, at, left, lanes)
        high = simd.load_first(source, at + second, left if second else 0, lanes)
        return simd.pair_remainder(low, high) if remainder else simd.pair_rounded(low, high)

    signature = types.void(simd.INPUT, simd.record(Limbs), simd.OUTPUT, simd.TASKS, simd.OUTPUT)

    @simd.kernel(signature, name=f"gemm.pack_words.{lanes}")
    def fill_words(source, b, panels, tasks, scratch):
        """source: B's elements. b: `Limbs`. panels: the result, as float32. A task is one panel of one limb."""
        task = simd.draw(tasks)
        while task >= 0:
            first, at = task % b.panels * NR, task * b.words * NR
            for p in range(b.words):
                for j in range(0, NR, lanes):
                    left = b.N - first - j if 2 * p < b.K else 0
                    start, second = 2 * p * b.stride + first + j, b.stride if 2 * p + 1 < b.K else 0
                    simd.store(panels, at + p * NR + j, pair(source, start, second, left, task >= b.panels))
            task = simd.draw(tasks)

    return fill_words


def pack_words(b: np.ndarray, rung: str) -> Packed:
    """Panels of b (K, N), float32, rounded to bfloat16, two elements in a word."""
    return _packed(b, rung, limbs=1)


def pack_limbs(b: np.ndarray, rung: str) -> Packed:
    """Panels of b (K, N), float32, split into two bfloat16 limbs: first all high limbs, then all low ones."""
    return _packed(b, rung, limbs=2)


def _packed(b: np.ndarray, rung: str, *, limbs: int) -> Packed:
    K, N = b.shape
    lanes = cpu().lanes
    NR = TILINGS[lanes].NR
    count, words = -(-N // NR), words_of(K)
    panels = empty(limbs * count * words * NR)
    if panels.size:
        b = np.ascontiguousarray(b)
        kernel, sizes = word_panel_kernel(lanes), Limbs(K, N, stride=N, words=words, panels=count)
        launch(kernel, b.reshape(-1), sizes, panels, tasks=limbs * count, words=1)
    return Packed(rung, K, N, "bfloat16" if limbs == 1 else "float32", panels)

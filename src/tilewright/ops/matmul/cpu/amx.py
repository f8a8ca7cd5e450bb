"""AMX: a 32 x 32 block of out in four tiles, two tiles of A, two of B; a product of tiles is 16 x 16 x 32 multiply-
adds.

Bfloat16 (`cpu.amx`) multiplies the rounded operands. The float32 class (`cpu.limbs`) splits x = hi + lo, two bfloat16
limbs, and sums lo * hi' + hi * hi' + hi * lo' with float32 accumulators. What that drops (lo * lo', and the bits below
the second limb) is at most 3 * 2^-18 |a| |b| a product, whatever the numbers: 96 eps32, which the rung's bound of
4 * eps32 * sqrt(K) exceeds from K = 576 on; the rung asks for more. Numbers below 2^-110 lose their second limb (tiles
take denormals for zero), those above 3.38e38 round to infinity, and an infinite operand gives NaN (infinity times a
second limb of zero).

A's cache block is packed as tiles of 1 KiB, [32 rows][step][2][16 rows of 16 words]; B's panels are those of `words`,
read in place. Blocks of K are summed apart and added, as in `packed`.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.ops._threads import launch
from tilewright.ops.matmul.cpu.finish import ACTIVATIONS
from tilewright.ops.matmul.cpu.packed import columns_of, finish_empty, finisher
from tilewright.ops.matmul.cpu.words import TILE_WORDS, words_of
from tilewright.ops.matmul.operands import Epilogue, Packed, Rows
from tilewright.simd import amx

LANES = 16  # a tile's row is one AVX-512 register
BLOCK = 32  # rows and columns of out in four tiles
TILE = 256  # words of a tile
STATE = 9 * TILE  # words of simd.amx's state
MC = 192  # rows in a task
KC = 768  # words along K in a block: A's 192 rows are 576 KiB of L2, twice that with two limbs
BLOCK_AT = STATE  # in scratch: a 32 x 32 block on its way to out
PACKED = BLOCK_AT + BLOCK * BLOCK  # in scratch: A's packed tiles


def tile_packer(limbs: int):
    """The inline function that packs a cache block of A, as one limb or two."""

    @simd.inline
    def pack_block(a, starts, rows, p, depth, numbers, scratch):
        """Rows (i, end), words p to p + depth, as tiles; rows that fill up the last 32 repeat its last row."""
        i, end = rows
        padded = (end - i + BLOCK - 1) // BLOCK * BLOCK
        for r in range(padded):
            start = starts[min(i + r, end - 1)]
            at = PACKED + r // BLOCK * BLOCK * depth + (r % BLOCK) * LANES
            for s in range(depth // TILE_WORDS):
                number = 2 * (p + s * TILE_WORDS)
                words = simd.load_rounded(a, start + number, numbers - number, LANES)
                simd.store(scratch, at + 2 * s * TILE, words)
                if limbs == 2:
                    words = simd.load_remainder(a, start + number, numbers - number, LANES)
                    simd.store(scratch, at + 2 * s * TILE + padded * depth, words)
        return padded * depth  # where the second limb's tiles begin

    return pack_block


def tile_movers(tiles):
    """(clear tiles 0 to 3, add them to a block of out)."""
    zero, store = tiles.zero, tiles.store

    @simd.inline
    def clear(state):
        zero(state, 0)
        zero(state, 1)
        zero(state, 2)
        zero(state, 3)

    @simd.inline
    def put(state, scratch, out, corner, end, base, add):
        """out's block at corner (i, j), rows below `end`, = tiles 0 to 3, + base's block if `add`. By way of scratch.

        Tile loads and stores straight from and to out, whose rows lie pages apart, took a third longer in all.
        """
        store(state, 0, scratch, BLOCK_AT, BLOCK)
        store(state, 1, scratch, BLOCK_AT + LANES, BLOCK)
        store(state, 2, scratch, BLOCK_AT + LANES * BLOCK, BLOCK)
        store(state, 3, scratch, BLOCK_AT + LANES * BLOCK + LANES, BLOCK)
        (i, j), stride, base_stride = corner, out.strides[0] // 4, base.strides[0] // 4
        for r in range(min(BLOCK, end - i)):
            for c in range(0, BLOCK, LANES):
                x, left = simd.load(scratch, BLOCK_AT + r * BLOCK + c, LANES), out.shape[1] - j - c
                if add:
                    x = simd.add(simd.load_first(base, (i + r) * base_stride + j + c, left, LANES), x)
                simd.store_first(out, (i + r) * stride + j + c, x, left)

    return clear, put


def tile_multiplier(limbs: int, tiles):
    """The inline function that multiplies into tiles 0 to 3."""
    load, dot = tiles.load, tiles.dot

    @simd.inline
    def four_products(state):
        dot(state, 0, 4, 6)
        dot(state, 1, 4, 7)
        dot(state, 2, 5, 6)
        dot(state, 3, 5, 7)

    @simd.inline
    def multiply(state, scratch, panels, at, limb_at, depth):
        """Tiles 0 to 3 += A @ B over `depth` words.

        at: (in scratch, in panels); limb_at: how far on their second limbs lie.
        """
        (a, b), (a_limb, b_limb) = at, limb_at
        for _ in range(depth // TILE_WORDS):
            for line in range(0, 2 * TILE, LANES):  # B comes from L2 or L3, and a tile load waits for its slowest line
                simd.prefetch(panels, b + 2 * TILE + line)
            if limbs == 2:  # the small products first
                load(state, 4, scratch, a + a_limb, LANES)
                load(state, 5, scratch, a + a_limb + TILE, LANES)
                load(state, 6, panels, b, BLOCK)
                load(state, 7, panels, b + LANES, BLOCK)
                four_products(state)
            load(state, 4, scratch, a, LANES)
            load(state, 5, scratch, a + TILE, LANES)
            if limbs == 1:
                load(state, 6, panels, b, BLOCK)
                load(state, 7, panels, b + LANES, BLOCK)
            four_products(state)
            if limbs == 2:
                load(state, 6, panels, b + b_limb, BLOCK)
                load(state, 7, panels, b + b_limb + LANES, BLOCK)
                four_products(state)
            a, b = a + 2 * TILE, b + TILE_WORDS * BLOCK

    return multiply


@functools.cache
def product_kernel(limbs: int, emulated: bool):
    """The kernel for one or two limbs, on the hardware's tiles or on their emulation."""
    tiles = amx.Emulated if emulated else amx.Hardware
    pack_block, (clear, put), multiply = tile_packer(limbs), tile_movers(tiles), tile_multiplier(limbs, tiles)
    configure, release, finish_rows = tiles.configure, tiles.release, finisher(LANES)

    @simd.inline
    def one_task(task, a, starts, panels, out, epilogue, plan, scratch):
        """MC rows x NC columns of out. epilogue: (bias, residual)."""
        (M, N, K, numbers, NC, activation), (bias, residual) = (
            (plan[1], plan[2], plan[3], plan[4], plan[5], plan[6]),
            epilogue,
        )
        state = scratch[:STATE].reshape(9, LANES, LANES)
        groups, b_limb = (N + NC - 1) // NC, (N + BLOCK - 1) // BLOCK * BLOCK * K
        i, j0 = task // groups * MC, task % groups * NC
        end, j1 = min(i + MC, M), min(j0 + NC, N)
        for p in range(0, K, KC):
            depth = min(KC, K - p)
            a_limb = pack_block(a, starts, (i, end), p, depth, numbers, scratch)
            for j in range(j0, j1, BLOCK):
                for r in range(i, end, BLOCK):
                    at = (PACKED + (r - i) * depth, j * K + p * BLOCK)
                    clear(state)
                    multiply(state, scratch, panels, at, (a_limb, b_limb), depth)
                    if p == 0 and residual.size:
                        put(state, scratch, out, (r, j), end, residual, True)
                    else:
                        put(state, scratch, out, (r, j), end, out, p > 0)
                if p + depth == K and (bias.size or activation):
                    finish_rows(out, (i, end, j), min(BLOCK, N - j), bias, activation)

    signature = types.void(
        simd.INPUT, simd.INDICES, simd.INPUT, simd.OUTPUT_2D, simd.INPUT, simd.INPUT_2D, simd.PLAN, simd.OUTPUT
    )

    @simd.kernel(signature, name=f"matmul.amx.{limbs}{'.emulated' if emulated else ''}")
    def tile_product(a, starts, panels, out, bias, residual, plan, scratch):
        """plan: next task, M, N, words along K, K, NC, activation. Scratch begins with the tile state, see simd.amx."""
        state = scratch[:STATE].reshape(9, LANES, LANES)
        configure(state)
        tasks = ((plan[1] + MC - 1) // MC) * ((plan[2] + plan[5] - 1) // plan[5])
        task = simd.fetch_add(plan, 0, 1)
        while task < tasks:
            one_task(task, a, starts, panels, out, (bias, residual), plan, scratch)
            task = simd.fetch_add(plan, 0, 1)
        release(state)

    return tile_product


def multiply(rows: Rows, weights: Packed, out: np.ndarray, epilogue: Epilogue, *, emulated: bool = False) -> None:
    """The run function of `cpu.amx` and `cpu.limbs`; the weights' class says which."""
    if weights.K == 0:
        finish_empty(out, epilogue)
        return
    limbs = 1 if weights.dtype == "bfloat16" else 2
    if rows.array.strides[1] != 4:
        rows = Rows(np.ascontiguousarray(rows.array), rows.index)
    origin, starts, _ = rows.addresses()
    M, N, K = rows.count, weights.N, words_of(weights.K)
    NC = columns_of(M, N, BLOCK)
    plan = np.array([0, M, N, K, weights.K, NC, ACTIVATIONS[epilogue.activation]], np.int64)
    arrays = (origin, starts, weights.data, out, epilogue.bias, epilogue.residual, plan)
    words = PACKED + limbs * MC * min(K, KC)
    launch(product_kernel(limbs, emulated), *arrays, tasks=-(-M // MC) * -(-N // NC), words=words)

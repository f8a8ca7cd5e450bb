"""AMX: a 32 x 32 block of out in four tiles, two tiles of A, two of B; a product of tiles is 16 x 16 x 32 multiply-
adds.

Bfloat16 (`cpu.amx`) multiplies the rounded operands. The float32 class (`cpu.limbs`) splits x = hi + lo, two bfloat16
limbs, and sums lo * hi' + hi * hi' + hi * lo' with float32 accumulators. What that drops (lo * lo', and the bits below
the second limb) is at most 2^-15 |a| |b| a product, whatever the numbers: 256 eps32, which the rung's bound of
10 * eps32 * sqrt(K) exceeds from K = 656 on; the rung asks for more. Numbers below 2^-110 lose their second limb (tiles
take denormals for zero), those above 3.38e38 round to infinity, and an infinite operand gives NaN (infinity times a
second limb of zero).

A's cache block is packed as tiles of 1 KiB, [32 rows][step][2][16 rows of 16 words]; B's panels are those of `words`,
read in place. Blocks of K are summed apart and added, as in `packed`.
"""

import functools

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.matmul.cpu.finish import ACTIVATIONS, expect, finisher, rounded_out, rounding_finisher
from tilewright.ops.matmul.cpu.packed import columns_of, finish_empty
from tilewright.ops.matmul.cpu.words import TILE_WORDS, in_words, words_of
from tilewright.ops.matmul.operands import Epilogue, Packed, Rows
from tilewright.simd import amx

LANES = 16  # a tile's row is one AVX-512 register
BLOCK = 32  # rows and columns of out in four tiles
TILE = 256  # words of a tile
STATE = 9 * TILE  # words of simd.amx's state
MC = 384  # most rows in a task: fewer read B from L3 more often
BLOCK_WORDS = 192 * 768  # of a block of A, 576 KiB of L2: twice the rows of a deep one spill
FAR = 8 * TILE  # words ahead that B is fetched where few rows wait for memory: 8 KiB
KC = 768  # words along K in a block
NO_BIAS = np.empty(0, np.float32)
BLOCK_AT = STATE  # in scratch: blocks of 32 x 32 on their way to out
WIDE = 4 * BLOCK  # columns of out that are finished together: its rows lie pages apart, and each piece of one costs
PACKED = BLOCK_AT + BLOCK * WIDE  # in scratch: A's packed tiles


def tile_packer(limbs: int, given_words: bool):
    """The inline function that packs a cache block of A, as one limb or two; given_words: A comes in bfloat16 words."""
    convert = limbs == 1 and cpu().has("avx512bf16")  # a CPU with tiles has it, the emulation's may not

    @simd.inline
    def pack_block(a, starts, rows, p, depth, numbers, scratch):
        """Rows (i, end), words p to p + depth, as tiles; those that would fill up the last 32 are left as they are."""
        i, end = rows
        padded = (end - i + BLOCK - 1) // BLOCK * BLOCK
        for r in range(end - i):
            start = starts[i + r]
            at = PACKED + r // BLOCK * BLOCK * depth + (r % BLOCK) * LANES
            for s in range(depth // TILE_WORDS):
                number = 2 * (p + s * TILE_WORDS)
                if given_words:
                    words = simd.load(a, start + p + s * TILE_WORDS, LANES)
                elif convert and number + 2 * LANES <= numbers:
                    words = simd.load_converted(a, start + number, LANES)
                else:
                    words = simd.load_rounded(a, start + number, numbers - number, LANES)
                simd.store(scratch, at + 2 * s * TILE, words)
                if limbs == 2:
                    words = simd.load_remainder(a, start + number, numbers - number, LANES)
                    simd.store(scratch, at + 2 * s * TILE + padded * depth, words)
        return padded * depth  # where the second limb's tiles begin

    return pack_block


def tile_movers(tiles, finish):
    """(clear the tiles of a block, take them to scratch, from there to out); high: 2 for 32 rows, 1 for 16.

    finish: what becomes of the last block's sums, see `finish.finisher`.
    """
    (zero, store), add_tile, finish_tile = (tiles.zero, tiles.store), finisher(LANES), finish(LANES)

    @simd.inline
    def clear(high, state):
        zero(state, 0)
        zero(state, 1)
        if high == 2:
            zero(state, 2)
            zero(state, 3)

    @simd.inline
    def put(high, state, scratch, column):
        """Tiles 0 to 3 to scratch, from a column of the blocks there.

        Tile loads and stores straight from and to out, whose rows lie pages apart, took a third longer in all.
        """
        at = BLOCK_AT + column
        store(state, 0, scratch, at, WIDE)
        store(state, 1, scratch, at + LANES, WIDE)
        if high == 2:
            store(state, 2, scratch, at + LANES * WIDE, WIDE)
            store(state, 3, scratch, at + LANES * WIDE + LANES, WIDE)

    @simd.inline
    def end_block(scratch, target, corner, size, stage):
        """Blocks of `size` rows and columns from scratch to out at corner (i, j); target and stage as in `packed`."""
        (out, residual, _), (first, last, activation) = target, stage
        if last:
            finish_tile((scratch, BLOCK_AT, WIDE), target, corner, size, (first, activation))
        else:
            add_tile((scratch, BLOCK_AT, WIDE), (out, residual, NO_BIAS), corner, size, (first, 0))

    return clear, put, end_block


@simd.inline
def ask(array, at):
    """For half of the lines of a tile of the next step."""
    for line in range(0, TILE // 2, LANES):
        simd.prefetch(array, at + 2 * TILE + line)


def whole_step(tiles):
    """The inline function for a step of 32 rows and one limb.

    Its tiles lie in the second cache, and a tile load waits for its slowest line; so behind each product a quarter of
    the next step's lines is asked for.
    """
    load, dot = tiles.load, tiles.dot

    @simd.inline
    def step(state, scratch, panels, a, b):
        load(state, 6, panels, b, BLOCK)
        load(state, 4, scratch, a, LANES)
        dot(state, 0, 4, 6)
        ask(scratch, a)
        ask(panels, b)
        load(state, 7, panels, b + LANES, BLOCK)
        dot(state, 1, 4, 7)
        ask(scratch, a + TILE // 2)
        ask(panels, b + TILE // 2)
        load(state, 5, scratch, a + TILE, LANES)
        dot(state, 2, 5, 6)
        ask(scratch, a + TILE)
        ask(panels, b + TILE)
        dot(state, 3, 5, 7)
        ask(scratch, a + TILE + TILE // 2)
        ask(panels, b + TILE + TILE // 2)

    return step


def any_step(limbs: int, tiles):
    """The inline function for a step of 16 rows, or of two limbs."""
    load, dot = tiles.load, tiles.dot

    @simd.inline
    def products(high, state):
        dot(state, 0, 4, 6)
        dot(state, 1, 4, 7)
        if high == 2:
            dot(state, 2, 5, 6)
            dot(state, 3, 5, 7)

    @simd.inline
    def load_rows(high, state, scratch, at):
        load(state, 4, scratch, at, LANES)
        if high == 2:
            load(state, 5, scratch, at + TILE, LANES)

    @simd.inline
    def load_columns(state, panels, at):
        load(state, 6, panels, at, BLOCK)
        load(state, 7, panels, at + LANES, BLOCK)

    @simd.inline
    def step(high, state, scratch, panels, at, limb_at):
        (a, b), (a_limb, b_limb) = at, limb_at
        if high == 1:  # few rows wait for memory, and a tile load for its slowest line
            for line in range(0, 2 * TILE, LANES):
                simd.prefetch(panels, b + FAR + line)
                if limbs == 2:
                    simd.prefetch(panels, b + b_limb + FAR + line)
        if limbs == 2:  # the small products first
            load_rows(high, state, scratch, a + a_limb)
            load_columns(state, panels, b)
            products(high, state)
        load_rows(high, state, scratch, a)
        if limbs == 1:
            load_columns(state, panels, b)
        products(high, state)
        if limbs == 2:
            load_columns(state, panels, b + b_limb)
            products(high, state)

    return step


def tile_multiplier(limbs: int, tiles):
    """The inline function that multiplies into tiles 0 to 3."""
    whole, other = whole_step(tiles), any_step(limbs, tiles)

    @simd.inline
    def multiply(high, state, scratch, panels, at, limb_at, depth):
        """Tiles 0 to 3 += A @ B over `depth` words.

        at: (in scratch, in panels); limb_at: how far on their second limbs lie.
        """
        a, b = at
        for _ in range(depth // TILE_WORDS):
            if limbs == 1 and high == 2:
                whole(state, scratch, panels, a, b)
            else:
                other(high, state, scratch, panels, (a, b), limb_at)
            a, b = a + 2 * TILE, b + TILE_WORDS * BLOCK

    return multiply


@functools.cache
def product_kernel(limbs: int, emulated: bool, finish=finisher, words: bool = False):
    """The kernel for one or two limbs, on the hardware's tiles or on their emulation; finish, words: see
    `packed.product_kernel`."""
    tiles = amx.Emulated if emulated else amx.Hardware
    pack_block, (clear, put, end_block) = tile_packer(limbs, words), tile_movers(tiles, finish)
    multiply = tile_multiplier(limbs, tiles)
    configure, release = tiles.configure, tiles.release
    OUT = simd.ROUNDED_2D if finish is rounding_finisher else simd.OUTPUT_2D
    in_rows = finish in (finisher, rounding_finisher)  # out has a block's rows and columns
    form = f"{'.words' if words else ''}{'.emulated' if emulated else ''}"

    @simd.inline
    def one_task(task, a, starts, panels, target, plan, scratch):
        """MC rows x NC columns of out. target: (out, residual, bias)."""
        M, N, K, numbers, NC, activation, MC = plan[1], plan[2], plan[3], plan[4], plan[5], plan[6], plan[7]
        state = scratch[:STATE].reshape(9, LANES, LANES)
        groups, b_limb = (N + NC - 1) // NC, (N + BLOCK - 1) // BLOCK * BLOCK * K
        i, j0 = task // groups * MC, task % groups * NC
        end, j1 = min(i + MC, M), min(j0 + NC, N)
        for p in range(0, K, KC):
            depth = min(KC, K - p)
            a_limb = pack_block(a, starts, (i, end), p, depth, numbers, scratch)
            for j in range(j0, j1, WIDE):
                stage = (p == 0, p + depth == K, activation)
                for r in range(i, end, BLOCK):
                    size = (min(BLOCK, end - r), min(WIDE, j1 - j))
                    if in_rows:
                        expect(target[0], (r, j), size)
                    for column in range(0, size[1], BLOCK):
                        at = (PACKED + (r - i) * depth, (j + column) * K + p * BLOCK)
                        if end - r > LANES:
                            clear(2, state)
                            multiply(2, state, scratch, panels, at, (a_limb, b_limb), depth)
                            put(2, state, scratch, column)
                        else:
                            clear(1, state)
                            multiply(1, state, scratch, panels, at, (a_limb, b_limb), depth)
                            put(1, state, scratch, column)
                    end_block(scratch, target, (r, j), size, stage)

    signature = types.void(simd.INPUT, simd.INDICES, simd.INPUT, OUT, simd.INPUT, simd.INPUT_2D, simd.PLAN, simd.OUTPUT)

    @simd.kernel(signature, name=f"matmul.amx.{limbs}.{finish.__name__}{form}")
    def tile_product(a, starts, panels, out, bias, residual, plan, scratch):
        """plan: next task, M, N, words along K, K, NC, what the finisher gets beside `first`, MC. Scratch begins with
        simd.amx's tile state.

        What the finisher gets is an activation; for `matmul_argmax`'s `keep_best`, columns in a group.
        """
        state = scratch[:STATE].reshape(9, LANES, LANES)
        configure(state, min(plan[1], LANES))
        tasks = ((plan[1] + plan[7] - 1) // plan[7]) * ((plan[2] + plan[5] - 1) // plan[5])
        task = simd.fetch_add(plan, 0, 1)
        while task < tasks:
            one_task(task, a, starts, panels, (out, residual, bias), plan, scratch)
            task = simd.fetch_add(plan, 0, 1)
        release(state)

    return tile_product


def rows_of(M: int, words: int, limbs: int) -> int:
    """MC for a depth in words: equal tasks of whole blocks. It changes no result."""
    most = min(MC, BLOCK_WORDS // (limbs * min(words, KC)) // BLOCK * BLOCK)
    tasks = -(-M // most)
    return -(-M // (tasks * BLOCK)) * BLOCK


def multiply(rows: Rows, weights: Packed, out: np.ndarray, epilogue: Epilogue, *, emulated: bool = False) -> None:
    """The run function of `cpu.amx` and `cpu.limbs`; the weights' class says which."""
    if weights.K == 0:
        finish_empty(out, epilogue)
        return
    limbs = 1 if weights.dtype == "bfloat16" else 2
    (rows, words), (out, finish) = in_words(rows), rounded_out(out)
    origin, starts, _ = rows.addresses()
    M, N, K = rows.count, weights.N, words_of(weights.K)
    MC = rows_of(M, K, limbs)
    NC = columns_of(M, N, BLOCK, MC)
    plan = np.array([0, M, N, K, weights.K, NC, ACTIVATIONS[epilogue.activation], MC], np.int64)
    arrays = (origin, starts, weights.data, out, epilogue.bias, epilogue.residual, plan)
    room = PACKED + limbs * MC * min(K, KC)
    kernel = product_kernel(limbs, emulated, finish, words)
    launch(kernel, *arrays, tasks=-(-M // MC) * -(-N // NC), words=room)

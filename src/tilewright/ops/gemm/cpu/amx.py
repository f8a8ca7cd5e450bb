"""AMX: a 32 x 32 block of out in four tiles, two tiles of A, two of B. One instruction multiplies two tiles: 16 x 16 x
32 multiply-adds.

Bfloat16 (`cpu.amx`) multiplies the rounded operands. The float32 class (`cpu.limbs`) splits x = hi + lo, two bfloat16
limbs, and sums lo * hi' + hi * hi' + hi * lo' with float32 accumulators. It drops lo * lo' and the bits below the
second limb, at most 2^-15 |a| |b| = 256 eps32 |a| |b| per product. The rung's bound, 10 eps32 sqrt(K) times the sum of
|a| |b|, is larger than that from K = 656 on; matmul's ladder gives it no smaller K. Operands below 2^-110 may lose
their second limb (tiles treat subnormals as zero). Operands from 3.396e38 on round to infinity. An infinite operand
gives NaN (infinity times a second limb of zero).

A's cache block is packed as tiles of 1 KiB, [block of 32 rows][step][half][16 rows][16 words]. B's panels, packed by
`words`, are read without a copy. Each block of K is summed separately and then added, as in `loops`. The limit is tile
loads from L2; few rows of A are limited by reading B from memory.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from tilewright import simd
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch
from tilewright.ops.gemm.cpu.epilogue import (
    ACTIVATIONS,
    Target,
    Tile,
    finisher,
    prefetch_block,
    rounded_out,
    rounding_finisher,
)
from tilewright.ops.gemm.cpu.loops import Operands, Product, columns_of, finish_empty
from tilewright.ops.gemm.cpu.pack import Source
from tilewright.ops.gemm.cpu.tiling import TILINGS
from tilewright.ops.gemm.cpu.words import TILE_WORDS, in_words, words_of
from tilewright.ops.gemm.operands import Epilogue, Packed, Rows
from tilewright.simd import amx

LANES = 16  # a tile's row is one AVX-512 register
BLOCK = 32  # rows and columns of out in four tiles
TILE = 256  # words of a tile
STATE = 9 * TILE  # words of simd.amx's state: eight tiles and their configuration
MC = 384  # most rows in a task: with fewer, B is read from L3 more often
BLOCK_WORDS = 192 * 768  # words of a packed block of A, 576 KiB of L2: twice as many do not fit
FAR_PREFETCH = 8 * TILE  # words from the use of B to its prefetch, where B is read from memory: 8 KiB
KC = 768  # words along K in a block
NO_BIAS = np.empty(0, np.float32)
BLOCK_AT = STATE  # offset in scratch of blocks of 32 x 32 finished sums
WIDE = 4 * BLOCK  # columns of out that are finished together: rows are pages apart, and starting a row costs time
PACKED = BLOCK_AT + BLOCK * WIDE  # offset in scratch of A's packed tiles


def tile_packer(limbs: int, given_words: bool):
    """The inline function that packs a cache block of A, as one limb or two. given_words: A's rows are words."""
    convert = limbs == 1 and cpu().has("avx512bf16")  # a CPU with tiles has it, the emulation's may not

    @simd.inline
    def pack_block(source, i, end, p, depth, scratch):
        """Rows i to end, words p to p + depth, as tiles. Missing rows of the last 32 stay undefined.

        Returns the distance from the first limb's tiles to the second's.
        """
        a, starts, K = source.values, source.starts, source.K
        padded = (end - i + BLOCK - 1) // BLOCK * BLOCK
        for r in range(end - i):
            start = starts[i + r]
            at = PACKED + r // BLOCK * BLOCK * depth + (r % BLOCK) * LANES
            for s in range(depth // TILE_WORDS):
                k = 2 * (p + s * TILE_WORDS)
                if given_words:
                    words = simd.load(a, start + p + s * TILE_WORDS, LANES)
                elif convert and k + 2 * LANES <= K:
                    words = simd.load_converted(a, start + k, LANES)
                else:
                    words = simd.load_rounded(a, start + k, K - k, LANES)
                simd.store(scratch, at + 2 * s * TILE, words)
                if limbs == 2:
                    words = simd.load_remainder(a, start + k, K - k, LANES)
                    simd.store(scratch, at + 2 * s * TILE + padded * depth, words)
        return padded * depth

    return pack_block


def tile_movers(tiles, finish):
    """Three inline functions: clear the tiles of a block, store them in scratch, add or finish the sums in out.

    Tiles 0 to 3 hold sums, 4 and 5 A, 6 and 7 B. high: rows of tiles, 2 or 1. finish: for the last block of K, see
    `epilogue.finisher`.
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
        """Store tiles 0 to 3 in scratch, at a column of the blocks there.

        Tile loads and stores directly from and to out, whose rows are pages apart, took a third longer.
        """
        at = BLOCK_AT + column
        store(state, 0, scratch, at, WIDE)
        store(state, 1, scratch, at + LANES, WIDE)
        if high == 2:
            store(state, 2, scratch, at + LANES * WIDE, WIDE)
            store(state, 3, scratch, at + LANES * WIDE + LANES, WIDE)

    @simd.inline
    def end_block(sums, target, i, j, piece, argument):
        """Add or finish sums, up to 32 rows x WIDE columns in scratch, at row i, column j of out."""
        if piece.last:
            finish_tile(sums, target, i, j, piece.first, argument)
        else:
            add_tile(sums, Target(target.out, target.residual, NO_BIAS), i, j, piece.first, 0)

    return clear, put, end_block


@simd.inline
def prefetch_half(array, at):
    """Prefetch half of the lines of a tile of the next step."""
    for line in range(0, TILE // 2, LANES):
        simd.prefetch(array, at + 2 * TILE + line)


def whole_step(tiles):
    """The inline function for a step of 32 rows and one limb.

    Tiles are read from L2, and a tile load waits for its slowest line. So each product is followed by prefetches of a
    quarter of the next step's lines.
    """
    load, dot = tiles.load, tiles.dot

    @simd.inline
    def step(state, scratch, panels, a, b):
        load(state, 6, panels, b, BLOCK)
        load(state, 4, scratch, a, LANES)
        dot(state, 0, 4, 6)
        prefetch_half(scratch, a)
        prefetch_half(panels, b)
        load(state, 7, panels, b + LANES, BLOCK)
        dot(state, 1, 4, 7)
        prefetch_half(scratch, a + TILE // 2)
        prefetch_half(panels, b + TILE // 2)
        load(state, 5, scratch, a + TILE, LANES)
        dot(state, 2, 5, 6)
        prefetch_half(scratch, a + TILE)
        prefetch_half(panels, b + TILE)
        dot(state, 3, 5, 7)
        prefetch_half(scratch, a + TILE + TILE // 2)
        prefetch_half(panels, b + TILE + TILE // 2)

    return step


class Piece(NamedTuple):
    """A block of K: `depth` words from word p, and whether it is the first or the last block.

    a_limb, b_limb: words from the first limb's tiles to the second's, in A and in B.
    """

    p: int
    depth: int
    first: bool
    last: bool
    a_limb: int
    b_limb: int


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
    def step(high, state, operands, a, b, piece):
        scratch, panels = operands.packed, operands.panels
        if high == 1:  # with few rows B is read from memory, and a tile load waits for its slowest line
            for line in range(0, 2 * TILE, LANES):
                simd.prefetch(panels, b + FAR_PREFETCH + line)
                if limbs == 2:
                    simd.prefetch(panels, b + piece.b_limb + FAR_PREFETCH + line)
        if limbs == 2:  # lo * hi' first: the tiles of hi' then serve hi * hi', too
            load_rows(high, state, scratch, a + piece.a_limb)
            load_columns(state, panels, b)
            products(high, state)
        load_rows(high, state, scratch, a)
        if limbs == 1:
            load_columns(state, panels, b)
        products(high, state)
        if limbs == 2:
            load_columns(state, panels, b + piece.b_limb)
            products(high, state)

    return step


def tile_multiplier(limbs: int, tiles):
    """The inline function that multiplies into tiles 0 to 3."""
    whole, other = whole_step(tiles), any_step(limbs, tiles)

    @simd.inline
    def multiply(high, state, operands, a, b, piece):
        """Tiles 0 to 3 += A @ B over a block of K, at offsets a and b of the operands."""
        for _ in range(piece.depth // TILE_WORDS):
            if limbs == 1 and high == 2:
                whole(state, operands.packed, operands.panels, a, b)
            else:
                other(high, state, operands, a, b, piece)
            a, b = a + 2 * TILE, b + TILE_WORDS * BLOCK

    return multiply


def block_rows(limbs: int, tiles, finish):
    """The inline function that multiplies a packed block of A by up to WIDE columns of B."""
    clear, put, end_block = tile_movers(tiles, finish)
    multiply = tile_multiplier(limbs, tiles)
    in_rows = finish in (finisher, rounding_finisher)  # out has a block's rows and columns

    @simd.inline
    def multiply_rows(high, state, operands, a, b, piece, columns, words):
        """Adjacent blocks of sums in scratch, of 32 rows, or of 16 where high is 1. words: in a column of B."""
        for column in range(0, columns, BLOCK):
            clear(high, state)
            multiply(high, state, operands, a, b + column * words, piece)
            put(high, state, operands.packed, column)

    @simd.inline
    def down_rows(state, operands, target, i, end, j, piece, job):
        """Rows i to end of the packed block, up to WIDE columns from column j on."""
        columns = min(WIDE, min((j // job.NC + 1) * job.NC, job.N) - j)
        for r in range(i, end, BLOCK):
            height = min(BLOCK, end - r)
            if in_rows:
                prefetch_block(target.out, r, j, height, columns)
            a, b = PACKED + (r - i) * piece.depth, j * job.K + piece.p * BLOCK
            if end - r > LANES:
                multiply_rows(2, state, operands, a, b, piece, columns, job.K)
            else:
                multiply_rows(1, state, operands, a, b, piece, columns, job.K)
            tile = Tile(operands.packed, BLOCK_AT, WIDE, height, columns)
            end_block(tile, target, r, j, piece, job.argument)

    return down_rows


@functools.cache
def product_kernel(limbs: int, emulated: bool, finish=finisher, words: bool = False):
    """The kernel for one or two limbs, on the hardware's tiles or on their emulation. finish, words: see
    `loops.product_kernel`."""
    assert TILINGS[cpu().lanes].NR == BLOCK, "tiles read panels of 32 columns, those of vectors of 16 lanes"
    tiles = amx.Emulated if emulated else amx.Hardware
    pack_block, down_rows = tile_packer(limbs, words), block_rows(limbs, tiles, finish)
    configure, release = tiles.configure, tiles.release
    OUT = simd.ROUNDED_2D if finish is rounding_finisher else simd.OUTPUT_2D
    form = f"{'.words' if words else ''}{'.emulated' if emulated else ''}"

    @simd.inline
    def one_task(task, state, source, operands, target, job):
        """MC rows x NC columns of out."""
        groups, b_limb = (job.N + job.NC - 1) // job.NC, (job.N + BLOCK - 1) // BLOCK * BLOCK * job.K
        i, j0 = task // groups * job.MC, task % groups * job.NC
        end, j1 = min(i + job.MC, job.M), min(j0 + job.NC, job.N)
        for p in range(0, job.K, job.KC):
            depth = min(job.KC, job.K - p)
            a_limb = pack_block(source, i, end, p, depth, operands.packed)
            piece = Piece(p, depth, p == 0, p + depth == job.K, a_limb, b_limb)
            for j in range(j0, j1, WIDE):
                down_rows(state, operands, target, i, end, j, piece, job)

    signature = types.void(
        simd.INPUT, simd.INDICES, simd.INPUT, OUT, simd.INPUT, simd.INPUT_2D,
        simd.record(Product), simd.TASKS, simd.OUTPUT,
    )  # fmt: skip

    @simd.kernel(signature, name=f"gemm.amx.{limbs}.{finish.__name__}{form}")
    def tile_product(a, starts, panels, out, bias, residual, job, tasks, scratch):
        """a: memory of A. starts: int64 (M,), the offset of each row. panels: packed B. out (M, N). bias (N,) or empty.
        residual (M, N) or empty. job: a `Product` with K in words and depth in elements. Scratch begins with simd.amx's
        tile state."""
        state = scratch[:STATE].reshape(9, LANES, LANES)
        source = Source(a, starts, 1, job.depth)
        operands, target = Operands(scratch, panels), Target(out, residual, bias)
        configure(state, min(job.M, LANES))  # tiles have fewer than 16 rows only if A has
        task = simd.draw(tasks)
        while task >= 0:
            one_task(task, state, source, operands, target, job)
            task = simd.draw(tasks)
        release(state)

    return tile_product


def rows_of(M: int, words: int, limbs: int) -> int:
    """MC for a depth in words: tasks of equal size and whole blocks. It changes no result."""
    most = min(MC, BLOCK_WORDS // (limbs * min(words, KC)) // BLOCK * BLOCK)
    tasks = -(-M // most)
    return -(-M // (tasks * BLOCK)) * BLOCK


def multiply(rows: Rows, weights: Packed, out: np.ndarray, epilogue: Epilogue, *, emulated: bool = False) -> None:
    """out = activation(rows @ weights + residual + bias); one limb for weights of bfloat16, two for float32."""
    if weights.K == 0:
        finish_empty(out, epilogue)
        return
    limbs = 1 if weights.dtype == "bfloat16" else 2
    (rows, words), (out, finish) = in_words(rows), rounded_out(out)
    origin, starts, _ = rows.addresses()
    M, N, K = rows.count, weights.N, words_of(weights.K)
    MC = rows_of(M, K, limbs)
    NC = columns_of(M, N, BLOCK, MC)
    job = Product(M, N, K=K, depth=weights.K, step=1, MC=MC, KC=KC, NC=NC, argument=ACTIVATIONS[epilogue.activation])
    arrays = origin, starts, weights.data, out, epilogue.bias, epilogue.residual
    kernel = product_kernel(limbs, emulated, finish, words)
    launch(kernel, *arrays, job, tasks=-(-M // MC) * -(-N // NC), words=PACKED + limbs * MC * min(K, KC))

"""AMX: a 32 x 32 block of out in four tiles, two tiles of A, two of B; a product of tiles is 16 x 16 x 32 multiply-adds.

Bfloat16 (`cpu.amx`) multiplies the rounded operands. The float32 class (`cpu.limbs`) splits x = hi + lo, two bfloat16 limbs, and sums
lo * hi' + hi * hi' + hi * lo' with float32 accumulators. What that drops (lo * lo', and the bits below the second limb) is at most
3 * 2^-18 |a| |b| a product, whatever the numbers: 96 eps32, which is within the bound of 4 * eps32 * sqrt(K) once K is 576, and the rung
asks for 1024. Numbers below 2^-110 lose their second limb (tiles flush denormals), and above 3.38e38 they round to infinity.

A's cache block is packed as tiles of 1 KiB, [32 rows][step][16 rows of 16 words]; B's panels are those of `words` and are read in
place. Blocks of K are summed apart, as in `packed`.
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
MC = 192  # rows in a task
KC = 512  # words along K in a block: A's 192 rows are 384 KiB of L2, twice that with two limbs
OUT_AT = 0  # scratch: first the 32 x 32 block on its way to out, then A's packed tiles
PACKED_AT = BLOCK * BLOCK


@functools.cache
def tile_kernels(limbs: int, emulated: bool):
    """(pack a cache block of A, one 32 x 32 block over one block of K) on the hardware's tiles or on their emulation."""
    tiles = amx.Emulated if emulated else amx.Hardware
    zero, load, store, dot = tiles.zero, tiles.load, tiles.store, tiles.dot

    @simd.inline
    def pack_block(a, starts, i, end, p, depth, numbers, scratch):
        """Rows i to end, words p to p + depth, as tiles; rows that fill up the last 32 repeat its last row."""
        steps = depth // TILE_WORDS
        limb_words = (end - i + BLOCK - 1) // BLOCK * BLOCK * depth
        for r in range(0, (end - i + BLOCK - 1) // BLOCK * BLOCK):
            start = starts[min(i + r, end - 1)]
            at = PACKED_AT + r // BLOCK * BLOCK * depth + (r % BLOCK) * LANES
            for s in range(steps):
                number = 2 * (p + s * TILE_WORDS)
                words = simd.load_rounded(a, start + number, numbers - number, LANES)
                simd.store(scratch, at + 2 * s * TILE, words)
                if limbs == 2:
                    words = simd.load_remainder(a, start + number, numbers - number, LANES)
                    simd.store(scratch, at + 2 * s * TILE + limb_words, words)
        return limb_words

    @simd.inline
    def four_products(state):
        dot(state, 0, 4, 6)
        dot(state, 1, 4, 7)
        dot(state, 2, 5, 6)
        dot(state, 3, 5, 7)

    @simd.inline
    def micro(state, scratch, a_at, a_limb, panels, b_at, b_limb, depth):
        """The 32 x 32 block of sums over `depth` words, left in scratch at OUT_AT."""
        zero(state, 0)
        zero(state, 1)
        zero(state, 2)
        zero(state, 3)
        for s in range(depth // TILE_WORDS):
            a, b = a_at + 2 * s * TILE, b_at + s * TILE_WORDS * BLOCK
            if limbs == 2:  # the small products first, then the large, then with B's remainder in place
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
        store(state, 0, scratch, OUT_AT, BLOCK)
        store(state, 1, scratch, OUT_AT + LANES, BLOCK)
        store(state, 2, scratch, OUT_AT + BLOCK * LANES, BLOCK)
        store(state, 3, scratch, OUT_AT + BLOCK * LANES + LANES, BLOCK)

    return pack_block, micro


@simd.inline
def put_block(scratch, out, base, i, end, j, add):
    """Rows i to end of the block in scratch, plus base if `add`, to out."""
    stride, base_stride, left = out.strides[0] // 4, base.strides[0] // 4, out.shape[1] - j
    for r in range(end - i):
        for c in range(0, BLOCK, LANES):
            x = simd.load(scratch, OUT_AT + r * BLOCK + c, LANES)
            if add:
                x = simd.add(simd.load_first(base, (i + r) * base_stride + j + c, left - c, LANES), x)
            simd.store_first(out, (i + r) * stride + j + c, x, left - c)


@functools.cache
def product_kernel(limbs: int, emulated: bool):
    """The kernel for one or two limbs."""
    pack_block, micro = tile_kernels(limbs, emulated)
    tiles = amx.Emulated if emulated else amx.Hardware
    configure, release, finish_rows = tiles.configure, tiles.release, finisher(LANES)

    @simd.inline
    def one_task(task, a, starts, panels, out, bias, residual, plan, scratch, state):
        M, N, K, numbers, NC, activation = plan[1], plan[2], plan[3], plan[4], plan[5], plan[6]
        groups, b_limb = (N + NC - 1) // NC, (N + BLOCK - 1) // BLOCK * BLOCK * K
        i, j0 = task // groups * MC, task % groups * NC
        end, j1 = min(i + MC, M), min(j0 + NC, N)
        for p in range(0, K, KC):
            depth = min(KC, K - p)
            a_limb = pack_block(a, starts, i, end, p, depth, numbers, scratch)
            for j in range(j0, j1, BLOCK):
                for r in range(i, end, BLOCK):
                    a_at, b_at = PACKED_AT + (r - i) * depth, j * K + p * BLOCK
                    micro(state, scratch, a_at, a_limb, panels, b_at, b_limb, depth)
                    use_residual = p == 0 and residual.size > 0
                    if use_residual:
                        put_block(scratch, out, residual, r, min(r + BLOCK, end), j, True)
                    else:
                        put_block(scratch, out, out, r, min(r + BLOCK, end), j, p > 0)
                if p + depth == K and (bias.size or activation):
                    finish_rows(out, i, end, j, min(BLOCK, N - j), bias, activation)

    signature = types.void(
        simd.INPUT, simd.INDICES, simd.INPUT, simd.OUTPUT_2D, simd.INPUT, simd.INPUT_2D, simd.PLAN, simd.OUTPUT
    )

    @simd.kernel(signature, name=f"matmul.amx.{limbs}{'.emulated' if emulated else ''}")
    def tile_product(a, starts, panels, out, bias, residual, plan, scratch):
        """plan: next task, M, N, words along K, K, NC, activation. The last 9 KiB of scratch hold the tile state, see simd.amx."""
        state = scratch[scratch.size - 9 * TILE :].reshape(9, LANES, LANES)
        configure(state)
        tasks = ((plan[1] + MC - 1) // MC) * ((plan[2] + plan[5] - 1) // plan[5])
        task = simd.fetch_add(plan, 0, 1)
        while task < tasks:
            one_task(task, a, starts, panels, out, bias, residual, plan, scratch, state)
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
    words = PACKED_AT + limbs * MC * min(K, KC) + 9 * TILE
    launch(product_kernel(limbs, emulated), *arrays, tasks=-(-M // MC) * -(-N // NC), words=words)

"""Products of tiles on matrix units, in Triton: a program a multiprocessor, and each takes one tile after another."""

import triton
import triton.language as tl

from tilewright.ops.matmul.tile.finish import finish


@triton.jit
def place(tile, M, N, BLOCKS: tl.constexpr):
    """(row, column) of a tile's first element. Tiles are numbered down columns of GROUP tiles, so that those worked on
    together share rows of a and of b, and find them in L2."""
    BM: tl.constexpr = BLOCKS[0]
    BN: tl.constexpr = BLOCKS[1]
    GROUP: tl.constexpr = BLOCKS[3]
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tile // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    return (first + tile % (GROUP * across) % height) * BM, tile % (GROUP * across) // height * BN


@triton.jit
def write(totals, out, i, j, extras, shape, BULK: tl.constexpr, ACTIVATION: tl.constexpr):
    """Finish a tile of sums and store it at (i, j): by a bulk copy where out is a descriptor, else by masked stores."""
    M, N = shape
    rows, columns = i + tl.arange(0, totals.shape[0]), j + tl.arange(0, totals.shape[1])
    totals = finish(totals, rows, columns, extras, shape, ACTIVATION)
    if BULK:
        out.store([i, j], totals.to(out.dtype))
    else:
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        at = out + rows.to(tl.int64)[:, None] * N + columns[None, :]
        tl.store(at, totals.to(out.dtype.element_ty), mask=inside)


@triton.jit
def product(a, b, out, extras, shape, BLOCKS: tl.constexpr, BULK: tl.constexpr, ACTIVATION: tl.constexpr):
    """out (M, N) = activation(a (M, K) @ b (N, K)^T + residual + bias). a, b: descriptors; shape: (M, N, K).

    The sums of a tile stay in registers along all of K. BLOCKS: rows, columns and depth of a tile, tiles of a group.
    """
    M, N, K = shape
    BM: tl.constexpr = BLOCKS[0]
    BN: tl.constexpr = BLOCKS[1]
    BK: tl.constexpr = BLOCKS[2]
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        i, j = place(tile, M, N, BLOCKS)
        totals = tl.zeros((BM, BN), tl.float32)
        for p in range(0, K, BK):
            totals = tl.dot(a.load([i, p]), b.load([j, p]).T, totals, input_precision="tf32")
        write(totals, out, i, j, extras, (M, N), BULK, ACTIVATION)


@triton.jit
def limb_product(a, b, out, extras, shape, BLOCKS: tl.constexpr, BULK: tl.constexpr, ACTIVATION: tl.constexpr):
    """The same for float32 split in two bfloat16 limbs: a (M, 2 K), b (N, 2 K), high limbs first; K whole blocks.

    Three products a block, the small ones first. Matrix units truncate where they add, always the same way; so a
    block's sum, 3 BK products long, leaves them, and is added to the total with rounding.
    """
    M, N, K = shape
    BM: tl.constexpr = BLOCKS[0]
    BN: tl.constexpr = BLOCKS[1]
    BK: tl.constexpr = BLOCKS[2]
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        i, j = place(tile, M, N, BLOCKS)
        totals = tl.zeros((BM, BN), tl.float32)
        for p in range(0, K, BK):
            a_high, a_low = a.load([i, p]), a.load([i, K + p])
            b_high, b_low = b.load([j, p]), b.load([j, K + p])
            part = tl.dot(a_low, b_high.T)
            part = tl.dot(a_high, b_low.T, part)
            totals += tl.dot(a_high, b_high.T, part)
        write(totals, out, i, j, extras, (M, N), BULK, ACTIVATION)


@triton.jit
def split(x, limbs, shape, BLOCK: tl.constexpr):
    """limbs (M, 2 D) bfloat16 = high and low limbs of x (M, K) float32, zeros beyond K; a program a BLOCK of a row."""
    K, D = shape
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(x + row * K + columns, mask=columns < K, other=0.0)
    high = number.to(tl.bfloat16)
    low = (number - high.to(tl.float32)).to(tl.bfloat16)
    tl.store(limbs + row * 2 * D + columns, high, mask=columns < D)
    tl.store(limbs + row * 2 * D + D + columns, low, mask=columns < D)

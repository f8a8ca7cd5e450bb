"""Products of tiles on matrix units, in Triton: a program a multiprocessor, and each takes one tile after another."""

import triton
import triton.language as tl

from tilewright.ops.gemm.tile.epilogue import finish


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
def write(totals, out, i, j, extras, shape, FORM: tl.constexpr):
    """Finish a tile of sums and store it at (i, j): by a bulk copy where out is a descriptor, else by masked stores."""
    M, N = shape
    ACTIVATION: tl.constexpr = FORM[2]
    rows, columns = i + tl.arange(0, totals.shape[0]), j + tl.arange(0, totals.shape[1])
    totals = finish(totals, rows, columns, extras, shape, ACTIVATION)
    if FORM[1] == "bulk":
        out.store([i, j], totals.to(out.dtype))
    else:
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        at = out + rows.to(tl.int64)[:, None] * N + columns[None, :]
        tl.store(at, totals.to(out.dtype.element_ty), mask=inside)


@triton.jit
def sums(a, b, i, j, K, BLOCKS: tl.constexpr):
    """A tile of a @ b^T at (i, j), float32: the sums stay in registers along all of K."""
    BM: tl.constexpr = BLOCKS[0]
    BN: tl.constexpr = BLOCKS[1]
    BK: tl.constexpr = BLOCKS[2]
    totals = tl.zeros((BM, BN), tl.float32)
    for p in range(0, K, BK):
        totals = tl.dot(a.load([i, p]), b.load([j, p]).T, totals, input_precision="tf32")
    return totals


@triton.jit
def limb_sums(a, b, i, j, K, BLOCKS: tl.constexpr, PRODUCTS: tl.constexpr):
    """The same for float32 split in two bfloat16 limbs: a (M, 2 K), b (N, 2 K), high limbs first; K whole blocks.

    Three or four PRODUCTS a block, the small ones first. Matrix units truncate where they add, always the same way; so
    a block's sum, as many times BK products long, leaves them, and is added to the total with rounding.
    """
    BM: tl.constexpr = BLOCKS[0]
    BN: tl.constexpr = BLOCKS[1]
    BK: tl.constexpr = BLOCKS[2]
    totals = tl.zeros((BM, BN), tl.float32)
    for p in range(0, K, BK):
        a_high, a_low = a.load([i, p]), a.load([i, K + p])
        b_high, b_low = b.load([j, p]), b.load([j, K + p])
        if PRODUCTS == 4:
            part = tl.dot(a_low, b_high.T, tl.dot(a_low, b_low.T))
        else:
            part = tl.dot(a_low, b_high.T)
        part = tl.dot(a_high, b_low.T, part)
        totals += tl.dot(a_high, b_high.T, part)
    return totals


@triton.jit
def product(a, b, out, bias, residual, shape, BLOCKS: tl.constexpr, FORM: tl.constexpr):
    """out (M, N) = activation(a (M, K) @ b (N, K)^T + residual + bias). a, b: descriptors; shape: (M, N, K).

    BLOCKS: rows, columns and depth of a tile, tiles of a group. FORM: 1, or the number of limb products; "bulk", out is
    a descriptor, or "alone", it is a pointer; activation.
    """
    M, N, K = shape
    BM: tl.constexpr = BLOCKS[0]
    BN: tl.constexpr = BLOCKS[1]
    PRODUCTS: tl.constexpr = FORM[0]
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        i, j = place(tile, M, N, BLOCKS)
        if PRODUCTS == 1:
            totals = sums(a, b, i, j, K, BLOCKS)
        else:
            totals = limb_sums(a, b, i, j, K, BLOCKS, PRODUCTS)
        write(totals, out, i, j, (bias, residual), (M, N), FORM)


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

"""Products of tiles on matrix units, in Triton: one program per multiprocessor computes one tile after another."""

import triton
import triton.language as tl

from tilewright.ops.gemm.tile.epilogue import finish


@triton.jit
def place(tile, M, N, block: tl.constexpr):
    """(row, column) of a tile's first element. Tiles are numbered down columns of block.group tiles: programs that run
    at the same time then share rows of a and of b, which stay in L2."""
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tile // (block.group * across) * block.group
    height = min(down - first, block.group)
    return (first + tile % (block.group * across) % height) * BM, tile % (block.group * across) // height * BN


@triton.jit
def write(totals, out, i, j, extras, shape, form: tl.constexpr):
    """Finish a tile of sums and store it at (i, j): by a bulk copy if out is a descriptor, else by masked stores."""
    M, N = shape
    ACTIVATION: tl.constexpr = form.activation
    rows, columns = i + tl.arange(0, totals.shape[0]), j + tl.arange(0, totals.shape[1])
    totals = finish(totals, rows, columns, extras, shape, ACTIVATION)
    if form.end == "bulk":
        out.store([i, j], totals.to(out.dtype))
    else:
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        at = out + rows.to(tl.int64)[:, None] * N + columns[None, :]
        tl.store(at, totals.to(out.dtype.element_ty), mask=inside)


@triton.jit
def sums(a, b, i, j, K, block: tl.constexpr):
    """A tile of a @ b^T at (i, j), float32. The sums stay in registers along all of K."""
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    BK: tl.constexpr = block.BK
    totals = tl.zeros((BM, BN), tl.float32)
    for p in range(0, K, BK):
        totals = tl.dot(a.load([i, p]), b.load([j, p]).T, totals, input_precision="tf32")
    return totals


@triton.jit
def limb_sums(a, b, i, j, K, block: tl.constexpr, PRODUCTS: tl.constexpr):
    """As `sums`, for float32 split in two bfloat16 limbs: a (M, 2 K), b (N, 2 K), high limbs first. BK divides K.

    Each block takes three or four PRODUCTS, the small ones first. Matrix units truncate their sums towards zero.
    So each block has its own sum there, and the total is added outside them, with rounding.
    """
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    BK: tl.constexpr = block.BK
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
def product(a, b, out, bias, residual, shape, block: tl.constexpr, form: tl.constexpr):
    """out (M, N) = activation(a (M, K) @ b (N, K)^T + residual + bias). a, b: descriptors; shape: (M, N, K).

    block: a `records.Block`. form: a `records.Form` whose end is "bulk" or "alone".
    """
    M, N, K = shape
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        i, j = place(tile, M, N, block)
        if form.products == 1:
            totals = sums(a, b, i, j, K, block)
        else:
            totals = limb_sums(a, b, i, j, K, block, form.products)
        write(totals, out, i, j, (bias, residual), (M, N), form)


@triton.jit
def split(x, limbs, shape, BLOCK: tl.constexpr):
    """limbs (M, 2 D) bfloat16: high and low limbs of x (M, K) float32, zeros beyond K.

    One program per BLOCK elements of a row.
    """
    K, D = shape
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(x + row * K + columns, mask=columns < K, other=0.0)
    high = number.to(tl.bfloat16)
    low = (number - high.to(tl.float32)).to(tl.bfloat16)
    tl.store(limbs + row * 2 * D + columns, high, mask=columns < D)
    tl.store(limbs + row * 2 * D + D + columns, low, mask=columns < D)

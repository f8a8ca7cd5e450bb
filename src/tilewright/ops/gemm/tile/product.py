"""Products of tiles on matrix units, in Triton: one program per multiprocessor computes one tile after another.

out (M, N) = activation(a (M, K) @ b (N, K)^T + residual + bias). The limit is the rate of the matrix units, or reading
a and b where M or N is small. It is slower than `hopper` on Hopper, where all warps of a program wait while they write
a tile.
"""

import triton
import triton.language as tl

from tilewright.ops.core.gpu.early import wait_for_inputs
from tilewright.ops.gemm.tile.epilogue import activate, finish, store_peaks
from tilewright.ops.gemm.tile.records import Extras


@triton.jit
def tile_corner(tile, M, N, block: tl.constexpr):
    """(row, column) of a tile's first element. Tiles are numbered down columns of block.group tiles: programs that run
    at the same time then share rows of a and of b, which stay in L2."""
    down, across = tl.cdiv(M, block.BM), tl.cdiv(N, block.BN)
    first = tile // (block.group * across) * block.group
    height = min(down - first, block.group)
    row, column = first + tile % (block.group * across) % height, tile % (block.group * across) // height
    return row * block.BM, column * block.BN


@triton.jit
def write(totals, out, i, j, extras, sizes, form: tl.constexpr):
    """Finish a tile of sums and store it at (i, j): by a bulk copy if out is a descriptor, otherwise by masked
    stores."""
    ACTIVATION: tl.constexpr = form.activation
    rows, columns = i + tl.arange(0, totals.shape[0]), j + tl.arange(0, totals.shape[1])
    totals = finish(totals, rows, columns, extras, sizes, ACTIVATION)
    if form.end == "bulk_copy":
        if extras.peaks is not None:
            store_peaks(totals, extras.peaks, rows, columns, sizes)
        out.store([i, j], totals.to(out.dtype))
    else:
        store_tile(totals, out, rows, columns, extras, sizes)


@triton.jit
def store_tile(totals, out, rows, columns, extras, sizes):
    """Store a finished tile by masked stores, and its peaks."""
    if extras.peaks is not None:
        store_peaks(totals, extras.peaks, rows, columns, sizes)
    inside = (rows < sizes.M)[:, None] & (columns < sizes.N)[None, :]
    pointers = out + rows.to(tl.int64)[:, None] * sizes.stride + columns[None, :]
    tl.store(pointers, totals.to(out.dtype.element_ty), mask=inside)


@triton.jit
def sums(a, b, i, j, K, block: tl.constexpr, PRODUCTS: tl.constexpr):
    """A tile of a @ b^T at (i, j), float32. PRODUCTS: see `records.Form`."""
    if PRODUCTS == 1:
        return whole_sums(a, b, i, j, K, block)
    else:
        return limb_sums(a, b, i, j, K, block, PRODUCTS)


@triton.jit
def whole_sums(a, b, i, j, K, block: tl.constexpr):
    """As `sums`, for operands that are multiplied as they are. The sums stay in registers until all of K is added."""
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    totals = tl.zeros((BM, BN), tl.float32)
    for p in range(0, K, block.BK):
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
    totals = tl.zeros((BM, BN), tl.float32)
    for p in range(0, K, block.BK):
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
def product(a, b, out, extras, residual, sizes, block: tl.constexpr, form: tl.constexpr):
    """out (M, N) = activation(a (M, K) @ b (N, K)^T + residual + bias).

    a, b: descriptors of boxes (BM, BK) and (BN, BK), of a 16-bit dtype or float32; bfloat16 limbs as for `limb_sums`.
    out: a descriptor of boxes (BM, BN) or a pointer, see form.end; float32 or 16 bits. extras: `records.Extras` without
    the residual. residual: pointer to (M, N), or None. sizes, block, form: see `records`; form.end is "stores" or
    "bulk_copy".
    """
    wait_for_inputs()
    tiles = tl.cdiv(sizes.M, block.BM) * tl.cdiv(sizes.N, block.BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        i, j = tile_corner(tile, sizes.M, sizes.N, block)
        totals = sums(a, b, i, j, sizes.K, block, form.products)
        write(totals, out, i, j, Extras(extras.bias, residual, extras.peaks), sizes, form)


@triton.jit
def add_parts(parts, out, extras, residual, sizes, form: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """out (M, N) = activation(parts[0] + parts[1] + ... + residual + bias), added in this order.

    parts: pointer to float32 (BLOCKS, M, N), the sums of the blocks of K. The rest is as for `product`; form.end is
    "stores". One program per WIDTH columns of a row.
    """
    wait_for_inputs()
    ACTIVATION: tl.constexpr = form.activation
    rows, columns = tl.program_id(0) + tl.arange(0, 1), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    at, inside = rows.to(tl.int64)[:, None] * sizes.N + columns[None, :], (columns < sizes.N)[None, :]
    if residual is not None:
        added = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if extras.bias is not None:
        bias = tl.load(extras.bias + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    totals = tl.zeros((1, WIDTH), tl.float32)
    for _ in tl.static_range(BLOCKS):
        totals += tl.load(parts + at, mask=inside, other=0.0)
        parts += sizes.M * sizes.N
    if residual is not None:
        totals += added
    if extras.bias is not None:
        totals += bias
    totals = activate(totals, ACTIVATION)
    store_tile(totals, out, rows, columns, extras, sizes)


@triton.jit
def split(x, limbs, shape, BLOCK: tl.constexpr):
    """limbs (M, 2 D) bfloat16: high and low limbs of x (M, K) float32, zeros beyond K. shape: (K, D).

    One program per BLOCK elements of a row.
    """
    wait_for_inputs()
    K, D = shape
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    element = tl.load(x + row * K + columns, mask=columns < K, other=0.0)
    high = element.to(tl.bfloat16)
    low = (element - high.to(tl.float32)).to(tl.bfloat16)
    tl.store(limbs + row * 2 * D + columns, high, mask=columns < D)
    tl.store(limbs + row * 2 * D + D + columns, low, mask=columns < D)

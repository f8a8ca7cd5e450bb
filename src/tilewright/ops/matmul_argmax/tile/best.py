"""The largest sum of each row of a tile, and then of all tiles of a row, in Triton.

values, columns (tiles across, M): the largest sum of each row of a tile of a (M, K) @ b (N, K)^T, and its first column.
They are all that is written of the product: 8 bytes per row of a tile. The limit is the rate of the matrix units, or
reading b where M is small. Against `simt.shuffles`, which searches a written product, it saves writing and reading it.
"""

import triton
import triton.language as tl

from tilewright.ops.core.gpu.early import wait_for_inputs
from tilewright.ops.gemm.tile.epilogue import larger
from tilewright.ops.gemm.tile.product import sums, tile_corner

AT_ONCE = 1024  # results that a program of `best_tile` reads at once
NO_COLUMN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def store_best(totals, values, columns, i, j, sizes):
    """Write values and columns of a tile of sums at (i, j).

    Two passes over registers: the maximum, then the first column that equals it. Comparing pairs of value and column
    would take three times as many instructions. Sums outside the matrix are ignored: they are 0, or NaN beside an
    infinity.
    """
    rows, across = i + tl.arange(0, totals.shape[0]), j + tl.arange(0, totals.shape[1])
    totals = tl.where((across < sizes.N)[None, :], totals, float("-inf"))
    best = tl.reduce(totals, 1, larger)
    first = tl.min(tl.where(totals < best[:, None], sizes.N - 1, across[None, :]), 1)
    offsets = (j // totals.shape[1]).to(tl.int64) * sizes.M + rows
    tl.store(values + offsets, best, mask=rows < sizes.M)
    tl.store(columns + offsets, first, mask=rows < sizes.M)


@triton.jit
def best_product(a, b, values, columns, sizes, block: tl.constexpr, PRODUCTS: tl.constexpr):
    """values float32, columns int32 (tiles across, M) of a @ b^T; a, b, sizes, block as for `gemm.tile.product.product`
    and PRODUCTS as in `records.Form`."""
    wait_for_inputs()
    tiles = tl.cdiv(sizes.M, block.BM) * tl.cdiv(sizes.N, block.BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        i, j = tile_corner(tile, sizes.M, sizes.N, block)
        totals = sums(a, b, i, j, sizes.K, block, PRODUCTS)
        store_best(totals, values, columns, i, j, sizes)


@triton.jit
def best_tile(values, columns, index, value, M, tiles, ROWS: tl.constexpr, TILES: tl.constexpr):
    """index int64, value float32 (M,): the best of values, columns (tiles, M). One program per ROWS rows, which reads
    TILES results of each at once.

    The first of equals wins, and a NaN wins over all numbers.
    """
    wait_for_inputs()
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    best = tl.full((TILES, ROWS), float("-inf"), tl.float32)
    column = tl.zeros((TILES, ROWS), tl.int32)
    for start in range(0, tiles, TILES):
        which = start + tl.arange(0, TILES)
        inside = (which < tiles)[:, None] & (rows < M)[None, :]
        offsets = which.to(tl.int64)[:, None] * M + rows[None, :]
        found = tl.load(values + offsets, mask=inside, other=float("-inf"))
        found_column = tl.load(columns + offsets, mask=inside, other=NO_COLUMN)
        beats = (start == 0) | (found > best) | ((found != found) & (best == best))
        best, column = tl.where(beats, found, best), tl.where(beats, found_column, column)
    top = tl.reduce(best, 0, larger)
    first = tl.min(tl.where(best < top[None, :], NO_COLUMN, column), 0)
    tl.store(value + rows, top, mask=rows < M)
    tl.store(index + rows, first.to(tl.int64), mask=rows < M)

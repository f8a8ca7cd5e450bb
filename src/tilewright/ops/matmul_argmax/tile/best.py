"""The largest sum of each row of a tile, and then the best of all tiles of a row: Triton."""

import triton
import triton.language as tl

from tilewright.ops.gemm.tile.product import limb_sums, place, sums

LEFT = tl.constexpr(32)  # tiles' results that a program compares at once
ROWS = tl.constexpr(32)  # rows of a program


@triton.jit
def larger(x, y):
    """The larger of two, NaN if one is: one instruction."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def keep_best(totals, values, columns, i, j, shape):
    """values, columns (tiles across, M): the largest sum of each row of a tile at (i, j), and its first column.

    Two passes over registers: the maximum, then the columns that reach it. Comparing pairs of value and column would
    take three times as many instructions. Sums outside the matrix are ignored: they are 0, or NaN beside an infinity.
    """
    M, N = shape
    rows, across = i + tl.arange(0, totals.shape[0]), j + tl.arange(0, totals.shape[1])
    totals = tl.where((across < N)[None, :], totals, float("-inf"))
    best = tl.reduce(totals, 1, larger)
    first = tl.min(tl.where(totals < best[:, None], N - 1, across[None, :]), 1)
    at = (j // totals.shape[1]).to(tl.int64) * M + rows
    tl.store(values + at, best, mask=rows < M)
    tl.store(columns + at, first, mask=rows < M)


@triton.jit
def best_product(a, b, values, columns, shape, block: tl.constexpr, PRODUCTS: tl.constexpr):
    """values, columns (tiles across, M) of a (M, K) @ b (N, K)^T, tiles as in `gemm.tile.product`; `keep_best`."""
    M, N, K = shape
    BM: tl.constexpr = block.BM
    BN: tl.constexpr = block.BN
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        i, j = place(tile, M, N, block)
        if PRODUCTS == 1:
            totals = sums(a, b, i, j, K, block)
        else:
            totals = limb_sums(a, b, i, j, K, block, PRODUCTS)
        keep_best(totals, values, columns, i, j, (M, N))


@triton.jit
def best_tile(values, columns, index, value, M, tiles):
    """index, value (M,): the best of values, columns (tiles, M). One program per block of rows.

    The first of equals wins, and a NaN wins over all numbers.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    best = tl.full((LEFT, ROWS), float("-inf"), tl.float32)
    place = tl.zeros((LEFT, ROWS), tl.int32)
    for start in range(0, tiles, LEFT):
        which = start + tl.arange(0, LEFT)
        inside = (which < tiles)[:, None] & (rows < M)[None, :]
        at = which.to(tl.int64)[:, None] * M + rows[None, :]
        found = tl.load(values + at, mask=inside, other=float("-inf"))
        there = tl.load(columns + at, mask=inside, other=0x7FFFFFFF)
        beats = (start == 0) | (found > best) | ((found != found) & (best == best))
        best, place = tl.where(beats, found, best), tl.where(beats, there, place)
    top = tl.reduce(best, 0, larger)
    first = tl.min(tl.where(best < top[None, :], 0x7FFFFFFF, place), 0)
    tl.store(value + rows, top, mask=rows < M)
    tl.store(index + rows, first.to(tl.int64), mask=rows < M)

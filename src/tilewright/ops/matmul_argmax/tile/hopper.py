"""`best.best_product` on Hopper, in Gluon, from the parts of `gemm.tile.hopper`: two warps load tiles, two warpgroups
multiply half a tile's rows each and search them while the other one uses the matrix unit.

The limit is the rate of the matrix units. It gains little where each program has one tile: nothing overlaps its search.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from tilewright.ops.gemm.tile.hopper import (
    HALF_ROWS,
    allocate_stages,
    load_tiles,
    multiply_half,
    tile_corner,
    wait_for_inputs,
)
from tilewright.ops.gemm.tile.hopper_ends import larger


@gluon.jit
def store_best(totals, values, columns, i, j, sizes):
    """As `best.store_best`, for half a tile. Only the last column of tiles has sums to ignore."""
    LAYOUT: gl.constexpr = totals.type.layout
    COLUMNS: gl.constexpr = totals.type.shape[1]
    across = j + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))[None, :]
    if j + COLUMNS > sizes.N:
        totals = gl.where(across < sizes.N, totals, float("-inf"))
    best = gl.reduce(totals, 1, larger)
    first = gl.min(gl.where(totals < best[:, None], sizes.N - 1, across), 1)
    rows = i + gl.arange(0, totals.type.shape[0], gl.SliceLayout(1, LAYOUT))
    offsets = (j // COLUMNS).to(gl.int64) * sizes.M + rows
    gl.store(values + offsets, best, mask=rows < sizes.M)
    gl.store(columns + offsets, first, mask=rows < sizes.M)


@gluon.jit
def search_tiles(values, columns, stages, sizes, block: gl.constexpr, form: gl.constexpr, HALF: gl.constexpr):
    """A multiplying warpgroup: compute and search the upper (HALF 0) or lower (1) half of each tile of this program, if
    a tile has this half."""
    if HALF * HALF_ROWS < block.BM:
        wait_for_inputs()
        step = 0
        tiles = gl.cdiv(sizes.M, block.BM) * gl.cdiv(sizes.N, block.BN)
        for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
            i, j = tile_corner(tile, sizes.M, sizes.N, block)
            totals, step = multiply_half(stages, step, sizes.K, block, form.products, HALF)
            store_best(totals, values, columns, i + HALF * HALF_ROWS, j, sizes)


@gluon.jit
def best_product(a, b, values, columns, sizes, block: gl.constexpr, form: gl.constexpr):
    """As `best.best_product`. a, b: descriptors of boxes (HALF_ROWS, BK) and (BN, BK). form: products and stages of
    `records.Form`."""
    LIMBS: gl.constexpr = 1 if form.products == 1 else 2
    stages = allocate_stages(a, b, block, form)
    fence_async_shared()
    gl.warp_specialize(
        [
            (search_tiles, (values, columns, stages, sizes, block, form, 0)),
            (search_tiles, (values, columns, stages, sizes, block, form, 1)),
            (load_tiles, (a, stages.a_tiles, stages, sizes, block, LIMBS, True, True)),
            (load_tiles, (b, stages.b_tiles, stages, sizes, block, LIMBS, False, False)),
        ],
        [4, 1, 1],
        [240, 24, 24],
    )

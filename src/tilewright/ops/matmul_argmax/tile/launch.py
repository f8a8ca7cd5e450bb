"""Starts the tile kernels on torch tensors: on a GPU's current stream, or in Triton's interpreter on the CPU."""

from functools import lru_cache

from tilewright.ops.core.gpu.early import early
from tilewright.ops.core.gpu.tensors import multiprocessors
from tilewright.ops.gemm.operands import Rows
from tilewright.ops.gemm.tile import launch as products
from tilewright.ops.gemm.tile.launch import Shape, Tile
from tilewright.ops.gemm.tile.records import HALF_ROWS, Block, Form, Sizes
from tilewright.ops.gemm.tile.start import describe, hopper_descriptor, special, start, triton_descriptor
from tilewright.ops.matmul_argmax.tile import best

# as `gemm.tile.launch.TILES`, with more stages, as no results are buffered; heads are too wide for tiles of 64 rows
TILES = Tile(128, 256, 1.0, 4), Tile(128, 128, 0.52, 6), Tile(128, 64, 0.42, 8)


def search(a, prepared, index, value, *, specialized: bool = False, shape: Shape | None = None) -> None:
    """index, value (M,) of the largest element of each row of a @ prepared.weights.

    specialized: use Hopper's kernel, in which warps have different jobs. shape: tiles for measurements, None for
    `shape_for`'s.
    """
    import torch

    weights, M = prepared.weights, len(a)
    limbs = 2 if weights.dtype == "float32" else 1
    split = products.left_limbs if limbs == 2 else products.left_operand
    left, N, K = split(Rows(a, None), weights), weights.N, weights.data.shape[1] // limbs
    s = shape or shape_for(products.LINE // left.element_size(), N, M, limbs=limbs == 2, specialized=specialized)
    across = -(-N // s.BN)
    values, columns = value.new_empty(across, M), value.new_empty((across, M), dtype=torch.int32)
    grid = (min(multiprocessors(), -(-M // s.BM) * across), 1)
    block, height = Block(s.BM, s.BN, s.BK, s.group), HALF_ROWS if specialized else s.BM
    operands = describe(left, [height, s.BK]), describe(weights.data, [s.BN, s.BK])
    key = ("best_product", specialized, limbs, left.device, left.dtype, special(M), N, K, s)
    arguments, count = (*operands, values, columns, Sizes(M, N, K), block), products.products_of(weights)
    if specialized:
        from tilewright.ops.gemm.tile.hopper import REGISTERS
        from tilewright.ops.matmul_argmax.tile import hopper

        arguments = (*arguments, Form(count, "search", None, s.stages))
        options = {"num_warps": 4, "maxnreg": REGISTERS, **early(M)}
        start(hopper.best_product, key, grid, arguments, hopper_descriptor, **options)
    else:
        options = {"num_warps": s.warps, "num_stages": s.stages, **early(M)}
        start(best.best_product, key, grid, (*arguments, count), triton_descriptor, **options)
    rows = 8 if M >= 8 else 1  # eight adjacent results fill the 32 bytes that a GPU reads at least
    key = ("best_tile", left.device, special(M), across, rows, index.data_ptr() % 16, value.data_ptr() % 16)
    found = values, columns, index, value, M, across, rows, best.AT_ONCE // rows
    start(best.best_tile, key, (-(-M // rows), 1), found, **early(M))


@lru_cache(maxsize=4096)
def shape_for(depth: int, N: int, M: int, *, limbs: bool, specialized: bool) -> Shape:
    """The tiles of a product (M, N), see `gemm.tile.launch.shape_for`. Neither the order of a sum nor the column of
    equal sums depends on them."""
    if limbs and not specialized:
        return Shape(128, 128, depth // 2, 3)
    tiles = products.LIMB_TILES if limbs else TILES if specialized else products.PORTABLE_TILES
    return products.quickest(tiles, M, N, depth)

"""Starts the tile kernels on torch tensors: on a GPU's current stream, or in Triton's interpreter on the CPU."""

from functools import lru_cache

from tilewright.ops.core.gpu.tensors import multiprocessors
from tilewright.ops.gemm.operands import Rows
from tilewright.ops.gemm.tile import launch as matmul
from tilewright.ops.gemm.tile.launch import Shape
from tilewright.ops.gemm.tile.records import Block, Form
from tilewright.ops.gemm.tile.start import describe, hopper_descriptor, special, start, triton_descriptor
from tilewright.ops.matmul_argmax.tile import best

# columns of a tile -> stages that fit; what the tiles take is in matmul's COSTS and LIMB_COSTS
STAGES = {256: 4, 128: 6, 64: 8}
LIMB_STAGES = {128: 3, 64: 4}


def search(a, prepared, index, value, *, specialized: bool = False, shape: Shape | None = None) -> None:
    """index, value (M,) = the largest of each row of a @ prepared.weights.

    specialized: by Hopper's kernel, in which warps have different jobs. shape: None for `shape_for`'s; another for
    measurements.
    """
    import torch

    weights, M = prepared.weights, len(a)
    limbs = 2 if weights.dtype == "float32" else 1
    split = matmul.left_limbs if limbs == 2 else matmul.left_operand
    left, N, K = split(Rows(a, None), weights), weights.N, weights.data.shape[1] // limbs
    products = matmul.products_of(weights)
    s = shape or shape_for(matmul.LINE // left.element_size(), N, M, limbs=limbs == 2, specialized=specialized)
    across = -(-N // s.BN)
    values, columns = value.new_empty(across, M), value.new_empty((across, M), dtype=torch.int32)
    grid = (min(multiprocessors(), -(-M // s.BM) * across), 1)
    block, height = Block(s.BM, s.BN, s.BK, s.group), s.BM // 2 if specialized else s.BM
    operands = describe(left, [height, s.BK]), describe(weights.data, [s.BN, s.BK])
    key = ("best_product", specialized, limbs, left.device, left.dtype, special(M), N, K, s)
    if specialized:
        from tilewright.ops.gemm.tile import hopper

        form = Form(products, "best", None, s.stages)
        arguments = (*operands, (values, columns), None, None, (M, N, K), block, form)
        start(hopper.product, key, grid, arguments, hopper_descriptor, num_warps=4, maxnreg=hopper.REGISTERS)
    else:
        arguments, options = (*operands, values, columns, (M, N, K), block, products), {"num_warps": s.warps}
        start(best.best_product, key, grid, arguments, triton_descriptor, num_stages=s.stages, **options)
    key = ("best_tile", left.device, special(M), across, index.data_ptr() % 16, value.data_ptr() % 16)
    start(best.best_tile, key, (-(-M // best.ROWS.value), 1), (values, columns, index, value, M, across))


@lru_cache(maxsize=4096)
def shape_for(depth: int, N: int, M: int, *, limbs: bool, specialized: bool) -> Shape:
    """The shape of the tiles of a product (M, N). depth: elements in a LINE.

    No sum's order, nor which of equals is kept, depends on it.
    """
    if specialized and not limbs:
        columns = matmul.quickest(matmul.COSTS, M, N)
        return Shape(128, columns, depth, STAGES[columns])
    if specialized:
        columns = matmul.quickest(matmul.LIMB_COSTS, M, N)
        return Shape(128, columns, depth, LIMB_STAGES[columns])
    if limbs:
        return Shape(128, 128, depth // 2, 3)
    return Shape(128, matmul.quickest({256: 1.0, 128: 0.52}, M, N), depth, 3)

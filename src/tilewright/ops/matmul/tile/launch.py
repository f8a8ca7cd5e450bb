"""Starts the tile kernels on torch tensors: on a GPU's current stream, or in Triton's interpreter on the CPU."""

from dataclasses import dataclass

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewright.ops._device import multiprocessors, torch_dtype
from tilewright.ops.matmul.operands import Epilogue, Packed, Rows
from tilewright.ops.matmul.tile import product

LINE = 128  # bytes of a tile's row: the longest that a bulk copy lays out without bank conflicts
LIMB_BLOCK = 64  # of K: what limbs are padded to, a LINE of them
ALIGNMENT = 16  # bytes: what a bulk copy wants of addresses and of rows
CHUNK = 1024  # numbers of a row that a program splits


def transpose(b, rung: str, dtype: str) -> Packed:
    """b (K, N) as (N, K') in the class's dtype: K' is K and zeros up to 16 bytes, at least one unit."""
    K, N = b.shape
    data = b.new_zeros(N, _aligned(K, torch_dtype(dtype)), dtype=torch_dtype(dtype))
    data[:, :K] = b.T
    return Packed(rung, K, N, dtype, data)


def transpose_limbs(b, rung: str) -> Packed:
    """b (K, N) float32 as bfloat16 (N, 2 K'): high limbs, then low ones; K' is K and zeros up to whole blocks."""
    import torch

    K, N = b.shape
    depth = max(-(-K // LIMB_BLOCK), 1) * LIMB_BLOCK
    data = b.new_zeros(N, 2 * depth, dtype=torch.bfloat16)
    data[:, :K] = b.T
    data[:, depth : depth + K] = b.T.float() - data[:, :K].float()
    return Packed(rung, K, N, "float32", data)


def _aligned(K: int, dtype) -> int:
    unit = ALIGNMENT // dtype.itemsize
    return max(-(-K // unit), 1) * unit


def left_operand(rows: Rows, weights: Packed):
    """a in the weights' dtype, as wide as they are, contiguous: itself where it is all that."""
    a, dtype, depth = rows.plain(), weights.data.dtype, weights.data.shape[1]
    if a.shape[1] == depth and a.data_ptr() % ALIGNMENT == 0:
        return a.to(dtype).contiguous()
    wide = a.new_zeros(len(a), depth, dtype=dtype)
    wide[:, : a.shape[1]] = a
    return wide


def left_limbs(rows: Rows, weights: Packed):
    """a (M, K) as bfloat16 (M, 2 K'), split as the weights are."""
    a, depth = rows.plain().float().contiguous(), weights.data.shape[1] // 2
    limbs = a.new_empty(len(a), 2 * depth, dtype=weights.data.dtype)
    product.split[(len(a), -(-depth // CHUNK))](a, limbs, (a.shape[1], depth), CHUNK)
    return limbs


@dataclass(frozen=True)
class Shape:
    """How a product is cut. A sum's order along K depends on none of it, so it may follow the number of rows."""

    BM: int
    BN: int
    BK: int
    stages: int  # tiles of either operand on their way
    group: int = 8  # tiles down before the next column of them
    warps: int = 8


# columns of a tile -> what it takes, beside the widest; H200, 4096^3, November 2026
COSTS = {256: 1.0, 128: 0.52, 64: 0.42}
LIMB_COSTS = {128: 1.0, 64: 0.63}


def shape_for(weights: Packed, M: int, *, room: bool) -> Shape:
    """The shape of the tiles, by the rung that prepared the weights.

    room: shared memory is needed for nothing but operands and 16-bit results.

    Programs take tiles in turns, and the last turn may leave most of them idle: narrower tiles, which multiply more
    slowly, then finish earlier.
    """

    def turns(columns: int) -> int:
        return -(-triton.cdiv(M, 128) * triton.cdiv(weights.N, columns) // multiprocessors())

    def least(costs: dict[int, float]) -> int:
        return min(costs, key=lambda columns: turns(columns) * costs[columns])

    depth = LINE // weights.data.element_size()
    if weights.rung == "tile.specialized":
        columns = least(COSTS)
        return Shape(128, columns, depth, {256: 3, 128: 5, 64: 6}[columns])
    if weights.rung == "tile.specialized_limbs":
        columns = least(LIMB_COSTS)
        return Shape(128, columns, depth, {128: 3, 64: 4}[columns])
    if weights.rung == "tile.limbs":
        return Shape(128, 128, depth // 2, 3)  # two limbs of either
    return Shape(128, 256 if room and least({256: COSTS[256], 128: COSTS[128]}) == 256 else 128, depth, 3)


def multiply(rows: Rows, weights: Packed, out, epilogue: Epilogue, shape: Shape | None = None) -> None:
    """out (M, N) = activation(rows @ weights + residual + bias); out is float32 or 16 bits wide, contiguous.

    shape: other than the rung's own, for measurements.
    """
    limbs = 2 if weights.dtype == "float32" else 1
    a = left_limbs(rows, weights) if limbs == 2 else left_operand(rows, weights)
    M, N = out.shape
    K, extras = (
        weights.data.shape[1] // limbs,
        tuple(x if x.numel() else None for x in (epilogue.bias, epilogue.residual)),
    )
    room = out.element_size() == 2 and not epilogue.residual.numel()
    s = shape or shape_for(weights, M, room=room)
    specialized = "specialized" in weights.rung
    aligned = N * out.element_size() % ALIGNMENT == 0 and out.data_ptr() % ALIGNMENT == 0
    bulk = aligned and (out.element_size() == 2 or not specialized)  # a float32 tile leaves no room for stages
    grid = (min(multiprocessors(), triton.cdiv(M, s.BM) * triton.cdiv(N, s.BN)),)
    blocks, height = (s.BM, s.BN, s.BK, s.group), s.BM // 2 if specialized else s.BM
    describe = _hopper_descriptor if specialized else TensorDescriptor.from_tensor
    target = describe(out, [height, s.BN]) if bulk else out
    left, right = describe(a, [height, s.BK]), describe(weights.data, [s.BN, s.BK])
    if specialized:
        from tilewright.ops.matmul.tile import hopper

        form = (limbs, bulk, epilogue.activation)
        hopper.product[grid](
            left, right, target, extras, (M, N, K), blocks, s.stages, form, num_warps=4, maxnreg=hopper.REGISTERS
        )
    else:
        kernel = product.limb_product if limbs == 2 else product.product
        options = {"num_warps": s.warps, "num_stages": s.stages}
        kernel[grid](left, right, target, extras, (M, N, K), blocks, bulk, epilogue.activation, **options)


def _hopper_descriptor(tensor, box: list[int]):
    """A descriptor that says how a box lies in shared memory."""
    import torch
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as HopperDescriptor

    kind = {torch.float32: gl.float32, torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[tensor.dtype]
    return HopperDescriptor.from_tensor(tensor, box, gl.NVMMASharedLayout.get_default_for(box, kind))

"""Starts the tile kernels on torch tensors: on a GPU's current stream, or in Triton's interpreter on the CPU."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from tilewright.ops.core.gpu.early import early
from tilewright.ops.core.gpu.tensors import multiprocessors, torch_dtype
from tilewright.ops.gemm.operands import Epilogue, Packed, Rows
from tilewright.ops.gemm.tile import product
from tilewright.ops.gemm.tile.records import HALF_ROWS, Block, Extras, Form, Sizes
from tilewright.ops.gemm.tile.start import ALIGNMENT, describe, hopper_descriptor, special, start, triton_descriptor

LINE = 128  # bytes of a row of a tile: the longest that a bulk copy stores without bank conflicts
LIMB_BLOCK = 64  # limbs are padded along K to a multiple of this, a LINE of bfloat16
LONG = 768  # K from which three limb products hold the error bound; see matmul's README
CHUNK = 1024  # elements of a row that a program splits into limbs
ADDED = 64  # elements of a row that a program of `product.add_parts` computes
SHARING = 4  # programs that share K, if the GPU has enough; a second kernel adds their sums
MOST_SHARED = 64  # stages along K: that kernel's loop is unrolled, and takes minutes to compile for ten times as many


def transpose(b, rung: str, dtype: str) -> Packed:
    """b (K, N) as (N, K') in the class's dtype: K' is K and zeros up to 16 bytes, at least one unit."""
    K, N = b.shape
    unit = ALIGNMENT // torch_dtype(dtype).itemsize
    data = b.new_zeros(N, max(-(-K // unit), 1) * unit, dtype=torch_dtype(dtype))
    data[:, :K] = b.T
    return Packed(rung, K, N, dtype, settled(data))


def transpose_limbs(b, rung: str, dtype: str) -> Packed:
    """b (K, N) float32 as bfloat16 (N, 2 K'): high limbs, then low ones; K' is K and zeros up to whole blocks."""
    import torch

    K, N = b.shape
    depth = max(-(-K // LIMB_BLOCK), 1) * LIMB_BLOCK
    data = b.new_zeros(N, 2 * depth, dtype=torch.bfloat16)
    data[:, :K] = b.T
    data[:, depth : depth + K] = b.T.float() - data[:, :K].float()
    return Packed(rung, K, N, "float32", settled(data))


def settled(weights):
    """weights, after one more operation on the stream, which does not write them. A product may load its weights while
    kernels ahead of it still run or wait. All of these start when this operation has ended, so the weights are written
    by then."""
    weights[:1, :1].clone()
    return weights


def left_operand(rows: Rows, weights: Packed):
    """a in the weights' dtype and padded depth, contiguous; a itself where possible."""
    return padded(rows.plain(), weights.data.dtype, weights.data.shape[1])


def padded(a, dtype, depth: int):
    """a (M, K) as (M, depth) of a dtype, contiguous, with zeros from K on; a itself where possible."""
    if a.shape[1] == depth and a.stride() == (depth, 1) and a.data_ptr() % ALIGNMENT == 0:
        return a.to(dtype)
    wide = a.new_zeros(len(a), depth, dtype=dtype)
    wide[:, : a.shape[1]] = a
    return wide


def left_limbs(rows: Rows, weights: Packed):
    """a (M, K) as bfloat16 (M, 2 K'), split like the weights."""
    a, depth = rows.plain().float().contiguous(), weights.data.shape[1] // 2
    M, K = a.shape
    limbs = a.new_empty(M, 2 * depth, dtype=weights.data.dtype)
    key = ("split", a.device, K, depth, a.data_ptr() % ALIGNMENT)
    start(product.split, key, (M, -(-depth // CHUNK)), (a, limbs, (K, depth), CHUNK), **early(M))
    return limbs


def products_of(weights: Packed) -> int:
    """Products per block of K: one; with limbs three, or four where K is short."""
    return 1 if weights.dtype != "float32" else 3 if weights.K >= LONG else 4


@dataclass(frozen=True)
class Shape:
    """The tiles of a product. The order of a sum does not depend on them, so they may depend on the number of rows."""

    BM: int
    BN: int
    BK: int
    stages: int  # blocks of K in flight
    group: int = 8  # tiles down before the next column of them
    warps: int = 8
    parts: int = 1  # programs that share K: limbs of few rows


class Tile(NamedTuple):
    """A tile that a product can be cut into. time: relative to the largest tile. stages: as many as fit in shared
    memory. lines: LINEs of K in a stage. They are multiplied without a wait between them."""

    rows: int
    columns: int
    time: float
    stages: int
    lines: int = 1


# November 2026, H200, 4096^3; for tiles of 64 rows an H100 and products of GPT-2 with up to 128 rows
TILES = Tile(128, 256, 1.0, 3), Tile(128, 128, 0.52, 5), Tile(128, 64, 0.42, 6), Tile(64, 64, 0.35, 6, 2)
LIMB_TILES = Tile(128, 128, 1.0, 3), Tile(128, 64, 0.63, 4), Tile(64, 64, 0.53, 6)
FEW_TILES = Tile(8, 64, 0.25, 6, 4), Tile(16, 64, 0.26, 5, 4), Tile(32, 64, 0.29, 4, 4)  # for `hopper_few`
FEW_LIMB_TILES = Tile(8, 64, 0.31, 6, 2), Tile(16, 64, 0.37, 5, 2), Tile(32, 64, 0.46, 4, 2)
PORTABLE_TILES = Tile(128, 256, 1.0, 3), Tile(128, 128, 0.52, 3)  # for `product`


def quickest(tiles: Iterable[Tile], M: int, N: int, depth: int) -> Shape:
    """The one of `tiles` with which a product is finished first.

    Programs take one tile per round, and most of them may be idle in the last round. Smaller tiles, which multiply
    more slowly, then finish earlier. Tiles of few rows should leave half of the multiprocessors to the next kernel,
    which loads its weights there in advance.
    """

    def time_of(tile: Tile) -> float:
        count = -(-M // tile.rows) * -(-N // tile.columns)
        if tile.rows < HALF_ROWS:
            return max(1, 2 * count / multiprocessors()) * tile.time
        return -(-count // multiprocessors()) * tile.time

    best = min(tiles, key=time_of)
    return Shape(best.rows, best.columns, depth * best.lines, best.stages)


@lru_cache(maxsize=4096)
def shape_for(depth: int, N: int, M: int, K: int, *, limbs: bool, specialized: bool, narrow: bool) -> Shape:
    """The tiles of a product (M, N) of depth K.

    depth: elements in a LINE. limbs: float32 operands split in two. specialized: for the kernel in `hopper`. narrow:
    results need so much shared memory that 256 columns do not fit.
    """
    if limbs and not specialized:
        return Shape(128, 128, depth // 2, 3)  # two limbs of each operand
    tiles = LIMB_TILES + FEW_LIMB_TILES if limbs else TILES + FEW_TILES if specialized else PORTABLE_TILES
    shape = quickest([tile for tile in tiles if tile.columns < 256 or not narrow], M, N, depth)
    if not limbs or shape.BM >= HALF_ROWS:
        return shape
    stages, tiles_of_out = -(-K // shape.BK), -(-M // shape.BM) * -(-N // shape.BN)
    if SHARING * tiles_of_out > 3 * multiprocessors() // 4 or not SHARING <= stages <= MOST_SHARED:
        return shape
    each = -(-stages // SHARING)
    return replace(shape, parts=-(-stages // each))


def multiply(
    rows: Rows, weights: Packed, out, epilogue: Epilogue, *, specialized: bool = False, shape: Shape | None = None
) -> None:
    """out (M, N) = activation(rows @ weights + residual + bias); out is float32 or 16 bits wide, its rows may have a
    stride.

    specialized: use `hopper.product`, in which warps have different jobs, or `hopper_few.product_of_few` where tiles
    have fewer than 64 rows. shape: tiles for measurements, None for `shape_for`'s.
    """
    limbs, word = 2 if weights.dtype == "float32" else 1, out.element_size()
    M, N, K = *out.shape, weights.data.shape[1] // limbs
    bias, residual = (x if x.numel() else None for x in (epilogue.bias, epilogue.residual))
    end = _end(out, residual, limbs=limbs == 2, specialized=specialized)
    narrow = word == 4 or residual is not None if not specialized else word == 4 and end == "moving_warp"
    line = LINE // weights.data.element_size()
    s = shape or shape_for(line, N, M, K, limbs=limbs == 2, specialized=specialized, narrow=narrow)
    if specialized and s.BM < HALF_ROWS:
        multiply_few(rows, weights, out, epilogue, s)
        return
    form = Form(products_of(weights), end, epilogue.activation, s.stages)
    kinds = _kinds(out, bias, residual, epilogue.peaks)
    key = (specialized, limbs, out.device, weights.data.dtype, kinds, form, special(M), N, K, out.stride(0), s)
    grid = (min(multiprocessors(), -(-M // s.BM) * -(-N // s.BN)), 1)
    a = left_limbs(rows, weights) if limbs == 2 else left_operand(rows, weights)
    height, wide = HALF_ROWS if specialized else s.BM, LINE // word if end == "moving_warp" else s.BN
    box = min(s.BK, line) if specialized else s.BK  # Hopper's kernel loads a LINE at a time
    operands = describe(a, [height, box]), describe(weights.data, [s.BN, box])
    target = out if end == "stores" else describe(out, [height, wide])
    added = Extras(bias, None, epilogue.peaks), describe(residual, [height, wide]) if end == "moving_warp" else residual
    arguments = (*operands, target, *added, Sizes(M, N, K, out.stride(0)), Block(s.BM, s.BN, s.BK, s.group), form)
    if specialized:
        from tilewright.ops.gemm.tile import hopper

        options = {"num_warps": 4, "maxnreg": hopper.REGISTERS, **early(M)}
        start(hopper.product, ("product", *key), grid, arguments, hopper_descriptor, **options)
    else:
        options = {"num_warps": s.warps, "num_stages": s.stages, **early(M)}
        start(product.product, ("product", *key), grid, arguments, triton_descriptor, **options)


def multiply_few(rows: Rows, weights: Packed, out, epilogue: Epilogue, s: Shape) -> None:
    """As `multiply`, by `hopper_few.product_of_few`. If programs share K, they store the sums of their blocks, and a
    second kernel adds them."""
    from tilewright.ops.gemm.tile import hopper_few

    limbs, line = 2 if weights.dtype == "float32" else 1, LINE // weights.data.element_size()
    M, N, K = *out.shape, weights.data.shape[1] // limbs
    plain, depth = torch_dtype("float32"), -(-weights.K // 4) * 4  # rows of whole 16 bytes
    a = left_operand(rows, weights) if limbs == 1 else padded(rows.plain(), plain, depth)
    operands = describe(weights.data, [s.BN, line]), describe(a, [s.BM, LINE // a.element_size()])
    bias, residual = (x if x.numel() else None for x in (epilogue.bias, epilogue.residual))
    form = Form(products_of(weights), "stores", epilogue.activation, s.stages)
    kinds = _kinds(out, bias, residual, epilogue.peaks)
    key = (limbs, out.device, weights.data.dtype, kinds, form, special(M), N, K, out.stride(0), s)
    grid, block = (min(multiprocessors(), -(-M // s.BM) * -(-N // s.BN)), s.parts), Block(s.BN, s.BM, s.BK, s.group)
    options = {"num_warps": 4, "maxnreg": hopper_few.REGISTERS, **early(M)}
    finish, sizes = (out, Extras(bias, None, epilogue.peaks), residual), Sizes(N, M, K, out.stride(0))
    if s.parts == 1:
        arguments = (*operands, *finish, sizes, block, form)
        start(hopper_few.product_of_few, ("few", *key), grid, arguments, hopper_descriptor, **options)
    else:
        parts = a.new_empty(K // LIMB_BLOCK, M, N)
        sums, sizes = form._replace(end="parts", activation=None), Sizes(N, M, K, N)
        arguments = (*operands, parts, Extras(None, None, None), None, sizes, block, sums)
        start(hopper_few.product_of_few, ("few", *key), grid, arguments, hopper_descriptor, **options)
        arguments = (parts, *finish, Sizes(M, N, K, out.stride(0)), form, len(parts), ADDED)
        start(product.add_parts, ("add_parts", *key), (M, -(-N // ADDED)), arguments, num_warps=2, **early(M))


def _kinds(*arrays) -> tuple:
    """The part of a key that says which of these arrays there are, and how Triton compiles them."""
    return tuple(None if x is None else (x.dtype, x.data_ptr() % ALIGNMENT) for x in arrays)


def _end(out, residual, *, limbs: bool, specialized: bool) -> str:
    """How a tile is written, see `records.Form`: by a "bulk_copy", or a "moving_warp" that also loads the residual, or
    "stores".

    Bulk copies need rows that begin and end at multiples of 16 bytes: they write whole ones. On Hopper a buffer for a
    float32 tile would leave too little shared memory for stages, unless a moving warp writes it, whose tiles are
    narrower.
    """
    sizes = (out.shape[1] * out.element_size(), out.stride(0) * out.element_size(), out.data_ptr())
    aligned = all(size % ALIGNMENT == 0 for size in sizes)
    alike = residual is not None and residual.dtype == out.dtype and residual.data_ptr() % ALIGNMENT == 0
    if specialized and not limbs and aligned and alike:
        return "moving_warp"
    return "bulk_copy" if aligned and (not specialized or out.element_size() == 2) else "stores"

"""Starts the tile kernels on torch tensors: on a GPU's current stream, or in Triton's interpreter on the CPU."""

import math
from dataclasses import dataclass
from typing import Any

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewright.ops.conv_transpose2d.fill import fill
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue, Packed
from tilewright.ops.conv_transpose2d.tile import boxes
from tilewright.ops.conv_transpose2d.tile import phases as pointers
from tilewright.ops.conv_transpose2d.tile.records import BoxTile, Form, Grid, Pixels, Sizes, Taps, Tile
from tilewright.ops.core.gpu.tensors import torch_dtype
from tilewright.ops.gemm.tile.product import split

LINE = 128  # bytes of a tile's row: the longest that a bulk copy lays out without bank conflicts
LEAST = 16  # numbers a matrix unit takes along each axis
WIDE = 128  # columns of a tile: phases side by side that fit are one product
WASTE = 1.25  # products by zeros that it may take, beside those by taps
GROUP = 2  # positions of a block each way
CHUNK = 1024  # numbers of a row that a program splits in limbs
ALIGNMENT = 16  # bytes: what a bulk copy wants of addresses and of rows


@dataclass(frozen=True, eq=False)
class Weights:
    """data: (N, taps down, taps across, depth), float32's as two limbs, (2, ...).

    table: int32 (products, 8) on the device, those of most taps first; down, then across: the first phase, the first
    tap's offset, how many there are, and where among the weights they begin. form: "phases",
    "columns", "boxes" or "blocks", see the functions that prepare them. blocks: as data, for blocks of GROUP x GROUP
    positions; None where no kernel takes them.
    """

    data: Any
    table: Any
    form: str
    blocks: Any = None

    @property
    def columns(self) -> int:
        """N: channels of the phases that are one product."""
        return self.data.shape[-4]


def prepare_phases(weights, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    """weights (KH, KW, O, C) as one product for each phase."""
    return _prepare("phases", weights, rows, columns, rung, dtype)


def prepare_columns(weights, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    """weights (KH, KW, O, C) as one product for all phases."""
    return _prepare("columns", weights, rows, columns, rung, dtype)


def prepare_boxes(weights, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    """weights (KH, KW, O, C) as one product for phases side by side, where they are narrow; x comes by bulk copies."""
    return _prepare("boxes", weights, rows, columns, rung, dtype)


def prepare_blocks(weights, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    """weights (KH, KW, O, C) as one product for all phases of GROUP x GROUP positions; x comes by bulk copies."""
    return _prepare("blocks", weights, rows, columns, rung, dtype)


def _prepare(form: str, weights, rows: Axis, columns: Axis, rung: str, dtype: str) -> Packed:
    import torch

    O, C = weights.shape[2:]
    few = form in ("columns", "blocks")
    wide = few or (form == "boxes" and columns.stride * O <= WIDE and _together(columns))
    down, across = _products(rows, together=few), _products(columns, together=wide)
    data = _taps(_taps(weights.permute(2, 0, 1, 3).float()[None, None], 3, rows, few), 4, columns, wide)
    table = sorted((*i, *l) for i in down for l in across)
    table.sort(key=lambda row: -row[2] * row[6])
    blocks = _packed(_blocks(data), C, dtype) if form == "blocks" else None
    entries = torch.tensor(table, dtype=torch.int32).to(weights.device)
    data = _packed(data.flatten(0, 2), C, dtype)
    return Packed(rung, O, C, rows, columns, dtype, Weights(data, entries, form, blocks))


def _packed(data, C: int, dtype: str):
    """data (N, taps down, taps across, C) in the class's dtype, the depth whole blocks; limbs for float32."""
    import torch

    deep = torch.nn.functional.pad(data, (0, -C % _block(C, dtype)))
    if dtype != "float32":
        return deep.to(torch_dtype(dtype)).contiguous()
    high = deep.bfloat16()
    return torch.stack([high, (deep - high.float()).bfloat16()])


def _together(axis: Axis) -> bool:
    """Whether the phases of an axis have so many taps of its window that they may be one product."""
    return axis.window[1] * axis.stride <= WASTE * axis.K


def _block(C: int, dtype: str) -> int:
    """Depth of a tile: a LINE, or what holds fewer channels."""
    return min(LINE // (4 if dtype == "tf32" else 2), max(LEAST, triton.next_power_of_2(C)))


def _products(axis: Axis, together: bool) -> list[tuple[int, int, int, int]]:
    """(phase, first tap's offset, number of taps, place of the first) of each product along an axis."""
    if together:
        return [(0, *axis.window, 0)]
    found, at = [], 0
    for phase in axis.phases:
        taps = axis.taps(phase)
        found.append((phase, taps[0][0], len(taps), at))
        at += len(taps)
    return found


def _taps(data, dim: int, axis: Axis, together: bool):
    """data with axis `dim` in the order of `_products`: phase after phase, taps ascending in what they meet; together:
    phases along axis `dim - 3`, each with its taps at their places in the window, zeros elsewhere."""
    import torch

    if not together:
        order = [k for phase in axis.phases for _, k in axis.taps(phase)]
        return data.index_select(dim, torch.tensor(order, device=data.device))
    least, count = axis.window
    shape = list(data.shape)
    shape[dim - 3], shape[dim] = axis.stride, count
    spread = data.new_zeros(shape)
    for phase in axis.phases:
        for d, k in axis.taps(phase):
            spread.select(dim - 3, phase).select(dim - 1, d - least).copy_(data.select(dim - 3, 0).select(dim - 1, k))
    return spread


def _blocks(data):
    """(N, pixels down, pixels across, C) of (s, t, O, taps down, taps across, C): for each position of a block the
    phases' taps, at their places among the pixels that the block reads."""
    s, t, O, down, across, C = data.shape
    size = GROUP, s, GROUP, t, O, down + GROUP - 1, across + GROUP - 1, C
    spread = data.new_zeros(size)
    for j in range(GROUP):
        for k in range(GROUP):
            spread[j, :, k, :, :, j : j + down, k : k + across] = data
    return spread.flatten(0, 4)


@dataclass(frozen=True)
class Shape:
    """How a product is cut: positions, columns and depth of a tile, tiles on their way, warps.

    box: images, rows and columns of positions, None where no bulk copies fetch them. An output's sum runs over taps and
    channels in the same order whatever it is.
    """

    BM: int
    BN: int
    BK: int
    stages: int
    warps: int
    box: tuple[int, int, int] | None = None

    def options(self) -> dict:
        """As Triton's launch takes them."""
        return {"num_warps": self.warps, "num_stages": self.stages}


def shape_for(weights: Packed, shape: tuple[int, ...]) -> Shape:
    """The shape of the tiles, by the rung, its columns, the class, and the shape of x.

    Images that are no whole blocks of positions, or with a depth that is none, go by pointers.
    """
    images, H, W, C = shape
    height, width = weights.rows.positions(H), weights.columns.positions(W)
    block, N = _block(weights.C, weights.dtype), weights.data.columns
    limbs = weights.dtype == "float32"
    if weights.data.form == "blocks" and not (H % GROUP or W % GROUP or C % block):
        BM = 128 if limbs else 256
        return Shape(BM, 64, block, 2, BM // 32, box_for(BM, -(-height // GROUP), -(-width // GROUP)))
    if weights.data.form == "boxes":
        BM = 128 if limbs else 256
        return Shape(BM, 128 if N > 64 else 64, block, 3, 8, small_box(BM, images, height, width))
    if N <= LEAST:
        return Shape(128, LEAST, min(block, 32) if limbs else block, 3, 4)
    if N <= 64:
        return Shape(128, triton.next_power_of_2(N), min(block, 32) if limbs else block, 3, 4)
    return Shape(128, 128, min(block, 32) if limbs else block, 3, 8)


def box_for(positions: int, height: int, width: int) -> tuple[int, int, int]:
    """Images, rows and columns of a box of so many positions: whole rows if they fit, then whole images."""
    across = min(triton.next_power_of_2(width), positions)
    down = min(triton.next_power_of_2(height), positions // across)
    return positions // (across * down), down, across


def small_box(positions: int, images: int, height: int, width: int) -> tuple[int, int, int]:
    """The same; where images are many and small, a position of each: taps that meet the border are left out."""
    if height * width <= positions <= images:
        return positions, 1, 1
    return box_for(positions, height, width)


def convolve(x, weights: Packed, out, epilogue: Epilogue, shape: Shape | None = None) -> None:
    """out (B, OH, OW, O) from x (B, H, W, C) of the class's dtype; contiguous. out is float32 or 16 bits wide.

    shape: other than the rung's own, for measurements.
    """
    (B, OH, OW, O), rows, columns = out.shape, weights.rows, weights.columns
    s = shape or shape_for(weights, x.shape)
    fill(out, weights, epilogue)
    bias = epilogue.bias if epilogue.bias.numel() else None
    sizes = Sizes(B, OH, OW, O, weights.data.columns, rows.stride, columns.stride, *x.shape[1:])
    launch = _by_pointers if s.box is None else _by_boxes if weights.data.blocks is None else _by_blocks
    launch(x, weights, out, bias, epilogue.activation, sizes, s)


def _taps_of(weights: Packed, s: Shape) -> Taps:
    _, down, across, depth = weights.data.data.shape[-4:]
    return Taps(down, across, depth // s.BK)


def _form(data, activation: str | None, sizes: Sizes, *, whole: bool = True) -> Form:
    even = sizes.OH % sizes.s == 0 and sizes.OW % sizes.t == 0
    return Form(data.ndim - 3, activation, even, sizes.t * sizes.O, whole)


def _by_pointers(x, weights: Packed, out, bias, activation, sizes: Sizes, s: Shape) -> None:
    (B, H, W, C), data, table = x.shape, weights.data.data, weights.data.table
    tiles = triton.cdiv(B * weights.rows.positions(H) * weights.columns.positions(W), s.BM)
    grid = (tiles * triton.cdiv(sizes.N, s.BN) * len(table),)
    form = _form(data, activation, sizes, whole=data.shape[-1] == C)
    tile, taps = Tile(s.BM, s.BN, s.BK), _taps_of(weights, s)
    pointers.phases[grid](x, data, out, (bias, table), sizes, taps, tile, form, **s.options())


def _by_boxes(x, weights: Packed, out, bias, activation, sizes: Sizes, s: Shape) -> None:
    (B, H, W, _), data, table = x.shape, weights.data.data, weights.data.table
    height, width = weights.rows.positions(H), weights.columns.positions(W)
    limbs, (images, high, wide) = data.ndim - 3, s.box
    left = TensorDescriptor.from_tensor(_operand(x, data), [*s.box, s.BK])
    right = TensorDescriptor.from_tensor(data.reshape(limbs * data.shape[-4], -1), [s.BN, s.BK])
    grid = Grid(*_taps_of(weights, s), -(-height // high), -(-width // wide), len(table))
    programs = (-(-B // images) * grid.high * grid.wide * grid.products * triton.cdiv(sizes.N, s.BN),)
    tile, form = BoxTile(*s.box, s.BN, s.BK), _form(data, activation, sizes)
    boxes.phases[programs](left, right, out, (bias, table), sizes, grid, tile, form, **s.options())


def _by_blocks(x, weights: Packed, out, bias, activation, sizes: Sizes, s: Shape) -> None:
    (B, H, W, _), data, rows, columns = x.shape, weights.data.blocks, weights.rows, weights.columns
    height, width = (-(-axis.positions(n) // GROUP) for axis, n in ((rows, H), (columns, W)))
    (top, _), (before, _) = rows.window, columns.window
    up, back = max(0, -(top // GROUP)), max(0, -(before // GROUP))
    *_, N, down, across, depth = data.shape
    limbs, x = data.ndim - 3, _operand(x, data)
    view, (images, high, wide) = x.view(B, H // GROUP, GROUP, W // GROUP, GROUP * x.shape[3]), s.box
    left = TensorDescriptor.from_tensor(view, [images, high, 1, wide, s.BK])
    right = TensorDescriptor.from_tensor(data.reshape(limbs * N, -1), [s.BN, s.BK])
    grid = -(-height // high), -(-width // wide)
    first = top + up * GROUP, before + back * GROUP
    pixels = Pixels(down, across, depth // s.BK, *grid, *first, up, back, x.shape[3])
    sizes = sizes._replace(N=N, s=GROUP * rows.stride, t=GROUP * columns.stride)
    tile, form = BoxTile(*s.box, s.BN, s.BK, GROUP), _form(data, activation, sizes)
    programs = (-(-B // images) * math.prod(grid),)
    boxes.blocks[programs](left, right, out, bias, sizes, pixels, tile, form, **s.options())


def _operand(x, data):
    """x as bulk copies take it: in limbs, high and low side by side, where the weights are; else itself, aligned."""
    if data.ndim == 4:
        return x.clone() if x.data_ptr() % ALIGNMENT else x
    pixels, depth = x.shape[:3].numel(), data.shape[-1]
    limbs = x.new_empty((*x.shape[:3], 2 * depth), dtype=data.dtype)
    split[(pixels, triton.cdiv(depth, CHUNK))](x, limbs, (x.shape[3], depth), CHUNK)
    return limbs

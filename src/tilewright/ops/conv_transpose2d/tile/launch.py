"""Starts the tile kernels on torch tensors: on a GPU's current stream, or in Triton's interpreter on the CPU."""

from dataclasses import dataclass, replace

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewright.errors import UsageError
from tilewright.ops.conv_transpose2d.fill import fill_without_taps
from tilewright.ops.conv_transpose2d.operands import Epilogue, Packed
from tilewright.ops.conv_transpose2d.tile import boxes, phases
from tilewright.ops.conv_transpose2d.tile.forms import (
    GROUP,
    LEAST,
    LINE,
    POSITIONS,
    SMALL,
    block_depth,
    rolling_columns,
)
from tilewright.ops.conv_transpose2d.tile.records import (
    BLOCKS,
    IMAGES,
    BoxTile,
    Form,
    Grid,
    Pixels,
    Rolling,
    Sides,
    Sizes,
    Taps,
    Target,
    Tile,
    Walk,
)
from tilewright.ops.core.gpu.tensors import multiprocessors
from tilewright.ops.gemm.tile.start import ALIGNMENT, describe, hopper_descriptor, special, start

CHUNK = 4096  # elements that one program splits into limbs
SHARED = 226 << 10  # bytes of a Hopper multiprocessor's shared memory for one program or two
EXCHANGED = 9 << 10  # bytes of it for barriers and exchanged outputs in `rolling`
REGISTERS = 128  # per thread of two programs of 256; the multiplying warps then take 232


@dataclass(frozen=True)
class Shape:
    """How a product is cut: positions, columns and depth of a tile, tiles in flight, warps.

    box: images, rows and columns of a box of positions, whose product is BM; None where x is loaded by pointers. The
    shape may depend on the batch and the image: sums run over taps and channels in the same order whatever it is.
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
    """The shape of the tiles for x of this shape (B, H, W, C) or (B, H, W, 2, C), by the rung, its columns and the
    class.

    Images that are not whole blocks of positions, or of the depth, are loaded by pointers.
    """
    images, H, W, *_, C = shape
    height, width = weights.rows.positions(H), weights.columns.positions(W)
    block, N = block_depth(weights.C, weights.dtype), weights.data.columns
    limbs = weights.dtype == "float32"
    if weights.data.form == "blocks" and not (H % GROUP or W % GROUP or C % block):
        return Shape(128, 64, block, 2 if limbs else 3, 4, box_for(128, -(-height // GROUP), -(-width // GROUP)))
    if weights.data.form == "boxes":
        BM = 128 if limbs else 256
        return Shape(BM, 128 if N > 64 else 64, block, 3, 8, small_box(BM, images, height, width))
    BN = min(128, max(LEAST, triton.next_power_of_2(N)))
    if weights.data.form in ("columns", "rolling") and limbs:
        return Shape(POSITIONS, BN, block, 3, 4)
    return Shape(128, BN, min(block, 32) if limbs else block, 3, 8 if BN == 128 else 4)


def box_for(positions: int, height: int, width: int) -> tuple[int, int, int]:
    """Images, rows and columns of a box of `positions` positions: whole rows if they fit, then whole images."""
    across = min(triton.next_power_of_2(width), positions)
    down = min(triton.next_power_of_2(height), positions // across)
    return positions // (across * down), down, across


def small_box(positions: int, images: int, height: int, width: int) -> tuple[int, int, int]:
    """As `box_for`, but one position of each image if the images are many and small: a tap outside them is skipped."""
    if height * width <= SMALL and positions <= images:
        return positions, 1, 1
    return box_for(positions, height, width)


def convolve(
    x, weights: Packed, out, epilogue: Epilogue, shape: Shape | None = None, *, positions: int = 0, depth: int = 0,
    specialized: bool = False,
) -> None:  # fmt: skip
    """out (B, OH, OW, O) from x (B, H, W, C) of the class's dtype. out is contiguous, float32 or of a 16-bit dtype. In
    float32 each may be given as its limbs, bfloat16 (B, H, W, 2, C) and (B, OH, OW, 2, O).

    shape: another one than the rung's own, for measurements. positions, depth: override the tile's rows and depth;
    both are powers of two. Another depth may change bits. specialized: use `hopper.products`, in which warps have
    different jobs; for weights in boxes.
    """
    if weights.data.form == "rolling" and x.shape[2] % GROUP == 0:
        if shape or positions or depth:
            raise UsageError("conv_transpose2d: tiles of tile.rolling have one shape")
        _rolling(x, weights, out, epilogue)
        return
    rows, columns, s = weights.rows, weights.columns, shape or shape_for(weights, x.shape)
    x, s = x.contiguous(), replace(s, BM=positions or s.BM, BK=min(depth or s.BK, s.BK))
    fill_without_taps(out, weights, epilogue)
    target = Target(out, epilogue.bias if epilogue.bias.numel() else None)
    outer, image = (*out.shape[:3], out.shape[-1]), (*x.shape[1:3], x.shape[-1])
    sizes = Sizes(*outer, weights.data.columns, rows.stride, columns.stride, *image)
    by_copies = _by_warps if specialized else _by_boxes if weights.data.blocks is None else _by_blocks
    launch = _by_pointers if s.box is None else by_copies
    launch(x, weights, target, epilogue.activation, sizes, s)


def _taps_of(data, s: Shape) -> Taps:
    _, down, across, depth = data.shape[-4:]
    return Taps(down, across, depth // s.BK)


def _form(data, activation: str | None, sizes: Sizes) -> Form:
    even = sizes.OH % sizes.s == 0 and sizes.OW % sizes.t == 0
    return Form(data.ndim - 3, activation, even, sizes.t * sizes.O, data.shape[-1] == sizes.C, sizes.O)


def _by_pointers(x, weights: Packed, target: Target, activation, sizes: Sizes, s: Shape) -> None:
    data, table = weights.data.data, weights.data.table
    tiles = triton.cdiv(sizes.B * weights.rows.positions(sizes.H) * weights.columns.positions(sizes.W), s.BM)
    programs = (tiles * triton.cdiv(sizes.N, s.BN) * len(table),)
    tile, form = Tile(s.BM, s.BN, s.BK), _form(data, activation, sizes)
    phases.phases[programs](x, data, table, target, sizes, _taps_of(data, s), tile, form, **s.options())


def _by_boxes(x, weights: Packed, target: Target, activation, sizes: Sizes, s: Shape) -> None:
    data, table, (images, high, wide) = weights.data.data, weights.data.table, s.box
    height, width = weights.rows.positions(sizes.H), weights.columns.positions(sizes.W)
    left = TensorDescriptor.from_tensor(_operand(x, data), [*s.box, s.BK])
    right = TensorDescriptor.from_tensor(data.reshape((data.ndim - 3) * sizes.N, -1), [s.BN, s.BK])
    grid = Grid(*_taps_of(data, s), -(-height // high), -(-width // wide), len(table))
    programs = (-(-sizes.B // images) * grid.high * grid.wide * grid.products * triton.cdiv(sizes.N, s.BN),)
    tile, form = BoxTile(*s.box, s.BN, s.BK), _form(data, activation, sizes)
    boxes.phases[programs](left, right, table, target, sizes, grid, tile, form, **s.options())


def _by_warps(x, weights: Packed, target: Target, activation, sizes: Sizes, s: Shape) -> None:
    from tilewright.ops.conv_transpose2d.tile import hopper

    data, table, (images, high, wide) = weights.data.data, weights.data.table, s.box
    height, width = weights.rows.positions(sizes.H), weights.columns.positions(sizes.W)
    left = hopper_descriptor(describe(_operand(x, data), [*s.box, s.BK]))
    right = hopper_descriptor(describe(data.reshape(2 * sizes.N, -1), [s.BN // 2, s.BK]))
    grid = Grid(*_taps_of(data, s), -(-height // high), -(-width // wide), len(table))
    tasks = -(-sizes.B // images) * grid.high * grid.wide * grid.products * triton.cdiv(sizes.N, s.BN)
    tile = BoxTile(*s.box, s.BN, s.BK, stages=s.stages)
    form = _form(data, activation, sizes)._replace(sides=sides_of(weights, s.BN))
    programs, options = (min(multiprocessors(), tasks),), {"num_warps": 4, "maxnreg": hopper.REGISTERS}
    hopper.products[programs](left, right, table, target, sizes, grid, tile, form, **options)


def sides_of(weights: Packed, BN: int) -> Sides | None:
    """Which taps across each half of BN columns has; None if both have all, or if they are more than the bits of a
    mask."""
    (least, count), N, O = weights.columns.window, weights.data.columns, weights.O
    masks = [0, 0]
    if count > 31:
        return None
    for n in range(N if N > O else 0):  # phases side by side, with taps for the whole window
        masks[n // (BN // 2)] |= sum(1 << (d - least) for d, _ in weights.columns.taps(n // O))
    return None if masks in ([0, 0], [2**count - 1] * 2) else Sides(*masks)


def _by_blocks(x, weights: Packed, target: Target, activation, sizes: Sizes, s: Shape) -> None:
    data, rows, columns, (images, high, wide) = weights.data.blocks, weights.rows, weights.columns, s.box
    height, width = -(-rows.positions(sizes.H) // GROUP), -(-columns.positions(sizes.W) // GROUP)
    (top, _), (before, _), taps = rows.window, columns.window, _taps_of(data, s)
    up, back = max(0, -(top // GROUP)), max(0, -(before // GROUP))
    N, x = data.shape[-4], _operand(x, data)
    view = x.view(sizes.B, sizes.H // GROUP, GROUP, sizes.W // GROUP, GROUP * x.shape[3])
    left = TensorDescriptor.from_tensor(view, [images, high, 1, wide, s.BK])
    right = TensorDescriptor.from_tensor(data.reshape((data.ndim - 3) * N, -1), [s.BN, s.BK])
    first = top + up * GROUP, before + back * GROUP
    pixels = Pixels(*taps, -(-height // high), -(-width // wide), *first, up, back, x.shape[3])
    sizes = sizes._replace(N=N, s=GROUP * sizes.s, t=GROUP * sizes.t)
    tile, form = BoxTile(*s.box, s.BN, s.BK, GROUP), _form(data, activation, sizes)
    programs = (-(-sizes.B // images) * pixels.high * pixels.wide,)
    boxes.blocks[programs](left, right, target, sizes, pixels, tile, form, **s.options())


def _rolling(x, weights: Packed, out, epilogue: Epilogue) -> None:
    from tilewright.ops.conv_transpose2d.tile.rolling import rolling

    rows, columns, data = weights.rows, weights.columns, weights.data.blocks
    (B, H, W, C), (_, OH, OW, O), depth = x.shape, out.shape, data.shape[1]
    x = x.clone() if x.data_ptr() % ALIGNMENT else x
    view = x.view(B, H, W // GROUP, GROUP * C).permute(1, 2, 0, 3)
    bias = epilogue.bias if epilogue.bias.numel() else None
    wide, limbs, left = rolling_columns(rows.K, O), 2 if weights.dtype == "float32" else 1, columns.window[0]
    above = (triton.cdiv(wide, 4 * O) - 1) // 2  # rows whose sums move into a row of outputs, NaN in unused columns too
    first, last = rows.first // 2, (OH - 1 + rows.first) // 2 + 1
    groups, across = triton.cdiv(B, IMAGES), triton.cdiv(OW, 2 * GROUP * BLOCKS)
    height = strip_height(last - first, above, groups * across)
    down = triton.cdiv(last - first, height)
    walk = Walk(B, OH, OW, C, across, down, first, last, height, rows.first, left, max(0, -(left // GROUP)))
    form = Rolling(limbs, epilogue.activation, O, C // depth, above, stages_beside(data, C // depth))
    boxes = [1, BLOCKS, IMAGES, depth], [1, 1, IMAGES, depth], [wide, depth]
    operands = [describe(tensor, box) for tensor, box in zip((view, view, data), boxes, strict=True)]
    kinds = tuple(None if y is None else (y.dtype, y.data_ptr() % ALIGNMENT == 0) for y in (out, bias))
    key = "rolling", x.device, x.dtype, kinds, form, wide, tuple(map(special, walk))
    arguments = (*operands, Target(out, bias), walk, form)
    start(rolling, key, (groups * across * down, 1), arguments, hopper_descriptor, num_warps=4, maxnreg=REGISTERS)


def stages_beside(weights, deep: int) -> int:
    """Stages of `rolling` beside the weights in shared memory, for two rows of x of `deep` LINEs of channels if they
    fit. Two programs share a multiprocessor if their weights leave enough of it."""
    used, stage = weights.numel() * weights.element_size() + EXCHANGED, (BLOCKS + 1) * IMAGES * LINE
    half = (SHARED // 2 - used) // stage
    return min(4 * deep, half if half >= 2 * deep else (SHARED - used) // stage)


def strip_height(rows: int, above: int, strips: int) -> int:
    """Rows of a strip with which `rolling` ends first. strips: the number of them if each has all `rows`. Programs run
    in rounds, two per multiprocessor. Each also multiplies the rows above, and loads weights."""

    def time_of(down: int) -> int:
        return triton.cdiv(strips * down, 2 * multiprocessors()) * (triton.cdiv(rows, down) + above + 2)

    return triton.cdiv(rows, min(range(1, max(1, rows // 8) + 1), key=time_of))


def _operand(x, data):
    """x for bulk copies: in two limbs side by side, high then low, if the weights are; otherwise itself. Aligned."""
    if x.ndim == 5:
        x = x.flatten(3)
    if x.dtype == data.dtype:
        return x.clone() if x.data_ptr() % ALIGNMENT else x
    pixels, depth = x.shape[:3].numel(), data.shape[-1]
    limbs = x.new_empty((*x.shape[:3], 2 * depth), dtype=data.dtype)
    width = min(CHUNK, triton.next_power_of_2(depth))
    grid = triton.cdiv(pixels, CHUNK // width), triton.cdiv(depth, width)
    phases.split[grid](x, limbs, (pixels, x.shape[3], depth), CHUNK // width, width)
    return limbs

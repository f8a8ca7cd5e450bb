"""Starts the tile kernels on torch tensors: on a GPU's current stream, or in Triton's interpreter on the CPU."""

import math

import numpy as np
import triton

from tilewright.ops.conv3d.operands import Packed, Window
from tilewright.ops.conv3d.tile.channels import channels
from tilewright.ops.conv3d.tile.march import march
from tilewright.ops.conv3d.tile.passes import along
from tilewright.ops.conv3d.tile.records import (
    Block,
    Border,
    DeepSizes,
    Line,
    Marched,
    Plane,
    Product,
    Sizes,
    TapBlock,
    Volumes,
)
from tilewright.ops.conv3d.tile.taps import taps
from tilewright.ops.core.gpu.tensors import multiprocessors

BLOCK, WARPS = Plane(2, 128), 2  # 1.1 ms for K 3 and 2.4 for K 5, 16 x 64 on four 2.6 and 7.3 (H200, 512^3)
ROWS, PLANES = Plane(512, 1), Plane(8, 128)  # positions along the axis of a pass, and inside it
OUTPUTS, DEPTH = 128, 16  # tile of `channels`
FEWER = 64  # outputs of a tile of `taps`, on two warps: 0.42 ms for 16 to 32 channels of 64^3, 128 on four 0.47 (H200)
LEAST, MOST_IN, MOST_OUT = 16, 32, 64  # channels of a tile of `taps`: what matrix units take, what registers hold
PROGRAMS = 4  # side by side on a multiprocessor


def factors_on(weights: Packed, device) -> list:
    """For `pass_by_pass`: the three vectors as tensors."""
    import torch

    return [torch.from_numpy(factor).to(device) for factor in weights.factors]


def lay_out(weights: Packed, device) -> list:
    """For `with_channels`: weights (depth, O), and the channel and window position of each (4, depth)."""
    import torch

    O, C = weights.weights.shape[:2]
    taps = C * math.prod(weights.sizes)
    depth = triton.cdiv(taps, DEPTH) * DEPTH
    columns, tap_positions = np.zeros((depth, O), np.float32), np.zeros((4, depth), np.int32)
    columns[:taps] = weights.weights.reshape(O, taps).T
    tap_positions[:, :taps] = np.indices((C, *weights.sizes)).reshape(4, taps)
    return [torch.from_numpy(array).to(device) for array in (columns, tap_positions)]


def with_channels(x, weights: Packed, out, window: Window) -> None:
    """out (O, D, H, W) of x (C, ...), float32 on one device, by `tile.channels`."""
    columns, tap_positions = weights.data
    (depth, O), count = columns.shape, math.prod(out.shape[1:])
    block = Block(OUTPUTS, min(64, max(16, triton.next_power_of_2(O))), DEPTH)
    taps_in_all = x.shape[0] * math.prod(weights.sizes)
    extents = Product(*x.shape[1:], O, *out.shape[2:], count, taps_in_all, depth)
    grid, border = (triton.cdiv(count, block.BM), triton.cdiv(O, block.BN)), Border(*window.first, float(window.cval))
    channels[grid](x, out, columns, tap_positions, extents, border, window.mode, block, num_warps=4)


def lay_out_limbs(weights: Packed, device):
    """For `tap_by_tap`: two bfloat16 limbs of weights (taps, O, C), both channels up to whole tiles."""
    import torch

    O, C = weights.weights.shape[:2]
    matrices = torch.from_numpy(weights.weights).to(device).reshape(O, C, -1).permute(2, 0, 1)
    matrices = torch.nn.functional.pad(matrices, (0, -C % _channels(C, MOST_IN), 0, -O % _channels(O, MOST_OUT)))
    high = matrices.bfloat16()
    return torch.stack([high, (matrices - high.float()).bfloat16()])


def _channels(count: int, most: int) -> int:
    """Channels of a tile, for `count` channels."""
    return min(most, max(LEAST, triton.next_power_of_2(count)))


def tap_by_tap(x, weights: Packed, out, window: Window, outputs: int = FEWER, **options: int) -> None:
    """out (O, D, H, W) of x (C, ...), float32 on one device, by `tile.taps_limbs`.

    outputs: outputs of a tile. options: Triton's launch options. Both replace the rung's own, for measurements.
    """
    data, O, C, count = weights.data, len(out), len(x), math.prod(out.shape[1:])
    long, ragged = x.numel() >= 1 << 31, data.shape[3] > C
    block = TapBlock(outputs, _channels(O, MOST_OUT), _channels(C, MOST_IN), long, ragged)
    extents, sizes = Volumes(C, *x.shape[1:], O, *out.shape[2:], count), DeepSizes(*weights.sizes, data.shape[3])
    grid, border = (triton.cdiv(count, outputs), data.shape[2] // block.BN), Border(*window.first, float(window.cval))
    warps = 2 if block.BN * block.BC <= 512 else 4  # more on two would spill
    options = {"num_warps": warps, "num_stages": 3, **options}
    taps[grid](x, out, data, extents, sizes, border, window.mode, block, **options)


def march_on(x, weights: Packed, out, window: Window) -> None:
    """out (1, D, H, W) of x (1, ...), float32 on one device, by `tile.march`."""
    x, out = x.squeeze(0), out.squeeze(0)
    tiles = triton.cdiv(out.shape[1], BLOCK.rows) * triton.cdiv(out.shape[2], BLOCK.columns)
    pieces = max(1, min(out.shape[0] // (2 * weights.sizes[0]), PROGRAMS * multiprocessors() // tiles))
    chunk = triton.cdiv(out.shape[0], pieces)
    grid, extents = (tiles, triton.cdiv(out.shape[0], chunk)), Marched(*x.shape, *out.shape, chunk)
    border = Border(*window.first, float(window.cval))
    march[grid](x, out, weights.data, extents, border, Sizes(*weights.sizes), window.mode, BLOCK, num_warps=WARPS)


def pass_by_pass(x, weights: Packed, out, window: Window) -> None:
    """out (1, D, H, W) of x (1, ...) along z, y and x, one after another; weights.data: a vector for each."""
    mode, first, fill = window.mode, list(window.first), float(window.cval)
    x = x.squeeze(0)
    if mode == "constant" and fill:  # outside, the result of a pass is not the fill value
        x, first, mode = _surrounded(x, weights.sizes, window), [0, 0, 0], "valid"
    shape = list(x.shape)
    for axis, factor in enumerate(weights.data):
        n, (outer, inner) = shape[axis], (math.prod(shape[:axis]), math.prod(shape[axis + 1 :]))
        shape[axis] = out.shape[axis + 1]
        result = out if axis == 2 else x.new_empty(shape)
        block = ROWS if axis == 2 else PLANES
        tiles = outer * triton.cdiv(shape[axis], block.rows) * triton.cdiv(inner, block.columns)
        extents = Line(n, shape[axis], inner, len(factor))
        along[(tiles,)](x, result, factor, extents, first[axis], fill, mode, block, num_warps=WARPS)
        x = result


def _surrounded(x, sizes: tuple[int, int, int], window: Window):
    """x (D, H, W) padded with cval for all its windows."""
    wide = x.new_full([n + K - 1 for n, K in zip(x.shape, sizes, strict=True)], float(window.cval))
    inner = [slice(at, at + n) for at, n in zip(window.first, x.shape, strict=True)]
    wide[tuple(inner)] = x
    return wide

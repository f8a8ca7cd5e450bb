"""Filters blocks of a volume on a GPU, in slabs along z. Three slabs are in flight: one is copied to the GPU, one is
filtered, and one is copied back."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from tilewright.backends import Backend
from tilewright.backends.protocol import Step
from tilewright.formats.volumes import Shape
from tilewright.ops.conv3d import conv3d
from tilewright.ops.conv3d.ladder import LONGEST
from tilewright.ops.conv3d.operands import Packed
from tilewright.ops.gemm.memory import padded
from tilewright.runtime.verbs.convolve.kernels import Kernel
from tilewright.runtime.verbs.convolve.tiles import Tiling

SLAB = 64 << 20  # bytes of a slab: its copy takes more than 1 ms, so the cost of starting it is small
QUAD, FUSED = 4, 17  # as in `ops.conv3d.simt`, which needs PyTorch: elements of a quad; most z taps without own pass
IN_FLIGHT = 3  # slabs: one is copied in, one filtered, one copied out


def planes_of(tiling: Tiling, kernel: Shape) -> int:
    """Planes per slab of a tile in the first attempt."""
    _, H, W = tiling.block
    return _planes(tiling.tile[0], 4 * H * W, kernel[0])


def _planes(depth: int, plane_bytes: int, taps: int) -> int:
    return min(depth, max(1, SLAB // plane_bytes, taps))


def slabs_bytes(kernel: Kernel, tiling: Tiling, planes: int) -> int:
    """GPU bytes of the slabs in flight: their inputs, their outputs, and what `conv3d` allocates."""
    (_, H, W), (_, h, w), halo = tiling.block, tiling.tile, kernel.shape[0] - 1
    slab, result = 4 * (planes + halo) * H * W, 4 * planes * h * w
    between = 4 * (planes + halo) * H * padded(W, QUAD) if W % QUAD else 0  # rows are padded to whole quads
    if kernel.lines is not None and max(kernel.shape) > LONGEST:  # one pass per axis
        between = 4 * planes * (H + h) * W
    elif kernel.lines is not None and kernel.shape[0] > FUSED:  # the pass along z reads the result of the other passes
        between += 4 * (planes + halo) * h * w
    return IN_FLIGHT * (slab + result + between)


def through(prepared: Packed, backend: Backend) -> Callable[[np.ndarray, np.ndarray], None]:
    """Returns f(block, out), which filters a block with its halo to out (d, h, w) on the GPU.

    Both are float32 arrays in the host's memory; copies are fastest if `backend.host` has allocated them. prepared: the
    result of `ops.conv3d.prepare` for the device. The bits depend neither on the block's position and size, nor on the
    slabs. f raises ResourceError if the GPU's memory does not hold the smallest slab.
    """
    pipeline, halo = backend.pipeline(IN_FLIGHT), prepared.sizes[0] - 1

    def compute(block: np.ndarray, out: np.ndarray) -> None:
        plane = 4 * max(1, math.prod(block.shape[1:]))
        planes = _planes(len(out), plane, prepared.sizes[0])
        backend.halving(partial(in_slabs, block, out), planes)

    def in_slabs(block: np.ndarray, out: np.ndarray, planes: int) -> None:
        """Filter in slabs of `planes` planes of out."""
        shapes = (planes + halo, *block.shape[1:]), (planes, *out.shape[1:])
        slots = [[backend.empty(shape) for shape in shapes] for _ in range(IN_FLIGHT)]
        pipeline.wait()  # earlier slabs may still use the memory
        for number, z in enumerate(range(0, len(out), planes)):
            slot, count = number % IN_FLIGHT, min(planes, len(out) - z)
            slab, result = slots[slot][0][: count + halo], slots[slot][1][:count]
            filtered = partial(conv3d, slab, prepared, mode="valid", out=result)
            pipeline.queue(Step([(block[z : z + count + halo], slab)], filtered, [(result, out[z : z + count])]), slot)
        pipeline.wait()

    return compute

"""Blocks of a volume through a GPU: slabs along z, each copied in, convolved and copied out on a stream of its own.

The slabs in flight take turns: while one is convolved, the next is on its way there and the one before on its way back.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.errors import ResourceError
from tilewright.runtime.devices import halving

SLAB = 64 << 20  # bytes of a slab: more than a millisecond of the host link, so that starting it costs little
IN_FLIGHT = 3  # slabs: one on each way, and one that is convolved


def pinned(count: int, dtype: np.dtype) -> np.ndarray:
    """Memory (count,) that a GPU copies from and to by itself. Raises ResourceError where there is not so much."""
    import torch

    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    try:
        return torch.empty(count, dtype=kind, pin_memory=True).numpy()
    except RuntimeError as error:
        nbytes = count * np.dtype(dtype).itemsize
        what = f"{nbytes:,} bytes of memory cannot be locked for copies to the GPU: {str(error).partition(chr(10))[0]}"
        raise ResourceError(what, hint="give less --memory") from error


def through(prepared, device: str = "cuda") -> Callable[[np.ndarray, np.ndarray], None]:
    """f(block, out): out (d, h, w) from a block with its halo, both float32 on the host, best `pinned`.

    prepared: what `ops.conv3d.prepare` gave for the device. Bits depend neither on the block's place nor on its size,
    nor on slabs. Raises ResourceError where the GPU has no memory for the smallest slab.
    """

    def compute(block: np.ndarray, out: np.ndarray) -> None:
        plane = 4 * max(1, math.prod(block.shape[1:]))
        planes = min(len(out), max(1, SLAB // plane, prepared.sizes[0]))
        halving(lambda count: _pass(prepared, block, out, count, device), planes)

    return compute


def _pass(prepared, block: np.ndarray, out: np.ndarray, planes: int, device: str) -> None:
    """A block in slabs of so many planes of out. device: "cuda", or "cpu" where a GPU is simulated."""
    import torch

    from tilewright.ops.conv3d import conv3d

    source, target, halo = torch.from_numpy(block), torch.from_numpy(out), prepared.sizes[0] - 1
    streams = [torch.cuda.Stream() if device == "cuda" else None for _ in range(IN_FLIGHT)]
    shapes = (planes + halo, *block.shape[1:]), (planes, *out.shape[1:])
    with torch.inference_mode():
        places = [[torch.empty(shape, device=device) for shape in shapes] for _ in streams]
        if device == "cuda":
            torch.cuda.synchronize()  # the memory may still be in use
        for turn, z in enumerate(range(0, len(out), planes)):
            stream, (slab, result) = streams[turn % IN_FLIGHT], places[turn % IN_FLIGHT]
            count = min(planes, len(out) - z)
            with torch.cuda.stream(stream):
                slab[: count + halo].copy_(source[z : z + count + halo], non_blocking=True)
                conv3d(slab[: count + halo], prepared, mode="valid", out=result[:count])
                target[z : z + count].copy_(result[:count], non_blocking=True)
        if device == "cuda":
            torch.cuda.synchronize()

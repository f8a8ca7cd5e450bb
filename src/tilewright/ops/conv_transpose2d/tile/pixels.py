"""8-bit pixels of images on a GPU, and which images hold a NaN. Memory bandwidth limits it."""

import torch
import triton
import triton.language as tl

from tilewright.errors import UsageError
from tilewright.ops.core.gpu.tensors import same_device, tensor_of

BLOCK = 4096  # elements at a time: 16 for each thread of 8 warps, 16 bytes per load


@triton.jit
def convert(images, out, invalid, count, BLOCK: tl.constexpr):
    """One program per image of `count` float32 elements: int((x + 1) / 2 * 255), truncated, 0 for a NaN. out: uint8
    like images. invalid: uint8 (n,)."""
    image = tl.program_id(0).to(tl.int64)
    bad = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(images + image * count + at, mask=at < count, other=0.0)
        scaled = (x + 1.0) / 2.0 * 255.0
        scaled = tl.where(scaled > 0.0, tl.where(scaled < 255.0, scaled, 255.0), 0.0)
        tl.store(out + image * count + at, scaled.to(tl.uint8), mask=at < count)
        bad = bad | (x != x).to(tl.int32)
    tl.store(invalid + image, (tl.max(bad, 0) > 0).to(tl.uint8))


def pixels(images, *, out=None, invalid=None):
    """8-bit pixels of images, float32 (n, height, width, channels) from -1 to 1: int((x + 1) / 2 * 255).

    out: uint8 like images. invalid: uint8 (n,), becomes 1 for an image with a NaN, whose pixels are then 0, otherwise
    0. Both are new if None; returns them. Raises UsageError naming the argument that does not fit.
    """
    images = tensor_of("pixels", "images", images, ("float32",))
    if images.ndim != 4:
        raise UsageError(f"pixels: images has shape {tuple(images.shape)}; (n, height, width, channels) is wanted")
    out = images.new_empty(images.shape, dtype=torch.uint8) if out is None else out
    invalid = images.new_empty(len(images), dtype=torch.uint8) if invalid is None else invalid
    for name, value, shape in (("out", out, images.shape), ("invalid", invalid, images.shape[:1])):
        if value.dtype != torch.uint8 or value.shape != shape or not value.is_contiguous():
            what = f"{value.dtype} {tuple(value.shape)}; contiguous uint8 {tuple(shape)} is wanted"
            raise UsageError(f"pixels: {name} is {what}")
    same_device("pixels", "images", images, out=out, invalid=invalid)
    if images.numel():
        convert[(len(images),)](images.contiguous(), out, invalid, images.shape[1:].numel(), BLOCK, num_warps=8)
    return out, invalid

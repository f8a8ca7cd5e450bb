"""8-bit pixels of images, and which images hold a NaN: a program an image."""

import triton
import triton.language as tl

BLOCK = 4096  # numbers at a time: 16 a thread of 8 warps, 16 bytes a load


@triton.jit
def pixels(images, out, spoiled, count, BLOCK: tl.constexpr):
    """int((x + 1) / 2 * 255) of `count` numbers an image, in float32, truncated; 0 for a NaN."""
    image = tl.program_id(0).to(tl.int64)
    bad = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(images + image * count + at, mask=at < count, other=0.0)
        scaled = (x + 1.0) / 2.0 * 255.0
        scaled = tl.where(scaled > 0.0, tl.where(scaled < 255.0, scaled, 255.0), 0.0)
        tl.store(out + image * count + at, scaled.to(tl.uint8), mask=at < count)
        bad = bad | (x != x).to(tl.int32)
    tl.store(spoiled + image, (tl.max(bad, 0) > 0).to(tl.uint8))


def convert(images, out, spoiled) -> None:
    """Start it: images float32 (n, ...), out uint8 like them, spoiled uint8 (n,); contiguous."""
    if images.numel():
        pixels[(len(images),)](images, out, spoiled, images[0].numel(), BLOCK, num_warps=8)

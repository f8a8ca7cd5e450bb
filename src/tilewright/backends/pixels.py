"""8-bit pixels of images, and which images are not finite, on either device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.formats import images as formats

if TYPE_CHECKING:
    from tilewright.backends.protocol import Array


def to_pixels(images: Array, pixels: Array | None, invalid: Array) -> None:
    """Writes pixels uint8 (n, height, width, channels) from images float32 of that shape, each value from -1 to 1.

    pixels: None if they are not wanted. invalid: uint8 (n,), becomes 1 for an image that is not finite, otherwise 0.
    """
    if not isinstance(images, np.ndarray):
        from tilewright.ops.conv_transpose2d.tile.pixels import pixels as convert

        convert(images, out=pixels, invalid=invalid)
        return
    assert isinstance(invalid, np.ndarray)
    invalid[...] = ~np.isfinite(images).all(axis=(1, 2, 3))
    if isinstance(pixels, np.ndarray):
        with np.errstate(invalid="ignore"):  # for a NaN, whose image is marked
            pixels[...] = formats.pixels(images)

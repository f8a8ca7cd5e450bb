"""Faces drawn by a program: 64 x 64 pixels, traits by chance (face_traits.py), parts painted in turn (face_parts.py).

    python examples/train/faces.py --seed 1 --count 64 -o faces.png

A face depends on the seed and its number alone.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
from face_parts import (
    SIZE,
    Canvas,
    background,
    beard,
    body,
    cover,
    eyes,
    front_hair,
    glasses,
    hair_shape,
    hair_texture,
    hat,
    mouth,
    nose,
    skull,
    smooth,
)
from face_traits import traits

CHUNK = 32  # faces painted together: an array of them, 512 KiB, stays in the cache


def paint(t: SimpleNamespace) -> np.ndarray:
    """The faces with these traits: uint8 (n, 64, 64, 3)."""
    c = Canvas(t)
    background(c)
    behind = hair_shape(c)
    c.paint(t.hair * (0.72 * hair_texture(c))[..., None], cover(behind) * (t.line > -0.6))
    for part in (body, skull, eyes, nose, beard, mouth, front_hair, glasses, hat):
        part(c)
    c.rgb *= (1 - t.vignette * smooth(np.hypot(c.x, c.y), 0.6, 1.5))[..., None]
    c.rgb *= np.concatenate([1 + t.warmth, np.ones_like(t.warmth), 1 - t.warmth], axis=2)[:, :, None]
    return (np.clip(c.rgb, 0, 1) * 255 + 0.5).astype(np.uint8)


def draw(seed: int, first: int, count: int) -> np.ndarray:
    """The faces number `first` to `first + count - 1` of a seed: uint8 (count, 64, 64, 3)."""
    starts = range(first, first + count, CHUNK)
    chunks = [paint(traits(seed, at, min(CHUNK, first + count - at))) for at in starts]
    return np.concatenate(chunks) if chunks else np.zeros((0, SIZE, SIZE, 3), np.uint8)


def draw_many(seed: int, first: int, count: int, processes: int = 1) -> np.ndarray:
    """The same faces, drawn by some processes."""
    if processes < 2:
        return draw(seed, first, count)
    step = 16 * CHUNK
    starts = list(range(first, first + count, step))
    counts = [min(step, first + count - at) for at in starts]
    with ProcessPoolExecutor(processes) as pool:
        return np.concatenate(list(pool.map(partial(draw, seed), starts, counts)))


def grid(images: np.ndarray, columns: int) -> np.ndarray:
    """Images (n, height, width, 3) in rows of `columns`, as many rows as get full: one picture."""
    rows = len(images) // columns
    tiles = images[: rows * columns].reshape(rows, columns, *images.shape[1:])
    return tiles.transpose(0, 2, 1, 3, 4).reshape(rows * images.shape[1], -1, images.shape[3])


def main() -> None:
    """Draws a grid of faces into a picture."""
    parser = argparse.ArgumentParser(description="Draw faces, 16 in a row, into a picture.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("-o", "--output", default="faces.png")
    options = parser.parse_args()
    from PIL import Image

    Image.fromarray(grid(draw(options.seed, options.first, options.count), 16)).save(options.output)


if __name__ == "__main__":
    main()

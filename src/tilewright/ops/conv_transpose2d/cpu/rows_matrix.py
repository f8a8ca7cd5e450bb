"""Rows of windows for matmul: the im2col matrix of images between zeros, some images at a time."""

from collections.abc import Iterator

import numpy as np

MATRIX_BYTES = 32 << 20  # of the matrix for some images, one at least: it is written and read once, soon after


def between_zeros(x: np.ndarray, starts: tuple[int, int], shape: tuple[int, int], step: tuple[int, int]) -> np.ndarray:
    """float32 (n, *shape, C): x (n, H, W, C) from its place `starts` on, `step` apart, zeros elsewhere.

    Parts of x that fall outside are left out.
    """
    canvas = np.zeros((len(x), *shape, x.shape[3]), np.float32)
    places, parts = [], []
    for start, size, apart, count in zip(starts, shape, step, x.shape[1:3], strict=True):
        skipped = min(max(0, -(start // apart)), count)
        first = start + skipped * apart
        kept = min(max(0, -(-(size - first) // apart)), count - skipped)
        places.append(slice(first, first + kept * apart, apart) if kept else slice(0, 0))
        parts.append(slice(skipped, skipped + kept))
    canvas[:, places[0], places[1]] = x[:, parts[0], parts[1]]
    return canvas


def windows(canvas: np.ndarray, KH: int, KW: int) -> np.ndarray:
    """(n, rows, columns, KH, KW, C), a view of canvas (n, rows + KH - 1, columns + KW - 1, C)."""
    return np.moveaxis(np.lib.stride_tricks.sliding_window_view(canvas, (KH, KW), axis=(1, 2)), 3, -1)


def some_images(B: int, bytes_an_image: int) -> Iterator[slice]:
    """Images of a batch, as many at a time as MATRIX_BYTES allow."""
    count = max(1, MATRIX_BYTES // max(bytes_an_image, 1))
    for first in range(0, B, count):
        yield slice(first, min(first + count, B))

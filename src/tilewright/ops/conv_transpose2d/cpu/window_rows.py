"""The im2col matrix: one row per window of an image with zeros around it, for some images at a time."""

from collections.abc import Iterator

import numpy as np

MATRIX_BYTES = 32 << 20  # most bytes of the matrix for some images: it is written once and read once, soon after


def between_zeros(x: np.ndarray, starts: tuple[int, int], shape: tuple[int, int], step: tuple[int, int]) -> np.ndarray:
    """float32 (n, *shape, C): pixel (h, w) of x (n, H, W, C) at starts + (h, w) * step, zeros elsewhere.

    Pixels that would be outside are left out.
    """
    canvas = np.zeros((len(x), *shape, x.shape[3]), np.float32)
    targets, sources = [], []
    for start, size, apart, count in zip(starts, shape, step, x.shape[1:3], strict=True):
        skipped = min(max(0, -(start // apart)), count)
        first = start + skipped * apart
        inside = min(max(0, -(-(size - first) // apart)), count - skipped)
        targets.append(slice(first, first + inside * apart, apart) if inside else slice(0, 0))
        sources.append(slice(skipped, skipped + inside))
    canvas[:, targets[0], targets[1]] = x[:, sources[0], sources[1]]
    return canvas


def windows(canvas: np.ndarray, KH: int, KW: int) -> np.ndarray:
    """(n, rows, columns, KH, KW, C), a view of canvas (n, rows + KH - 1, columns + KW - 1, C)."""
    return np.moveaxis(np.lib.stride_tricks.sliding_window_view(canvas, (KH, KW), axis=(1, 2)), 3, -1)


def batches(B: int, image_bytes: int) -> Iterator[slice]:
    """Slices of B images, each as many as MATRIX_BYTES hold, at least one. image_bytes: matrix rows of one image."""
    count = max(1, MATRIX_BYTES // max(image_bytes, 1))
    for first in range(0, B, count):
        yield slice(first, min(first + count, B))

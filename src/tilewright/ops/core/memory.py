"""Memory whose vectors do not cross cache lines.

NumPy's own begins 16 bytes after a page, or anywhere: then every 64-byte vector lies in two lines, and a load of one
costs two. A tile load of AMX, 16 of them, took 39 cycles so, and 16 where each row is a line (Emerald Rapids).
"""

import math

import numpy as np

LINE = 64  # bytes of a cache line, and of the widest vector


def empty(shape: int | tuple[int, ...], dtype: np.typing.DTypeLike = np.float32) -> np.ndarray:
    """As np.empty, C-ordered, its first element at the start of a cache line. Raises MemoryError and ValueError as
    np.empty does."""
    shape = (shape,) if isinstance(shape, int) else shape
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    block = np.empty(size + LINE, np.uint8)
    start = -block.__array_interface__["data"][0] % LINE
    return block[start : start + size].view(dtype).reshape(shape)


def zeros(shape: int | tuple[int, ...], dtype: np.typing.DTypeLike = np.float32) -> np.ndarray:
    """As `empty`, filled with zeros."""
    array = empty(shape, dtype)
    array[...] = 0
    return array

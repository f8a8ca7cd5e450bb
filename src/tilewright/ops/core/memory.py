"""Arrays whose vectors do not cross cache lines.

NumPy aligns an array to 16 bytes only. Then every 64-byte vector may cross two cache lines, and each load of one costs
two. An AMX tile load of 16 rows took 39 cycles then, and 16 cycles with each row in one line (Emerald Rapids).
"""

import math

import numpy as np

LINE = 64  # bytes of a cache line, and of the widest vector


def empty(shape: int | tuple[int, ...], dtype: np.typing.DTypeLike = np.float32) -> np.ndarray:
    """As np.empty, C-ordered, with the first element at the start of a cache line. Raises MemoryError and ValueError as
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

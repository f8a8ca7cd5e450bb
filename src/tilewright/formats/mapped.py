"""Memory-mapped arrays, given back to the system when they have been read."""

from __future__ import annotations

import mmap

import numpy as np


def forget(array: np.ndarray) -> None:
    """Drop the resident pages of a view of a mapped file; they come back from the page cache when they are read again.

    Nothing happens to an array that is no view of a map, or on a system without MADV_DONTNEED.
    """
    base = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else base
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = array.ctypes.data - np.frombuffer(mapped, np.uint8, 1).ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages only: neighbours keep theirs
    length = (start + array.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        mapped.madvise(mmap.MADV_DONTNEED, first, length)

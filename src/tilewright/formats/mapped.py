"""Memory-mapped files: given back to the system when they have been read, and what to say where one has no page."""

from __future__ import annotations

import mmap
import threading
import weakref

import numpy as np

from tilewright.errors import TilewrightError, error_json

SLOTS = 512  # maps at a time: a model has one per file of weights
# int64 per map: first address, the address after the last, address and bytes of a text, exit code, address and bytes of
# the same error as JSON; zeros: no map. The signal action of runtime/process/bus_errors.py reads it.
FAULTS = np.zeros((SLOTS, 7), np.int64)
_lock = threading.Lock()


def explain_faults(mapped: mmap.mmap, error: TilewrightError) -> None:
    """Say what is wrong where a page of `mapped` cannot be read or written: until the map is closed, a SIGBUS in it
    ends the process with the text and the exit code of `error`, if the process is in `bus_errors.explained`."""
    text = np.frombuffer(f"Error: {error}\n".encode(errors="backslashreplace"), np.uint8)
    line = np.frombuffer(f"{error_json(error)}\n".encode("ascii"), np.uint8)
    begin = np.frombuffer(mapped, np.uint8, 1).ctypes.data
    with _lock:
        free = np.flatnonzero(FAULTS[:, 1] == 0)
        if not len(free):
            return
        slot = int(free[0])
        said = text.ctypes.data, text.nbytes, error.exit_code, line.ctypes.data, line.nbytes
        FAULTS[slot] = begin, begin + len(mapped), *said
    weakref.finalize(mapped, _clear, slot, text, line).atexit = False


def _clear(slot: int, text: np.ndarray, line: np.ndarray) -> None:
    """The map is closed; `text` and `line` are alive until then. No lock: the garbage collector may call this within
    the lock."""
    FAULTS[slot] = 0


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

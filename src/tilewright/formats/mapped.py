"""Memory-mapped files: how their pages are given back to the system, and the message if a page cannot be read."""

from __future__ import annotations

import mmap
import threading
import weakref

import numpy as np

from tilewright.errors import TilewrightError, error_json

SLOTS = 512  # maps that may exist at a time: a model has one per file of weights
# int64 per map: its first address, the address after its end, the address and the length of a text, the exit code, and
# the address and the length of the same error as JSON. Zeros: no map. The signal handler of
# runtime/process/bus_errors.py reads this.
FAULTS = np.zeros((SLOTS, 7), np.int64)
_lock = threading.Lock()


def explain_faults(mapped: mmap.mmap, error: TilewrightError) -> None:
    """Set the message for a page of `mapped` that cannot be read or written. Until the map is closed, a SIGBUS in it
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
    """Called when the map is closed. `text` and `line` exist until then. It takes no lock, because the garbage
    collector may call it while the lock is held."""
    FAULTS[slot] = 0


def forget(array: np.ndarray) -> None:
    """Drop the resident pages of a view of a mapped file. If they are read again, they come from the page cache.

    Nothing happens for an array that is no view of a map, or on a system without MADV_DONTNEED.
    """
    base = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else base
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = array.ctypes.data - np.frombuffer(mapped, np.uint8, 1).ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # only whole pages: neighbouring arrays keep theirs
    length = (start + array.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        mapped.madvise(mmap.MADV_DONTNEED, first, length)

"""Repeats the last call of `conv3d` with the same weights on arrays of the same shapes, without preparing it again.

A small volume takes less time than Python needs to prepare its launch, above all after other work has emptied the
caches. The second of two equal calls is recorded (`core/repeat.py`), and later ones run that recording. The kernel, its
tiles and the bits are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.ops.core.arrays import result_for
from tilewright.ops.core.ladder import any_forced
from tilewright.ops.core.launch import is_recorded, thread_count

if TYPE_CHECKING:
    from tilewright.ops.core.repeat import RepeatedLaunch

FLOAT32 = np.dtype(np.float32)
# Bytes of out up to which calls are recorded: a larger result takes 20 times as long as its preparation in Python. Less
# than `tiles.STREAMED`, from which on a launch depends on the address of out.
LARGEST = 8 << 20


class Call(NamedTuple):
    """What decides how a volume is convolved, besides the weights. shape, strides: of out. cval: its bytes as
    a float64, because 0.0 equals -0.0 but they are two borders, and a float32 may overflow. thread: the caller's."""

    x_shape: tuple[int, ...]
    x_strides: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    mode: str
    cval: bytes
    origin: int
    thread: int
    threads: int


class Memo:
    """The last CPU call with these weights, and its recording once that call was repeated.

    Two threads that take turns with the same weights never repeat a call. Copies of the weights have memos of their
    own, because a recording holds addresses.
    """

    def __init__(self) -> None:
        self.last: tuple[Call, RepeatedLaunch | None] | None = None
        self.refused: Call | None = None  # cannot be recorded: its rung copies the volume first

    def __reduce__(self) -> tuple:
        return Memo, ()

    def repeated(self, x, out, mode, cval, origin) -> Any:
        """The result, if a call like this one is recorded; otherwise None. The arguments are `conv3d`'s, and not
        checked."""
        last, launch = self.last or (None, None)
        if (
            last is None
            or launch is None
            or x.__class__ is not np.ndarray
            or x.dtype is not FLOAT32
            or x.shape != last.x_shape
            or x.strides != last.x_strides
            or mode.__class__ is not str
            or mode != last.mode
            or cval.__class__ is not float
            or np.float64(cval).tobytes() != last.cval
            or origin.__class__ is not int
            or origin != last.origin
            or threading.get_ident() != last.thread
            or thread_count() != last.threads
            or any_forced()
            or is_recorded()
        ):
            return None
        if out is None:
            out = result_for("conv3d", None, last.shape)
        if out.__class__ is not np.ndarray or out.dtype is not FLOAT32 or out.shape != last.shape:
            return None
        if out.strides != last.strides or not (out.flags.behaved and x.flags.aligned):
            return None
        return out if launch.run(x, out) else None

    def run(self, compute: Callable[[], None], x: np.ndarray, out: np.ndarray, mode, cval, origin) -> None:
        """Call `compute`, which convolves the volume x into out, and record it if it is like the last call.

        x and out are as the caller passed them, and so are the other arguments of `conv3d`. Never recorded: volumes
        with channels, results of more than LARGEST bytes, calls of a forced rung, a `cval` that is no float.
        """
        plain = x.__class__ is out.__class__ is np.ndarray and origin.__class__ is int and x.ndim == 3
        plain = plain and cval.__class__ is float
        in_rows = x.strides[-1:] == out.strides[-1:] == (FLOAT32.itemsize,) and 0 < out.nbytes <= LARGEST
        if not (plain and in_rows) or any_forced() or is_recorded():
            compute()
            return
        border, thread = (mode, np.float64(cval).tobytes(), origin), threading.get_ident()
        call = Call(x.shape, x.strides, out.shape, out.strides, *border, thread, thread_count())
        if self.last is None or self.last[0] != call or call == self.refused:
            self.last = call, None
            compute()
            return
        from tilewright.ops.core.repeat import record  # imports Numba

        launch = record(compute, x, out)
        self.last, self.refused = (call, launch), None if launch else call

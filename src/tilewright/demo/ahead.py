"""Another process compiles the kernels that the demo needs late, while the demo compiles those that it needs first.

Numba compiles one kernel at a time in a process, on one core. When the demo needs such a kernel, it is in the cache on
disk. If it is not there yet, the demo compiles it itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.demo import course, named


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """A block during which that process runs; it ends with the block. No process is started if the cache has kernels or
    is off, or if there is only one core."""
    process = _started() if _is_worth_it() else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def _started() -> subprocess.Popen:
    null = subprocess.DEVNULL
    return subprocess.Popen(_command(), stdin=null, stdout=null, stderr=null)


def _command() -> list[str]:
    return [sys.executable, "-P", "-m", "tilewright.demo.ahead"]  # -P: nothing is imported from the current directory


def _is_worth_it() -> bool:
    from tilewright.hardware import cpu
    from tilewright.simd import cache

    if cpu().cores < 2 or os.environ.get("TILEWRIGHT_CACHE") == "off":
        return False
    return next(cache.directory().glob("*.kernel"), None) is None


def compile_late_kernels() -> None:
    """Call what the demo calls last, with little data, in the same order."""
    import numpy as np

    from tilewright.ops.conv3d import conv3d
    from tilewright.ops.conv_transpose2d import conv_transpose2d
    from tilewright.ops.matmul import prepare
    from tilewright.ops.matmul_argmax import matmul_argmax
    from tilewright.ops.matmul_argmax import prepare as prepare_argmax
    from tilewright.runtime.verbs.convolve.kernels import kernel_of, prepared_float32

    portraits = named.shipped("portraits")
    for shape, (kernel, bias, activation) in zip(portraits.config.shapes(), portraits.layers, strict=False):
        conv_transpose2d(np.zeros((1, *shape), np.float32), kernel, bias=bias, activation=activation)
    volume = np.zeros((4, 16, 64), np.float32)
    conv3d(volume, prepared_float32(kernel_of(named.KERNEL)))
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((64, 256), np.float32)
    matmul_argmax(weights[:2, :64], prepare_argmax(weights, weights=prepare(weights)))
    conv3d(volume, rng.random((course.TAPS,) * 3, np.float32))


if __name__ == "__main__":
    compile_late_kernels()

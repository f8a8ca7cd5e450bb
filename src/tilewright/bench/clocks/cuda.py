"""The GPU's clock: CUDA events around a call, with a cold L2.

The L2 is emptied by writing a buffer four times its size, several times. Meanwhile the call is queued, so only the
GPU's work is timed and not its launch.
"""

from collections.abc import Callable
from typing import Any

from tilewright.bench.measure import Call
from tilewright.errors import ResourceError
from tilewright.formats.packages import install_command
from tilewright.hardware import gpus, no_gpu

FLUSHES = 32  # two milliseconds on an H100: longer than it takes to queue any call. numba-cuda takes up to 1.3 ms for
# a kernel with 125 weights as arguments; with 8 flushes a Gaussian of 0.13 ms seemed to take 0.2 to 0.7
CPU_INSTEAD = "leave --device cuda out to measure the CPU"


def torch_on_a_gpu():
    """torch. Raises ResourceError if it is not installed, or has no GPU."""
    if why := no_gpu():
        raise ResourceError(f"there is no GPU to measure: {why}", remedy=CPU_INSTEAD)
    try:
        import torch
    except ImportError as error:
        remedy = f"install it: {install_command('gpu')}"
        raise ResourceError("measuring on a GPU needs PyTorch", remedy=remedy) from error
    if not torch.cuda.is_available():
        raise ResourceError("there is no GPU to measure: PyTorch sees none", remedy=CPU_INSTEAD)
    return torch


class CudaClock:
    """Times calls on the current stream. Raises ResourceError without a GPU."""

    def __init__(self) -> None:
        self.torch = torch_on_a_gpu()
        self.flush = self.torch.empty(4 * gpus()[0].l2, dtype=self.torch.uint8, device="cuda")

    def time(self, call: Call, check: Callable[[Any], None] | None = None) -> Callable[[], float]:
        """See `measure.Clock`."""
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        for i in range(FLUSHES):
            self.flush.fill_(i)
        start.record()
        result = call()
        stop.record()
        if check is not None:
            check(result)

        def seconds() -> float:
            stop.synchronize()
            return start.elapsed_time(stop) / 1e3

        return seconds

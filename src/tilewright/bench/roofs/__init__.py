"""The machine's limits, measured in the same process as the kernels.

A kernel's share of the roof is its rate over the smaller of two limits: the arithmetic rate, and the bandwidth times
its operations per byte.
"""

from tilewright.bench.roofs.limits import Roofs


def measured_roofs(threads: int) -> Roofs:
    """Measure the limits of so many CPU threads, or of the GPU for 0: once per process, in seconds.

    Raises ResourceError for 0 without a GPU.
    """
    if threads:
        from tilewright.bench.roofs import cpu

        return cpu.roofs(threads)
    from tilewright.bench.roofs import cuda

    return cuda.roofs()

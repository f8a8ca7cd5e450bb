"""The machine's limits, measured in the same process as the kernels.

A kernel's share of the limit is its rate divided by the lower of two limits. One is the arithmetic rate, the other is
the memory bandwidth times the kernel's operations per byte. The code calls a limit a roof, after the roofline model.
"""

from tilewright.bench.roofs.limits import Roofs


def measured_roofs(threads: int) -> Roofs:
    """Measure the limits of this number of CPU threads, or of the GPU for 0. It takes seconds, once per process.

    Raises ResourceError for 0 if there is no GPU.
    """
    if threads:
        from tilewright.bench.roofs import cpu

        return cpu.roofs(threads)
    from tilewright.bench.roofs import cuda

    return cuda.roofs()

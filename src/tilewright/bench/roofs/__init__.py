"""The machine's limits, measured in the same process as the kernels.

A kernel's share of the roof is its rate over the smaller of two limits: the arithmetic rate, and the bandwidth times
its operations per byte.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Roofs:
    """threads: of the CPU; 0 on a GPU. copy_gbytes_s counts bytes read and written. gflops: by accuracy class.

    instructions: GFLOP/s of each kind of multiply-add of a CPU, None where it has no such instruction. link_gbytes_s:
    of a GPU, from pinned memory to it, from it to pinned memory, and from pageable memory to it.
    """

    threads: int
    copy_gbytes_s: float
    gflops: dict[str, float]
    instructions: dict[str, float | None] = field(default_factory=dict)
    link_gbytes_s: dict[str, float] = field(default_factory=dict)

    def seconds(self, flops: float, nbytes: float, dtype: str) -> float:
        """The least time for that many operations and bytes."""
        return max(flops / self.gflops[dtype], nbytes / self.copy_gbytes_s) / 1e9

    def columns(self, flops: float, nbytes: float, dtype: str, seconds: float) -> dict[str, Any]:
        """The columns of a result row that say how fast so much work was, and how near its roof."""
        return {
            "gflops": flops / seconds / 1e9 or None,
            "gbytes_s": nbytes / seconds / 1e9 or None,
            "roof_share": self.seconds(flops, nbytes, dtype) / seconds or None,
            "roof_gflops": self.gflops[dtype],
            "roof_gbytes_s": self.copy_gbytes_s,
        }


def measured_roofs(threads: int) -> Roofs:
    """Measure the limits of so many CPU threads, or of the GPU for 0: once per process, in seconds.

    Raises ResourceError for 0 without a GPU.
    """
    if threads:
        from tilewright.bench.roofs import cpu

        return cpu.roofs(threads)
    from tilewright.bench.roofs import cuda

    return cuda.roofs()

"""The measured limits of a machine."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Roofs:
    """threads: number of CPU threads; 0 on a GPU. copy_gbytes_s: counts the bytes read and the bytes written. gflops:
    by accuracy class.

    instructions: GFLOP/s of each kind of multiply-add instruction of a CPU; None if the CPU lacks it. link_gbytes_s: of
    a GPU, for copies from pinned memory, to pinned memory, and from pageable memory.
    """

    threads: int
    copy_gbytes_s: float
    gflops: dict[str, float]
    instructions: dict[str, float | None] = field(default_factory=dict)
    link_gbytes_s: dict[str, float] = field(default_factory=dict)

    def seconds(self, flops: float, nbytes: float, dtype: str) -> float:
        """The shortest time that the limits allow for this many operations and bytes."""
        return max(flops / self.gflops[dtype], nbytes / self.copy_gbytes_s) / 1e9

    def columns(self, flops: float, nbytes: float, dtype: str, seconds: float) -> dict[str, Any]:
        """The columns of a result row with the rates of this work, and its share of the limit."""
        return {
            "gflops": flops / seconds / 1e9 or None,
            "gbytes_s": nbytes / seconds / 1e9 or None,
            "roof_share": self.seconds(flops, nbytes, dtype) / seconds or None,
            "roof_gflops": self.gflops[dtype],
            "roof_gbytes_s": self.copy_gbytes_s,
        }

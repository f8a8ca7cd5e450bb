"""The volume job: the planes of a volume are convolved with a kernel of 5 x 5 x 5 taps, with zeros outside the
volume."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.bench.job_ladders.steps import Job, Program, Published, Step
from tilewright.bench.sizes import conv3d as sizes
from tilewright.ops.conv3d import conv3d, prepare
from tilewright.ops.core.gpu.tensors import moved

SIDE = {"cpu": 128, "cuda": 256}  # rows and columns of a plane; on a CPU as in the course's volume 3
TAPS = 5
HALO = TAPS // 2  # planes that a result needs on each side of its own
SAMPLE = 4  # planes that are compared with float64; all planes are compared with the last step
SEED = 1


class Planes:
    """See `steps.Workload`. On a GPU the volume and the result stay there."""

    def __init__(self, count: int, device: str):
        side = SIDE[device]
        case = sizes.Case(count, side, side, TAPS, TAPS, TAPS, device=device)
        inputs = sizes.make(case, np.random.default_rng(SEED))
        near = inputs | {"x": inputs["x"][: SAMPLE + HALO]}
        few = sizes.with_rows(case, SAMPLE + HALO)
        self.exact = sizes.reference(few, near)[:SAMPLE]
        self.allowed = sizes.bound(few, near, self.exact)[:SAMPLE]
        self.total, self.device, self.weights = count, device, inputs["weights"]
        self.volume: Any = inputs["x"] if device == "cpu" else moved({"x": inputs["x"]}, device)["x"]

    def program(self, step: Step) -> Program:
        """See `steps.Workload`. For n planes it also reads the planes after them, which the last results need."""
        packed = prepare(self.weights, device=self.device)

        def planes(n: int) -> Any:
            y = conv3d(self.volume[: n + HALO], packed)[:n]
            if self.device != "cpu":
                import torch

                torch.cuda.synchronize()
            return y

        return planes

    def error(self, results: Any) -> float:
        """See `steps.Workload`."""
        found = _host(results[:SAMPLE])
        return float((np.abs(found - self.exact[: len(found)]) / self.allowed[: len(found)]).max())

    def difference(self, results: Any, today: Any) -> float:
        """See `steps.Workload`."""
        return float(abs(results - today).max()) / (2 * float(self.allowed.max()))


def _host(results: Any) -> np.ndarray:
    return results if isinstance(results, np.ndarray) else results.cpu().numpy()


CPU = (
    Step("one thread", "six loops; the sum stays in a register", {"conv3d": "cpu.naive"}, threads=1),
    Step("SIMD over the window", "the taps are one run of vectors, which is added up once at the end",
         {"conv3d": "cpu.taps"}, threads=1),
    Step("SIMD and threads", "threads take planes", {"conv3d": "cpu.taps"}),
    Step("vectors along rows", "a vector is a piece of a row of outputs", {"conv3d": "cpu.vectors"}),
    Step("register blocks", "sixteen rows of outputs stay in registers, and each loaded vector feeds several of them"),
)  # fmt: skip
GPU = (
    Step("naive", "one thread per output; elements and weights from device memory", {"conv3d": "simt.naive"}),
    Step("constant memory", "weights in constant memory, the loops over taps unrolled", {"conv3d": "simt.constant"}),
    Step("shared memory", "a block's tile with its halo in shared memory", {"conv3d": "simt.shared"}),
    Step("marching planes", "planes march through shared memory; an element in a register feeds several open sums"),
)  # fmt: skip
MACHINE = "a CPU of a cluster and its GPU, models not stated; one thread is 1"
PUBLISHED = (Published("threads and SIMD", 2.78, MACHINE), Published("GPU", 837, MACHINE))
JOB = Job(
    "convolve", "planes",
    "A volume of random values is convolved with a kernel of 5 x 5 x 5 random taps. A plane has 128 x 128 voxels on a "
    "CPU, 256 x 256 on a GPU, where the volume and the result stay.",
    CPU, GPU, {"cpu": 128, "cuda": 1024}, Planes, PUBLISHED,
)  # fmt: skip

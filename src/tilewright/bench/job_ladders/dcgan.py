"""The image job: the course's DCGAN generator, 64 x 64 pixels, random weights."""

from __future__ import annotations

import numpy as np

from tilewright.bench.job_ladders.steps import Job, Program, Step, in_batches
from tilewright.bench.workloads.dcgan import TOLERANCE, random_weights
from tilewright.bench.workloads.dcgan_reference import reference_images
from tilewright.models.dcgan import DCGAN, DCGANConfig, noise

SAMPLE = 4  # images that are compared with float64; all are compared with the last step
LIMIT = TOLERANCE["float32"]  # of a value from -1 to 1
LAYERS = 4


class Images:
    """See `steps.Workload`."""

    def __init__(self, count: int, device: str):
        self.config, self.device, self.total = DCGANConfig(), device, count
        self.weights = random_weights(self.config, seed=1)
        self.noise = noise(1, 0, count, self.config.z_size)
        self.exact = reference_images(self.config, self.weights, self.noise[:SAMPLE])

    def program(self, step: Step) -> Program:
        """See `steps.Workload`."""
        model = DCGAN(self.config, self.weights, device=self.device)
        return lambda n: in_batches(model.generate, self.noise[:n], step.batch)

    def error(self, results: np.ndarray) -> float:
        """See `steps.Workload`."""
        return float(np.abs(results[:SAMPLE] - self.exact[: len(results)]).max()) / LIMIT

    def difference(self, results: np.ndarray, today: np.ndarray) -> float:
        """See `steps.Workload`."""
        return float(np.abs(results - today).max()) / (2 * LIMIT)


def _products(count: int, product: str, other: str, matmul: str) -> dict[str, str]:
    """The rungs of a step that computes the first `count` layers as products, and the others without."""
    layers = {f"conv_transpose2d@{i}": product if i <= count else other for i in range(1, LAYERS + 1)}
    return {**layers, "matmul": matmul}


CPU = (
    Step("naive", "every input adds its kernel to the outputs around it; one image per call, one thread",
         {"conv_transpose2d": "cpu.scatter", "matmul": "cpu.memory"}, threads=1, batch=1),
    Step("threads", "threads draw images; all images in one call",
         {"conv_transpose2d": "cpu.scatter", "matmul": "cpu.memory"}),
    Step("two layers as products", "layers 1 and 2 are one product each over the input with zeros between its pixels",
         _products(2, "cpu.zero_inserted", "cpu.scatter", "cpu.packed")),
    Step("three layers as products", "layer 3, too", _products(3, "cpu.zero_inserted", "cpu.scatter", "cpu.packed")),
    Step("four layers as products", "layer 4, too", {"conv_transpose2d": "cpu.zero_inserted", "matmul": "cpu.packed"}),
    Step("phases", "outputs one stride apart are an ordinary convolution: no product by an inserted zero",
         {"conv_transpose2d": "cpu.phases"}),
    Step("fused", "one pass over an image for all phases, bias and activation as the sums leave",
         {"conv_transpose2d": "cpu.fused"}),
    Step("images together", "small images share a block of rows, so that weights are read less often",
         {"conv_transpose2d": "cpu.images"}),
    Step("Winograd", "tiles of outputs share products; few channels lie along vectors of pixels"),
)  # fmt: skip
GPU = (
    Step("naive", "one thread per output, which tests each tap; one image per call",
         {"conv_transpose2d": "simt.gather_tested", "matmul": "simt.register"}, batch=1),
    Step("batched", "all images in one call",
         {"conv_transpose2d": "simt.gather_tested", "matmul": "simt.register"}),
    Step("branch-free", "taps one stride apart: no test is left in the loop",
         {"conv_transpose2d": "simt.gather", "matmul": "simt.register"}),
    Step("two layers as products", "layers 1 and 2 are one product each over the input with zeros between its pixels",
         _products(2, "simt.zero_inserted", "simt.gather", "simt.shared")),
    Step("three layers as products", "layer 3, too", _products(3, "simt.zero_inserted", "simt.gather", "simt.shared")),
    Step("four layers as products", "layer 4, too",
         {"conv_transpose2d": "simt.zero_inserted", "matmul": "simt.shared"}),
    Step("tiling in the product", "8 x 8 sums per thread in registers, loads ahead of the products",
         {"conv_transpose2d": "simt.zero_inserted", "matmul": "simt.buffered"}),
    Step("phases", "outputs one stride apart are an ordinary convolution: no product by an inserted zero",
         {"conv_transpose2d": "simt.phases", "matmul": "simt.buffered"}),
    Step("tensor cores", "all phases in one launch, float32 as two bfloat16 limbs on matrix units",
         {"conv_transpose2d": "tile.limbs"}),
    Step("bulk copies", "boxes of positions come by bulk copies; few channels share one product"),
)  # fmt: skip
JOB = Job(
    "dcgan", "images",
    "The course's DCGAN generator with random weights; float32 images on the host.",
    CPU, GPU, {"cpu": 960, "cuda": 1 << 14}, Images,
)  # fmt: skip

"""The image job: the course's DCGAN generator, 64 x 64 pixels, random weights."""

from __future__ import annotations

import numpy as np

from tilewright.bench.job_ladders.steps import Job, Program, Step
from tilewright.bench.workloads.dcgan import TOLERANCE, random_weights
from tilewright.bench.workloads.dcgan_reference import reference_images
from tilewright.formats.images import pixels
from tilewright.models.dcgan import DCGAN, DCGANConfig
from tilewright.models.noise import noise
from tilewright.switches import Without

SAMPLE = 4  # images that are compared with float64; all images are compared with the last step
LIMIT = TOLERANCE["float32"]  # absolute error; values are from -1 to 1
LEVEL = 2 / 255  # the values that one 8-bit pixel stands for
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
        model = DCGAN(self.config, self.weights, device=self.device, without=step.without)
        size = step.batch or model.batch

        def images(n: int) -> np.ndarray:
            found = np.empty((n, *self.config.image_shape), np.uint8 if step.pixels else np.float32)
            batches = (self.noise[first : min(first + size, n)] for first in range(0, n, size))
            for i, (some, _) in enumerate(model.stream(batches, pixels=step.pixels)):
                found[i * size : (i + 1) * size] = some
            return found

        return images

    def error(self, results: np.ndarray) -> float:
        """See `steps.Workload`. Every 8-bit pixel must be that of a float32 image, whose error then counts."""
        if results.dtype != np.uint8:
            return float(np.abs(results[:SAMPLE] - self.exact[: len(results)]).max()) / LIMIT
        images = DCGAN(self.config, self.weights, device=self.device).generate(self.noise[: len(results)])
        off = np.abs(results.astype(np.int16) - pixels(images)).max()
        return max(self.error(images), float(off) * LEVEL / LIMIT)

    def difference(self, results: np.ndarray, today: np.ndarray) -> float:
        """See `steps.Workload`."""
        return float(np.abs(results - today).max()) / (2 * LIMIT)


def _products(count: int, product: str, other: str, matmul: str) -> dict[str, str]:
    """The rungs of a step that computes the first `count` layers as matrix products, and the other layers in another
    way."""
    layers = {f"conv_transpose2d@{i}": product if i <= count else other for i in range(1, LAYERS + 1)}
    return {**layers, "matmul": matmul}


NORMS: Without = frozenset({"folding"})
PLAIN: Without = NORMS | {"graphs", "overlap", "pinned"}  # a first program on a GPU uses none of these
CPU = (
    Step("naive", "every input adds its kernel to the outputs around it; one image per call, one thread",
         {"conv_transpose2d": "cpu.scatter", "matmul": "cpu.memory"}, NORMS, threads=1, batch=1),
    Step("batched", "all images in one call, still on one thread",
         {"conv_transpose2d": "cpu.scatter", "matmul": "cpu.memory"}, NORMS, threads=1),
    Step("two layers as products", "layers 1 and 2 are products over the input with zeros inserted; threads share them",
         _products(2, "cpu.zero_inserted", "cpu.scatter", "cpu.packed"), NORMS),
    Step("three layers as products", "layer 3, too",
         _products(3, "cpu.zero_inserted", "cpu.scatter", "cpu.packed"), NORMS),
    Step("four layers as products", "layer 4, too",
         {"conv_transpose2d": "cpu.zero_inserted", "matmul": "cpu.packed"}, NORMS),
    Step("phases", "outputs one stride apart are an ordinary convolution: no product by an inserted zero",
         {"conv_transpose2d": "cpu.phases"}, NORMS),
    Step("folding", "norms are folded into the weights before them", {"conv_transpose2d": "cpu.phases"}),
    Step("fused", "one pass over an image for all phases, bias and activation as the sums leave",
         {"conv_transpose2d": "cpu.fused"}),
    Step("images together", "small images share a block of rows, so that weights are read less often",
         {"conv_transpose2d": "cpu.images"}),
    Step("Winograd", "tiles of outputs share products; few channels lie along vectors of pixels"),
    Step("8-bit pixels", "images become 8-bit pixels, as pictures need them: a quarter of the bytes, one more pass",
         pixels=True),
)  # fmt: skip
GPU = (
    Step("naive", "one thread per output, which tests each tap; one image per call",
         {"conv_transpose2d": "simt.gather_tested", "matmul": "simt.register"}, PLAIN, batch=1),
    Step("batched", "all images in one call",
         {"conv_transpose2d": "simt.gather_tested", "matmul": "simt.register"}, PLAIN),
    Step("branch-free", "taps one stride apart: no test is left in the loop",
         {"conv_transpose2d": "simt.gather", "matmul": "simt.register"}, PLAIN),
    Step("two layers as products", "layers 1 and 2 are one product each over the input with zeros between its pixels",
         _products(2, "simt.zero_inserted", "simt.gather", "simt.shared"), PLAIN),
    Step("three layers as products", "layer 3, too",
         _products(3, "simt.zero_inserted", "simt.gather", "simt.shared"), PLAIN),
    Step("four layers as products", "layer 4, too",
         {"conv_transpose2d": "simt.zero_inserted", "matmul": "simt.shared"}, PLAIN),
    Step("tiling in the product", "8 x 8 sums per thread in registers, loads ahead of the products",
         {"conv_transpose2d": "simt.zero_inserted", "matmul": "simt.buffered"}, PLAIN),
    Step("phases", "outputs one stride apart are an ordinary convolution: no product by an inserted zero",
         {"conv_transpose2d": "simt.phases", "matmul": "simt.buffered"}, PLAIN),
    Step("tensor cores", "all phases in one launch, float32 as two bfloat16 limbs on matrix units",
         {"conv_transpose2d": "tile.limbs"}, PLAIN),
    Step("bulk copies", "boxes of positions come by bulk copies; few channels share one product", without=PLAIN),
    Step("folding", "norms are folded into the weights before them", without=PLAIN - NORMS),
    Step("pinned memory", "images are copied to page-locked memory", without=frozenset({"graphs", "overlap"})),
    Step("overlap", "a batch is computed while the one before is copied to the host", without=frozenset({"graphs"})),
    Step("CUDA graph", "all kernels of a batch are launched at once"),
    Step("8-bit pixels", "the GPU makes 8-bit pixels of the images, so a quarter of the bytes is copied", pixels=True),
)  # fmt: skip
JOB = Job(
    "dcgan", "images",
    "The course's DCGAN generator with random weights; images on the host. They are float32, in the last step 8-bit "
    "pixels: each byte must be that of the float32 image.",
    CPU, GPU, {"cpu": 960, "cuda": 1 << 13}, Images,
)  # fmt: skip

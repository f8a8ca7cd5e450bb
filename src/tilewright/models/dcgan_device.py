"""DCGAN's generator on one GPU: a batch of images is one CUDA graph, from noise to images or to 8-bit pixels.

Between layers numbers are kept in the 16 bits of the class, where it has such. What a batch reads and writes lies in
one of `SLOTS` places, so that the results of one can be copied to the host while the next is computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.models.graphs import captured
from tilewright.ops.conv_transpose2d import conv_transpose2d
from tilewright.ops.conv_transpose2d import prepare as prepare_convolution
from tilewright.ops.core.gpu.tensors import torch_dtype
from tilewright.ops.matmul import matmul, prepare
from tilewright.ops.matmul.problem import DEVICE_DTYPES

if TYPE_CHECKING:
    from tilewright.models.dcgan import DCGANConfig

BATCH = 1024  # images of a graph
BATCH_FLOATS = 2**28  # that they may take behind a layer, where they are larger: 1 GiB
SLOTS = 2
ROW = 8  # noise is padded with zeros to a multiple: 16 bytes of 16-bit numbers


def batch_for(config: DCGANConfig) -> int:
    """Images of a graph, where nobody says."""
    largest = max(math.prod(shape) for shape in config.shapes())
    return max(1, min(BATCH, BATCH_FLOATS // largest))


class Generator:
    """layers: float32 (weights, bias) of the projection and each layer, norms folded in. batch: images of a graph, None
    for BATCH, or as many as fit BATCH_FLOATS. place: "cuda"; elsewhere there is no graph, and kernels are simulated.
    """

    def __init__(
        self,
        config: DCGANConfig,
        layers: Iterable[tuple[np.ndarray, np.ndarray]],
        *,
        dtype: str,
        batch: int | None = None,
        place: str = "cuda",
    ):
        import torch

        if dtype not in DEVICE_DTYPES:
            raise UsageError(f"DCGAN: dtype is {dtype!r}; on a GPU {', '.join(DEVICE_DTYPES)} are")
        self.config, self.place = config, place
        self.batch = batch or batch_for(config)
        (matrix, bias), *kernels = ((self._moved(weights), self._moved(bias)) for weights, bias in layers)
        wide = matrix.new_zeros(-(-config.z_size // ROW) * ROW, matrix.shape[1])
        wide[: config.z_size] = matrix
        self.projection = prepare(wide, dtype=dtype), bias
        self.layers = []
        for layer, (kernel, bias), activation in zip(config.layers, kernels, config.activations, strict=True):
            padding = (layer.padding, layer.padding)
            prepared = prepare_convolution(kernel, stride=layer.stride, padding=padding, dtype=dtype)
            self.layers.append((prepared, bias, activation))
        inner, last = list(config.shapes())[:-1], config.image_shape
        kinds = {"device": place, "dtype": torch_dtype(dtype)}
        self.between = [torch.empty((self.batch, *shape), **kinds) for shape in inner]
        self.noise = [torch.zeros(self.batch, len(wide), device=place) for _ in range(SLOTS)]
        self.images = [torch.zeros((self.batch, *last), device=place) for _ in range(SLOTS)]
        self.pixels = [torch.zeros((self.batch, *last), dtype=torch.uint8, device=place) for _ in range(SLOTS)]
        self.spoiled = [torch.zeros(self.batch, dtype=torch.uint8, device=place) for _ in range(SLOTS)]
        self._staged = [torch.zeros(x.shape, pin_memory=x.is_cuda) for x in self.noise]
        self._graphs: dict[tuple[int, bool], Any] = {}
        self._pool: Any = None

    def _moved(self, array: np.ndarray):
        import torch

        return torch.from_numpy(np.array(array, np.float32, order="C")).to(self.place)

    def start(self, slot: int, z: np.ndarray, *, pixels: bool = False) -> int:
        """Queue the images of z float32 (n, z_size), n at most a batch; returns n.

        They will be the first n of `images[slot]`; with pixels, 8-bit ones of `pixels[slot]`, and `spoiled[slot]` is 1
        where an image held a NaN. Slots are used in turn: what was queued two calls ago must have been copied by now.
        """
        self._staged[slot][: len(z), : z.shape[1]].numpy()[:] = z
        self.noise[slot].copy_(self._staged[slot], non_blocking=True)
        self.replay(slot, pixels=pixels)
        return len(z)

    def generate(self, z: np.ndarray, out: np.ndarray) -> None:
        """z float32 (n, z_size) -> out float32 (n, height, width, channels), both on the host."""
        import torch

        for first in range(0, len(z), self.batch):
            some = slice(first, first + self.batch)
            count = self.start(0, z[some])
            torch.from_numpy(out[some]).copy_(self.images[0][:count])

    def run(self, slot: int, *, pixels: bool = False) -> None:
        """Queue the kernels of a whole batch, one by one."""
        matrix, bias = self.projection
        count = self.batch
        matmul(self.noise[slot], matrix, bias=bias, activation="relu", out=self.between[0].view(count, matrix.N))
        for i, (kernel, bias, activation) in enumerate(self.layers):
            out = (*self.between[1:], self.images[slot])[i]
            conv_transpose2d(self.between[i], kernel, bias=bias, activation=activation, out=out)
        if pixels:
            self.convert(slot)

    def convert(self, slot: int) -> None:
        """Queue the 8-bit pixels of a slot's images."""
        from tilewright.ops.conv_transpose2d.tile.pixels import pixels

        pixels(self.images[slot], out=self.pixels[slot], invalid=self.spoiled[slot])

    def warm_up(self, *, pixels: bool = False) -> None:
        """Run a batch in every slot, so that all memory is taken that any will. Raises torch's OutOfMemoryError."""
        for slot in range(SLOTS):
            self.replay(slot, pixels=pixels)

    def replay(self, slot: int, *, pixels: bool = False) -> None:
        """Queue a batch as `run` does, as a graph: captured when it is first wanted, after a run that compiles."""
        import torch

        if not self.noise[slot].is_cuda:
            return self.run(slot, pixels=pixels)
        if (slot, pixels) not in self._graphs:
            self.run(slot, pixels=pixels)
            torch.cuda.synchronize()
            self._pool = self._pool or torch.cuda.graph_pool_handle()  # no graph leaves anything in it
            self._graphs[slot, pixels], _ = captured(partial(self.run, slot, pixels=pixels), self._pool)
        self._graphs[slot, pixels].replay()
        return None

"""DCGAN's generator: images from noise by a stack of transposed convolutions.

    x = relu(norm(z @ W + b)) seen as (size, size, channels)
    x = relu(norm(conv_transpose2d(x)))          # all layers but the last
    image = tanh(conv_transpose2d(x))            # (height, width, channels), each value from -1 to 1

Batch-norm uses the stored mean and variance, so it is a scale and a shift, and folds into the weights before it. What
PyTorch's example calls its first layer, a transposed convolution of 1x1 pixels, is the projection here.
Source: Radford et al., "Unsupervised Representation Learning with Deep Convolutional Generative Adversarial Networks",
2016.
"""

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from tilewright.backends import Backend, backend, footprint
from tilewright.backends.memory import checked_batch
from tilewright.backends.pixels import to_pixels
from tilewright.backends.protocol import Array, Arrays, Batches, Network, Operand, Span, unmeasured
from tilewright.errors import InputError, UsageError, WrongType
from tilewright.ops.batchnorm import batchnorm, fold
from tilewright.ops.conv_transpose2d import Packed, conv_transpose2d
from tilewright.ops.conv_transpose2d import Problem as Convolution
from tilewright.ops.conv_transpose2d import ladder as convolution_ladder
from tilewright.ops.conv_transpose2d import prepare as prepare_convolution
from tilewright.ops.conv_transpose2d.arguments import axes
from tilewright.ops.core.arrays import BFLOAT16, NO_NUMBERS, as_numpy, result_for
from tilewright.ops.core.ladder import Memory, check_layers
from tilewright.ops.core.layers import layer as layer_of
from tilewright.ops.matmul import matmul
from tilewright.ops.matmul import prepare as prepare_matrix
from tilewright.switches import Without, check_switches

MODEL_TYPE = "dcgan"
MAX_SIZE = 2**31 - 1  # the integers that kernels count with must not overflow
MAX_LAYERS = 64  # a limit, because names of tensors are made from it before a file is read
MAX_FLOATS = 2**28  # per image after a layer, 1 GiB. No weight's shape depends on the stride, so only this limits it
SLOTS = 2  # batches in flight on a GPU: one is computed while the one before is copied to the host


class Batch(NamedTuple):
    """images: of a batch. floats: the most of a batch between two layers, which limits it if images are large."""

    images: int
    floats: int


# On the CPU 12 MiB between two layers: 48 images are 9 % faster than 32 and 4 % faster than 96. On a GPU at most 1 GiB.
BATCH = {"cpu": Batch(48, 2**22), "cuda": Batch(1024, 2**28)}


class DCGANLayer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A transposed convolution. From (H, W) pixels it makes ((H - 1) * stride + kernel) minus the padding, per axis.
    The padding is a pair: pixels that are cropped before and after."""

    channels: int
    kernel: int = 5
    stride: int = 2
    padding: tuple[int, int] = (1, 2)

    def __post_init__(self):
        for name in ("channels", "kernel", "stride"):
            if not 1 <= getattr(self, name) <= MAX_SIZE:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1 and at most {MAX_SIZE} is wanted")
        if not all(0 <= cropped <= MAX_SIZE for cropped in self.padding):
            raise ValueError(f"padding is {self.padding}; two numbers of at least 0 are wanted, before and after")

    def size(self, before: int) -> int:
        """Pixels per side, from those of the layer before."""
        return (before - 1) * self.stride + self.kernel - sum(self.padding)


def doubling(channels: Iterable[int], kernel: int) -> tuple[DCGANLayer, ...]:
    """Layers that each double the size. kernel: at least 2. If an odd number of pixels must be cropped, one more is
    cropped at the end, as in TensorFlow."""
    before = (kernel - 2) // 2
    padding = (before, kernel - 2 - before)
    return tuple(DCGANLayer(channels=count, kernel=kernel, padding=padding) for count in channels)


CHANNELS, KERNEL = (512, 256, 128, 64, 3), 5  # the course's


class DCGANConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes of a generator; the defaults are the course's. Raises ValueError for sizes that do not make a network.

    size, channels: pixels per side and channels after the projection. bias: whether projection and layers have a bias.
    """

    model_type: str = MODEL_TYPE
    z_size: int = 100
    size: int = 4
    channels: int = CHANNELS[0]
    layers: tuple[DCGANLayer, ...] = doubling(CHANNELS[1:], KERNEL)
    batch_norm_eps: float = 1e-5
    bias: bool = True

    def __post_init__(self):
        if self.model_type != MODEL_TYPE:
            raise ValueError(f"model_type is {self.model_type!r:.100}; {MODEL_TYPE!r} is wanted")
        for name in ("z_size", "size", "channels"):
            if not 1 <= getattr(self, name) <= MAX_SIZE:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1 and at most {MAX_SIZE} is wanted")
        if not 1 <= len(self.layers) <= MAX_LAYERS:
            raise ValueError(f"layers are {len(self.layers)}; at least 1 and at most {MAX_LAYERS} is wanted")
        if not 0 < self.batch_norm_eps < 1:
            raise ValueError(f"batch_norm_eps is {self.batch_norm_eps}; it must be between 0 and 1")
        for i, (size, _, channels) in enumerate(self.shapes()):
            name = f"layers[{i - 1}]" if i else "the projection"
            if size < 1:
                raise ValueError(f"{name} crops everything: it leaves {size} pixels per side")
            if size * size * channels > MAX_FLOATS:
                what = f"{name} makes {size} x {size} pixels of {channels} channels"
                raise ValueError(f"{what}; at most {MAX_FLOATS:,} values per image are allowed")

    def shapes(self) -> Iterator[tuple[int, int, int]]:
        """(height, width, channels) of an image after the projection and after each layer."""
        size = self.size
        yield size, size, self.channels
        for layer in self.layers:
            size = layer.size(size)
            yield size, size, layer.channels

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the result."""
        *_, last = self.shapes()
        return last

    def batch_on(self, device: str) -> int:
        """Images that go through the layers together on "cpu" or "cuda"; it changes no bits."""
        most = BATCH[device]
        return max(1, min(most.images, most.floats // max(map(math.prod, self.shapes()))))

    @property
    def between(self) -> tuple[int, int]:
        """Elements per image in each of the two buffers between the layers, which are used in turn."""
        inner = [math.prod(shape) for shape in self.shapes()][:-1]
        return max(inner[::2]), max(inner[1::2], default=0)

    @property
    def work_bytes(self) -> int:
        """Bytes of these buffers on the CPU."""
        return 4 * self.batch_on("cpu") * sum(self.between)

    def memory(self, dtype: str, device: str = "cpu") -> Memory:
        """Bytes of the weights."""
        with layer_of(matmul=1):
            found = [footprint.matrix(self.z_size, self.size**2 * self.channels, dtype, device)]
        for i, ((_, _, C), layer) in enumerate(zip(self.shapes(), self.layers, strict=False), start=1):
            rows, columns = axes((layer.kernel,) * 2, layer.stride, (layer.padding,) * 2)
            problem = Convolution(layer.channels, C, rows, columns, dtype, device)
            with layer_of(conv_transpose2d=i):
                found.append(footprint.weights(convolution_ladder, problem))
        return footprint.total(found)

    def gpu_bytes(self, dtype: str, outputs: Sequence[str]) -> int:
        """Bytes per image on a GPU: between the layers, in the slots, and twice for the limbs of the operands, once for
        the first call and once for the CUDA graphs.

        outputs: names, see `operands`.
        """
        shapes = list(self.shapes())
        split = [H * W * footprint.limbs(C, dtype) for H, W, C in shapes[:-1]]
        slots = SLOTS * footprint.record_bytes([Operand((self.z_size,)), *self.operands(outputs)])
        images = 0 if "images" in outputs else 4 * math.prod(shapes[-1])
        return footprint.element_bytes(dtype) * sum(self.between) + slots + images + 2 * footprint.cached(split)

    def operands(self, outputs: Sequence[str]) -> list[Operand]:
        """The possible outputs per image: float32 values, 8-bit pixels, a flag for values that are not finite."""
        shape = self.image_shape
        operands = {"images": Operand(shape), "pixels": Operand(shape, "uint8"), "invalid": Operand((), "uint8")}
        return [operands[name] for name in outputs]

    @property
    def calls(self) -> dict[str, int]:
        """How often a forward pass calls each operation. So a rung can be forced for one layer."""
        return {"matmul": 1, "conv_transpose2d": len(self.layers)}

    @property
    def activations(self) -> tuple[str, ...]:
        """The activation of each layer."""
        return *("relu",) * (len(self.layers) - 1), "tanh"

    @property
    def flops(self) -> int:
        """Operations per image: of the projection, and of every tap on every pixel, also on cropped ones."""
        shapes = list(self.shapes())
        total = 2 * self.z_size * self.size**2 * self.channels
        for (height, width, channels), layer in zip(shapes, self.layers, strict=False):
            total += 2 * height * width * channels * layer.kernel**2 * layer.channels
        return total

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight, in the order of the course's network.bin. A norm's bias and weight are called
        beta and gamma in the literature."""
        C = self.channels
        shapes: dict[str, tuple[int, ...]] = {"proj.weight": (self.z_size, self.size**2 * C)}
        if self.bias:
            shapes["proj.bias"] = (self.size**2 * C,)
        for i, layer in enumerate(self.layers):
            shapes |= {f"norms.{i}.{name}": (C,) for name in ("bias", "weight", "running_mean", "running_var")}
            shapes[f"convs.{i}.weight"] = (layer.kernel, layer.kernel, layer.channels, C)
            C = layer.channels
            if self.bias:
                shapes[f"convs.{i}.bias"] = (C,)
        return shapes


def check_variances(weights: Mapping[str, np.ndarray], path: str | None = None) -> None:
    """Raises InputError, which names the tensor and the index, for a variance below zero or NaN."""
    for name, array in weights.items():
        if name.endswith(".running_var") and not (array >= 0).all():
            at = int(np.argmin(array >= 0))
            raise InputError(f"tensor {name} holds {array[at]} at [{at}]; a variance is not negative", path=path,
                             remedy="use another checkpoint: the file is damaged")  # fmt: skip


def _norm(weights: Mapping[str, np.ndarray], i: int) -> list[np.ndarray]:
    """float32 (C,) each: gamma, beta, mean and variance of batch norm i."""
    names = ("weight", "bias", "running_mean", "running_var")
    return [np.asarray(weights[f"norms.{i}.{name}"], np.float32) for name in names]


class DCGAN:
    """A generator ready to run on this machine's CPU, or on its GPU.

    weights: float32 or bfloat16 arrays by the names of `config.tensor_shapes()`; they may be memory-mapped and
    read-only. dtype: accuracy class of the products, "float32" or "bfloat16"; on a GPU also "float16" and "tf32".
    device: "cpu", "cuda" or a backend. batch: images that go through the layers together, None for
    `config.batch_on(device)`; it changes no bits. without: optimisations that are switched off: "folding", which may
    change bits, on a GPU also "pinned", "overlap" and "graphs". Raises InputError if a tensor is missing, too many or
    of another shape, or a variance is negative; UsageError for another switch, or a batch of fewer than 1 image.
    """

    def __init__(
        self,
        config: DCGANConfig,
        weights: Mapping[str, np.ndarray],
        *,
        dtype: str = "float32",
        device: str | Backend = "cpu",
        batch: int | None = None,
        without: Without = frozenset(),
    ):
        shapes = config.tensor_shapes()
        for name in shapes.keys() | weights.keys():
            found = weights[name].shape if name in weights else None
            if found != shapes.get(name):
                wanted = shapes.get(name, "no such tensor")
                what = "missing" if found is None else found
                raise InputError(f"tensor {name} is {what}; the configuration requires {wanted}")
        check_variances(weights)
        check_layers("DCGAN", config.calls)
        self.config, self.dtype, self.backend = config, dtype, backend(device, dtype, without)
        check_switches("draw", self.backend.without, self.backend.name, dtype, parameter="without")
        self.folds = "folding" not in self.backend.without
        self.batch = config.batch_on(self.backend.name) if batch is None else checked_batch(batch)
        self.columns = self.backend.padded(config.z_size)  # of the padded noise; elements after z_size are zero
        array, vector = self.backend.array, self.backend.vector
        (matrix, bias), *kernels = ((array(w), vector(b)) for w, b in self._layers(weights))
        with layer_of(matmul=1):
            self.projection = prepare_matrix(matrix, dtype=dtype), bias
        # of the projection and of all layers but the last: gamma, beta, mean and variance, if they are not folded
        self.norms = [] if self.folds else [[vector(x) for x in _norm(weights, i)] for i in range(len(config.layers))]
        self.layers: list[tuple[Packed, Array, str | None]] = []
        for layer, (kernel, bias), activation in zip(config.layers, kernels, config.activations, strict=True):
            padding = (layer.padding, layer.padding)
            with layer_of(conv_transpose2d=len(self.layers) + 1):
                prepared = prepare_convolution(kernel, stride=layer.stride, padding=padding, dtype=dtype)
            self.layers.append((prepared, bias, activation if self.folds or activation == "tanh" else None))
        self.work = self.backend.workspace(even=self.batch * config.between[0], odd=self.batch * config.between[1])
        self.batches: dict[tuple[str, ...], Batches] = {}

    def __repr__(self) -> str:
        height, width, channels = self.config.image_shape
        return (
            f"<DCGAN: {self.config.z_size} noise values to {height} x {width} pixels of {channels} channels, "
            f"{len(self.config.layers)} layers; {self.dtype} on {self.backend.name}>"
        )

    def forward(
        self, z: Array, *, images: Array | None = None, pixels: Array | None = None, invalid: Array | None = None
    ) -> None:
        """A batch of noise float32 (n, columns) -> images float32 (n, height, width, channels).

        pixels uint8 of the same shape, invalid uint8 (n,): see `to_pixels`; both are computed if invalid is given.
        """
        n, shapes = len(z), list(self.config.shapes())
        outs = [self._between(i, n, shape) for i, shape in enumerate(shapes[:-1])]
        if images is None:
            images = self.work.take("images", n, math.prod(shapes[-1])).reshape((n, *shapes[-1]))
        matrix, bias = self.projection
        with layer_of(matmul=1):
            matmul(z, matrix, bias=bias, activation="relu" if self.folds else None, out=outs[0].reshape((n, matrix.N)))
        for i, ((kernel, bias, activation), x) in enumerate(zip(self.layers, outs, strict=True)):
            if not self.folds:
                rows = x.reshape((-1, x.shape[-1]))
                batchnorm(rows, *self.norms[i], eps=self.config.batch_norm_eps, activation="relu", out=rows)
            with layer_of(conv_transpose2d=i + 1):
                conv_transpose2d(x, kernel, bias=bias, activation=activation, out=[*outs[1:], images][i])
        if invalid is not None:
            to_pixels(images, pixels, invalid)

    def in_limbs(self, i: int) -> bool:
        """True if layer i, from 0, takes its x from the layer before in limbs: see `conv_transpose2d`."""
        return i > 0 and self.folds and self.layers[i - 1][0].writes_limbs and self.layers[i][0].takes_limbs

    def _between(self, i: int, n: int, shape: tuple[int, ...]) -> Array:
        """x of layer i: (n, height, width, channels), or limbs (n, height, width, 2, channels)."""
        name, (H, W, C) = "odd" if i % 2 else "even", shape
        values = self.work.take(name, n, H * W * C, self.backend.between)  # first: it decides how much is allocated
        if self.in_limbs(i):  # in the same memory
            return self.work.take(name, n, 2 * H * W * C, "bfloat16").reshape((n, H, W, 2, C))
        return values.reshape((n, H, W, C))

    def batches_of(self, *outputs: str) -> Batches:
        """`forward` from noise to these outputs, prepared at the first call. The model must outlive the batches."""
        if outputs not in self.batches:
            own = weakref.proxy(self)  # a strong reference would be a cycle, because the model owns the batches
            shapes = [Operand((self.columns,))], self.config.operands(outputs)
            network = Network(
                lambda z, *arrays: own.forward(z, **dict(zip(outputs, arrays, strict=True))), *shapes, weakref.ref(self)
            )
            self.batches[outputs] = self.backend.batches(network, [self.batch], SLOTS)
        return self.batches[outputs]

    def _layers(self, weights: Mapping[str, np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(weights, bias) of the projection and of each layer, with folded norms unless that is switched off. Only one
        layer at a time is in memory."""
        matrix, bias = self._folded(weights, "proj", 0, axis=1)
        more = self.columns - len(matrix)
        yield np.pad(matrix, ((0, more), (0, 0))) if more else matrix, bias
        for i in range(len(self.config.layers)):
            yield self._folded(weights, f"convs.{i}", i + 1, axis=2)

    def generate(self, z: ArrayLike, *, out: np.ndarray | None = None) -> np.ndarray:
        """Noise (n, z_size) -> float32 (n, height, width, channels), each value from -1 to 1.

        z: real numbers, in a NumPy array or anything that NumPy can read; they are rounded to float32. out: the array
        to write to. An image's bits do not depend on the other images, their number, or the number of threads. Raises
        UsageError for another shape or a number that is not finite, with its index; ResourceError if the images do not
        fit into memory.
        """
        noise = self.checked(z)
        images = result_for("generate", out, (len(noise), *self.config.image_shape))
        self.batches_of("images").run([noise], [images])
        return images

    def stream(
        self, batches: Iterable[np.ndarray], *, pixels: bool = False, span: Span = unmeasured
    ) -> Iterator[Arrays]:
        """(images, invalid) of consecutive batches of noise, valid until the next ones are requested.

        A GPU computes the next batch meanwhile; a batch of noise then has at most `batch` rows. pixels: yield 8-bit
        pixels instead of images. invalid: uint8 (n,), 1 for an image that is not finite. span: measures the work on a
        GPU. Raises UsageError as `generate` does.
        """
        prepared = self.batches_of("pixels" if pixels else "images", "invalid")
        return prepared.stream(([self.checked(z)] for z in batches), span)

    def warm_up(self, *, pixels: bool = False) -> None:
        """Compile the kernels of `stream`, and allocate its memory on a GPU. Raises torch's OutOfMemoryError."""
        for _ in self.stream([np.zeros((1, self.config.z_size), np.float32)], pixels=pixels):
            pass

    def _folded(self, weights: Mapping[str, np.ndarray], name: str, norm: int, axis: int):
        """The float32 weights and bias of a layer, with the batch-norm after it folded in. The last layer has none."""
        matrix = np.asarray(weights[f"{name}.weight"], np.float32)
        columns = matrix.shape[axis]
        bias = np.array(weights[f"{name}.bias"], np.float32) if self.config.bias else np.zeros(columns, np.float32)
        if norm == len(self.config.layers) or not self.folds:
            return matrix, bias
        tiled = [np.tile(vector, columns // len(vector)) for vector in _norm(weights, norm)]  # once per pixel
        with np.errstate(over="ignore"):
            folded = fold(matrix, bias, *tiled, eps=self.config.batch_norm_eps, axis=axis)
        if not all(np.isfinite(array).all() for array in folded):
            raise InputError(f"{name} with norms.{norm} folded into it is beyond the range of float32",
                             remedy="use another checkpoint: the file is damaged")  # fmt: skip
        return folded

    def checked(self, z: ArrayLike) -> np.ndarray:
        """Noise as float32 (n, z_size). Raises UsageError as `generate` does."""
        noise, wanted = as_numpy("z", z), self.config.z_size
        if noise.ndim != 2 or noise.shape[1] != wanted or not (noise.dtype.kind in "iuf" or noise.dtype == BFLOAT16):
            kind = WrongType if noise.dtype.kind in NO_NUMBERS else UsageError
            raise kind(f"z is {noise.dtype} {noise.shape}; real numbers (n, {wanted}) are wanted")
        with np.errstate(over="ignore"):
            noise = np.ascontiguousarray(noise, np.float32)
        finite = np.isfinite(noise)
        if not finite.all():
            image, place = np.argwhere(~finite)[0]
            raise UsageError(f"z[{image}, {place}] is {noise[image, place]}; finite numbers are wanted")
        return noise

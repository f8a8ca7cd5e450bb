"""The DCGAN generator in other libraries, with norms folded into the weights as in tilewright.

On a CPU these are PyTorch in each memory layout, and OpenVINO, each with its fastest batch. On a GPU it is PyTorch,
channels last, with each batch as a CUDA graph. In 16 bits it is compiled; for float32 it also runs with tf32.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.clocks.cuda import torch_on_a_gpu
from tilewright.bench.measure import interleave
from tilewright.models.dcgan import DCGANConfig
from tilewright.ops.core.launch import thread_count

LAYOUTS = ("channels_last", "contiguous_format")
CPU_BATCHES = (16, 64)
CPU_IMAGES = 192  # at least, per round: PyTorch's rate does not depend on the number of images
PEER_BATCH = 1024  # on a GPU
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Engine:
    """A call that draws `images` images. once_s: the seconds of its preparation."""

    name: str
    run: Callable[[], Any]
    images: int
    once_s: float
    label: str

    @property
    def is_peer(self) -> bool:
        """True for another library."""
        return self.name.startswith(("PyTorch", "OpenVINO"))


def cpu_engines(
    config: DCGANConfig, weights: dict, z: np.ndarray, dtype: str, against: tuple[str, ...], say: Say
) -> Iterator[Engine]:
    """PyTorch in each memory layout, and OpenVINO, each with its fastest batch, if `against` names them: "torch",
    "openvino". A line names what is not installed."""
    if not against:
        return
    try:
        import torch
    except ModuleNotFoundError as missing:
        say(f"no peer: {missing.name} is not installed; pip install torch puts PyTorch beside ours")
        return
    torch.set_num_threads(thread_count())
    inputs = torch.from_numpy(z)
    for layout in LAYOUTS if "torch" in against else ():
        start = time.perf_counter()
        draw = torch_generator(config, weights, dtype, "cpu", layout)
        name = "PyTorch" if layout == "contiguous_format" else "PyTorch, channels last"
        yield _fastest(name, draw, inputs, start)
    if "openvino" not in against:
        return
    if not find_spec("openvino"):
        say("OpenVINO: unavailable - in a clone: pip install -e '.[peers]'")
        return
    start = time.perf_counter()
    draw = openvino_generator(config, weights, dtype)
    yield _fastest("OpenVINO", draw, z, start)


def _fastest(name: str, draw: Callable, inputs: Any, start: float) -> Engine:
    """The engine with its fastest batch. start: when its preparation began."""
    draw(inputs[: CPU_BATCHES[0]])
    once_s, sizes = time.perf_counter() - start, {min(batch, len(inputs)) for batch in CPU_BATCHES}
    calls = {str(size): partial(draw, inputs[:size]) for size in sizes}
    timings = interleave(calls, CpuClock(cold=False), runs=1)
    batch = max(sizes, key=lambda size: size / timings[str(size)].median_s)
    return _repeated(name, calls[str(batch)], batch, CPU_IMAGES, once_s)


def openvino_generator(config: DCGANConfig, weights: dict, dtype: str) -> Callable[[np.ndarray], np.ndarray]:
    """A function from z float32 (n, z_size) to float32 images (n, height, width, channels): PyTorch's layers in
    OpenVINO."""
    import openvino
    import torch

    from tilewright.bench.peers.openvino import compiled

    class Generator(torch.nn.Module):
        draw = staticmethod(torch_generator(config, weights, "float32", "cpu", "contiguous_format"))

        def forward(self, z: Any) -> Any:
            return self.draw(z)

    example = torch.zeros(2, config.z_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns of every branch that depends on a shape
        model = openvino.convert_model(Generator(), example_input=example, input=[-1, config.z_size])
    request = compiled(model, dtype).create_infer_request()

    def draw(z: np.ndarray) -> np.ndarray:
        request.infer([z])
        return request.get_output_tensor().data

    return draw


def _repeated(name: str, call: Callable[[], object], batch: int, images: int, once_s: float) -> Engine:
    """An engine that repeats the call until it has drawn `images` images."""
    turns = -(-images // batch)

    def run() -> None:
        for _ in range(turns):
            call()

    return Engine(name, run, batch * turns, once_s, f"batch {batch}")


def gpu_engines(config: DCGANConfig, weights: dict, dtype: str, count: int, say: Say) -> Iterator[Engine]:
    """PyTorch: compiled in a 16-bit dtype; in float32 without and with tf32."""
    torch = torch_on_a_gpu()
    torch.backends.cudnn.benchmark = True
    for kind in ("float32", "tf32") if dtype == "float32" else (dtype,):
        start = time.perf_counter()
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        draw, compiled = torch_generator(config, weights, kind, "cuda"), ""
        try:
            if kind.endswith("16"):
                replay, compiled = _graph(torch, torch.compile(draw, dynamic=False), config.z_size), ", compiled"
            else:
                replay = _graph(torch, draw, config.z_size)
        except torch._dynamo.exc.TorchDynamoException as error:
            say(f"PyTorch cannot compile its generator: {str(error).splitlines()[0]}")
            replay = _graph(torch, draw, config.z_size)
        name = f"PyTorch {kind}, channels last{compiled}"
        yield _repeated(name, replay, PEER_BATCH, count, time.perf_counter() - start)


def torch_weights(torch, config: DCGANConfig, weights: dict) -> Iterator[tuple[Any, Any]]:
    """(matrix, bias) of the projection, with shape (z_size, columns), and of each layer, (C, O, KH, KW); norms are
    folded in."""
    from tilewright.ops.batchnorm import fold

    for i in range(len(config.layers) + 1):
        name, axis = (f"convs.{i - 1}", 2) if i else ("proj", 1)
        matrix, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        if i < len(config.layers):
            names = ("weight", "bias", "running_mean", "running_var")
            vectors = [weights[f"norms.{i}.{vector}"] for vector in names]
            tiled = [np.tile(vector, matrix.shape[axis] // len(vector)) for vector in vectors]
            matrix, bias = fold(matrix, bias, *tiled, eps=config.batch_norm_eps, axis=axis)
        tensor = torch.from_numpy(matrix)
        yield tensor.permute(3, 2, 0, 1) if i else tensor, torch.from_numpy(bias)


def torch_generator(config: DCGANConfig, weights: dict, kind: str, device: str, layout: str = LAYOUTS[0]) -> Callable:
    """A function from z (n, z_size) on the device to float32 images (n, height, width, channels): PyTorch's layers,
    with norms folded into the weights.

    PyTorch can crop as much at the end as at the start, or one pixel less. If all layers crop more at the end, the
    layers work on mirrored images and kernels. Otherwise a view crops the remaining pixels.
    """
    import torch
    from torch.nn.functional import conv_transpose2d, linear

    number = getattr(torch, kind) if kind.endswith("16") else torch.float32
    (matrix, bias), *kernels = torch_weights(torch, config, weights)
    mirrored = all(before < after for before, after in (layer.padding for layer in config.layers))
    crops = [layer.padding[::-1] if mirrored else layer.padding for layer in config.layers]
    pixels = matrix.T.reshape(config.size, config.size, config.channels, -1)
    bias = bias.reshape(config.size, config.size, config.channels)
    if mirrored:
        pixels, bias = pixels.flip(0, 1), bias.flip(0, 1)
        kernels = [(kernel.flip(2, 3), term) for kernel, term in kernels]
    matrix, bias = (x.reshape(-1, *x.shape[3:]).contiguous().to(device, number) for x in (pixels, bias))
    form = getattr(torch, layout)
    layers = [(k.to(device, number).contiguous(memory_format=form), b.to(device, number)) for k, b in kernels]
    strides = [layer.stride for layer in config.layers]

    @torch.no_grad()
    def draw(z):
        x = linear(z.to(number), matrix, bias).relu_()
        x = x.view(-1, config.size, config.size, config.channels).permute(0, 3, 1, 2).contiguous(memory_format=form)
        for i, ((kernel, term), (before, after), stride) in enumerate(zip(layers, crops, strides, strict=True)):
            less, more = max(before - after, 0), max(after - before, 0)
            x = conv_transpose2d(x, kernel, term, stride=stride, padding=before, output_padding=less)
            x = x[:, :, : x.shape[2] - more, : x.shape[3] - more] if more else x
            x = x.relu_() if i < len(layers) - 1 else x.tanh()
        x = x.permute(0, 2, 3, 1).float()
        return x.flip(1, 2) if mirrored else x

    return draw


def _graph(torch, draw: Callable, width: int) -> Callable[[], object]:
    """Draw PEER_BATCH images as a CUDA graph."""
    z = torch.randn(PEER_BATCH, width, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            draw(z)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        draw(z)
    return partial(_replay, graph, (z, draw))


def _replay(graph, alive: tuple) -> None:
    """alive: the noise and the weights that the graph reads. They must not be freed before the graph."""
    graph.replay()

"""Images on one GPU, end to end beside PyTorch: the course's generator at full size, weights from a seed.

PyTorch runs the same layers with its norms folded, channels last, each batch as a CUDA graph; in 16 bits it is
compiled, in float32 it is also let use tf32. Then images that reach the host as 8-bit pixels, and our time by layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from tilewright.bench.dcgan import CHECKED, random_weights, torch_weights
from tilewright.bench.dcgan_reference import reference_images
from tilewright.bench.device import interleave, torch_on_a_gpu
from tilewright.bench.device_roofs import roofs
from tilewright.bench.measure import RUNS, Timing
from tilewright.bench.results import Row
from tilewright.bench.tables import PEER
from tilewright.errors import InternalError, UsageError
from tilewright.models.dcgan import DCGAN, DCGANConfig, noise
from tilewright.ops.conv_transpose2d import conv_transpose2d
from tilewright.ops.conv_transpose2d.problem import Case, cost
from tilewright.ops.matmul import matmul

TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 0.1}  # of a value from -1 to 1
IMAGES = 1 << 16  # of a turn, unless the user says: 60 ms
PEER_BATCH = 1024
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Engine:
    """A call of `images` images, and what preparing it took."""

    name: str
    run: Callable[[], object]
    images: int
    once_s: float
    label: str


def bench(count: int, *, dtype: str, against: tuple[str, ...] = ("torch",), say: Say) -> list[Row]:
    """Rows of about `count` images, in whole batches, CHECKED of them checked before anything is timed.

    Raises ResourceError without a GPU, InternalError if the check fails or an image's bits depend on its batch,
    UsageError for an unknown peer or dtype.
    """
    torch_on_a_gpu()
    if unknown := set(against) - {"torch"}:
        raise UsageError(f"no peer is called {', '.join(sorted(unknown))}; there is torch")
    if dtype not in TOLERANCE:
        raise UsageError(f"dtype is {dtype!r}; {', '.join(TOLERANCE)} are measured on a GPU")
    config = DCGANConfig()
    weights = random_weights(config, seed=1)
    start = time.perf_counter()
    model = DCGAN(config, weights, dtype=dtype, device="cuda")
    error = _check(model, weights)
    ours = _ours(model, count, time.perf_counter() - start)
    say(f"checked {CHECKED} images against float64: largest error {error:.1e} (limit {TOLERANCE[dtype]:.0e})")
    engines = [ours, *(_peers(config, weights, dtype, count, say) if against else ())]
    timings = interleave({engine.name: engine.run for engine in engines})
    host = _to_host(model, count)
    engines.append(host)
    timings[host.name] = _walled(host)
    rows = list(_rows(engines, timings, dtype, f"passed {error:.1e}"))
    for row in rows:
        say(f"{row.rung}, {row.label}: {row.rows / row.median_s:,.0f} images/s")
    return rows + profile(model)


def _check(model: DCGAN, weights: dict) -> float:
    """The largest error of CHECKED images. Raises InternalError if it is too large, or bits depend on the batch."""
    z = noise(1, 0, 300, model.config.z_size)
    images = model.generate(z)
    error = float(np.abs(images[:CHECKED] - reference_images(model.config, weights, z[:CHECKED])).max())
    if not error <= TOLERANCE[model.dtype]:
        what = f"the images are off by {error:.3g}; {TOLERANCE[model.dtype]} is allowed"
        raise InternalError(f"{what}, nothing is reported")
    if any(model.generate(z[i : i + 1]).tobytes() != images[i : i + 1].tobytes() for i in (0, 77, 299)):
        raise InternalError("an image alone has other bits than in a batch; nothing is reported")
    return error


def _ours(model: DCGAN, count: int, once_s: float) -> Engine:
    from tilewright.backends.cuda import Batches

    torch, batches, turns = torch_on_a_gpu(), model.batches_of("images"), -(-count // model.batch)
    assert isinstance(batches, Batches), "the model is on the GPU"
    slots = batches.slots[model.batch]
    for i, slot in enumerate(slots):
        z = noise(2, i * model.batch, model.batch, model.config.z_size)
        slot.inputs[0][:, : z.shape[1]].copy_(torch.from_numpy(z))

    def run():
        for turn in range(turns):
            slots[turn % len(slots)].launch()

    return Engine("tilewright", run, turns * model.batch, once_s, f"batch {model.batch}")


def _to_host(model: DCGAN, count: int) -> Engine:
    """8-bit pixels in the host's memory, from noise that is there."""
    z, turns = noise(3, 0, model.batch, model.config.z_size), -(-count // model.batch)

    def run():
        for _ in model.stream(repeat(z, turns), pixels=True):
            pass

    return Engine("tilewright, 8-bit on the host", run, turns * model.batch, 0.0, f"batch {model.batch}")


def _walled(engine: Engine) -> Timing:
    """By the host's clock: the last image has arrived when a call returns."""
    engine.run()
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        engine.run()
        seconds.append(time.perf_counter() - start)
    return Timing(tuple(seconds))


def _peers(config: DCGANConfig, weights: dict, dtype: str, count: int, say: Say) -> Iterator[Engine]:
    """PyTorch: compiled in 16 bits; in float32 as it is, and with tf32."""
    torch = torch_on_a_gpu()
    torch.backends.cudnn.benchmark = True
    for kind in ("float32", "tf32") if dtype == "float32" else (dtype,):
        start = time.perf_counter()
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        draw, compiled = torch_generator(config, weights, kind), ""
        try:
            if kind.endswith("16"):
                replay, compiled = _graph(torch, torch.compile(draw, dynamic=False), config.z_size), ", compiled"
            else:
                replay = _graph(torch, draw, config.z_size)
        except torch._dynamo.exc.TorchDynamoException as error:
            say(f"PyTorch cannot compile its generator: {str(error).splitlines()[0]}")
            replay = _graph(torch, draw, config.z_size)
        turns = -(-count // PEER_BATCH)

        def run(replay=replay, turns=turns):
            for _ in range(turns):
                replay()

        name = f"PyTorch {kind}, channels last{compiled}"
        yield Engine(name, run, turns * PEER_BATCH, time.perf_counter() - start, f"batch {PEER_BATCH}")


def torch_generator(config: DCGANConfig, weights: dict, kind: str, place: str = "cuda") -> Callable:
    """z (n, z_size) on the device -> float32 images (n, height, width, channels) by PyTorch's layers.

    It crops as much behind as before, or one less; so layers that crop one more work on mirrored images and kernels.
    """
    import torch
    from torch.nn.functional import conv_transpose2d, linear

    number = getattr(torch, kind) if kind.endswith("16") else torch.float32
    (matrix, bias), *kernels = torch_weights(torch, config, weights)
    mirrored = all(after > before for before, after in (layer.padding for layer in config.layers))
    if not mirrored and any(after > before for before, after in (layer.padding for layer in config.layers)):
        raise UsageError("PyTorch's generator is written for layers that all crop alike")
    pixels = matrix.T.reshape(config.size, config.size, config.channels, -1)
    bias = bias.reshape(config.size, config.size, config.channels)
    if mirrored:
        pixels, bias = pixels.flip(0, 1), bias.flip(0, 1)
        kernels = [(kernel.flip(2, 3), term) for kernel, term in kernels]
    matrix, bias = (x.reshape(-1, *x.shape[3:]).contiguous().to(place, number) for x in (pixels, bias))
    layout = torch.channels_last
    layers = [(k.to(place, number).contiguous(memory_format=layout), b.to(place, number)) for k, b in kernels]
    crops = [(max(layer.padding), max(layer.padding) - min(layer.padding), layer.stride) for layer in config.layers]

    @torch.no_grad()
    def draw(z):
        x = linear(z.to(number), matrix, bias).relu()
        x = x.view(len(z), config.size, config.size, config.channels).permute(0, 3, 1, 2)
        for i, ((kernel, term), (padding, extra, stride)) in enumerate(zip(layers, crops, strict=True)):
            x = conv_transpose2d(x, kernel, term, stride=stride, padding=padding, output_padding=extra)
            x = x.relu() if i < len(layers) - 1 else x.tanh()
        x = x.permute(0, 2, 3, 1).float()
        return x.flip(1, 2) if mirrored else x

    return draw


def _graph(torch, draw: Callable, width: int) -> Callable[[], object]:
    """Images of PEER_BATCH as a CUDA graph."""
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


def _replay(graph, kept: tuple) -> None:
    """kept: the noise and the weights that the graph reads, which must live as long as it does."""
    graph.replay()


def _rows(engines: list[Engine], timings: dict[str, Timing], dtype: str, passed: str) -> Iterator[Row]:
    peers = [engine.name for engine in engines if engine.name.startswith("PyTorch")]
    rate = {engine.name: engine.images / timings[engine.name].median_s for engine in engines}
    best = max(peers, key=rate.__getitem__, default=None)
    for engine in engines:
        timing, ours = timings[engine.name], engine.name not in peers
        yield Row(
            op="dcgan", rung=engine.name, size=f"{engine.images} images", dtype=dtype, threads=0, rows=engine.images,
            median_s=timing.median_s, low_s=timing.low_s, high_s=timing.high_s, runs=len(timing.rounds),
            one_off_s=engine.once_s or None, peer=best if ours else None,
            peer_ratio=rate[engine.name] / rate[best] if ours and best else None,
            check=passed if ours else PEER, label=engine.label,
        )  # fmt: skip


def profile(model: DCGAN) -> list[Row]:
    """Where the time of a batch goes: a row a layer, in their order, with its share of the roof."""
    from tilewright.ops.conv_transpose2d.tile.pixels import pixels

    torch, n, shapes, roof = torch_on_a_gpu(), model.batch, list(model.config.shapes()), roofs()
    z, new, last = torch.randn(n, model.columns, device="cuda"), model.backend.empty, (n, *shapes[-1])
    places: list[Any] = [*(new((n, *shape), model.backend.between) for shape in shapes[:-1]), new(last)]
    eight_bit, invalid = new(last, "uint8"), new((n,), "uint8")
    matrix, bias = model.projection
    word, (H, _, C), calls = places[0].element_size(), shapes[0], {}
    calls[f"matmul {matrix.K}x{matrix.N}"] = (
        lambda: matmul(z, matrix, bias=bias, activation="relu", out=places[0].view(n, -1)),
        2.0 * n * matrix.K * matrix.N, float(n * matrix.K * 4 + word * matrix.N * (matrix.K + n)),
    )  # fmt: skip
    for i, (kernel, term, activation) in enumerate(model.layers):
        layer, (H, W, C) = model.config.layers[i], shapes[i]
        padding = (layer.padding, layer.padding)
        sizes = (n, H, W, C, layer.channels, (layer.kernel,) * 2, (layer.stride,) * 2)
        case = Case(*sizes, padding, model.dtype, device="cuda")
        run = lambda i=i, k=kernel, t=term, a=activation: conv_transpose2d(  # noqa: E731
            places[i], k, bias=t, activation=a, out=places[i + 1]
        )
        calls[f"conv_transpose2d {H}x{W}x{C} -> {layer.channels}, {kernel.rung}"] = (run, *cost(case))
    calls["8-bit pixels"] = (lambda: pixels(places[-1], out=eight_bit, invalid=invalid), 0.0, 5.0 * places[-1].numel())
    for call, *_ in calls.values():  # what a layer reads, the one before has written
        call()
    timings = interleave({name: call for name, (call, *_) in calls.items()})
    total = sum(timing.median_s for timing in timings.values())
    rows = []
    for name, timing in timings.items():
        s, (_, flops, nbytes) = timing.median_s, calls[name]
        rows.append(Row(
            op="dcgan_profile", rung=name, size=f"{n} images", dtype=model.dtype, threads=0, rows=n, median_s=s,
            low_s=timing.low_s, high_s=timing.high_s, runs=len(timing.rounds), gflops=flops / s / 1e9 or None,
            gbytes_s=nbytes / s / 1e9, roof_share=roof.seconds(flops, nbytes, model.dtype) / s,
            roof_gflops=roof.gflops[model.dtype], roof_gbytes_s=roof.copy_gbytes_s, label=f"{s / total:.1%}",
        ))  # fmt: skip
    return rows

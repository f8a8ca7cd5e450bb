"""Images end to end, side by side with PyTorch: the course's DCGAN generator at full size, weights from a seed.

PyTorch runs the same layers, its batch-norm folded as ours is, in each layout of memory; the faster layout and batch
count. Engines take turns on the same threads. Then our time, layer by layer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.bench.dcgan_reference import reference_images
from tilewright.bench.measure import SPIN_S, Timing, rouse
from tilewright.bench.results import Row
from tilewright.bench.roofs import roofs
from tilewright.bench.tables import PEER
from tilewright.errors import InternalError, UsageError
from tilewright.models.dcgan import DCGAN, DCGANConfig, noise
from tilewright.ops.conv_transpose2d import conv_transpose2d
from tilewright.ops.conv_transpose2d.problem import Case, cost
from tilewright.ops.core.launch import thread_count
from tilewright.ops.matmul import matmul

CHECKED = 8  # images checked against float64 before anything is timed
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}  # of a value from -1 to 1
LAYOUTS = ("channels_last", "contiguous_format")
PEER_BATCHES = (16, 64)
PEER_IMAGES = 192  # at least, a turn: PyTorch's rate does not depend on how many there are
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Engine:
    """A call of `images` images at once, and what preparing it took."""

    name: str
    run: Callable[[], object]
    images: int
    once_s: float
    batch: str = ""


def random_weights(config: DCGANConfig, seed: int) -> dict[str, Any]:
    """float32 weights under which the sums of every layer keep their size, and no norm is the identity."""
    rng = np.random.default_rng(seed)
    weights: dict[str, Any] = {}
    for name, shape in config.tensor_shapes().items():
        values: Any = rng.standard_normal(shape, dtype=np.float32)
        if name.endswith("running_var"):
            values = 1 + np.abs(values) / 2
        elif len(shape) == 1:
            values = values / 10 + np.float32(name.startswith("norms") and name.endswith(".weight"))
        else:
            values *= np.float32(math.sqrt(2 / (shape[0] if len(shape) == 2 else shape[3] * 6)))
        weights[name] = values
    return weights


def bench(count: int, *, dtype: str = "float32", against: tuple[str, ...] = ("torch",), rounds: int = 5, say: Say):
    """list[Row] of `count` images on `thread_count()` threads, CHECKED of them checked before anything is timed.

    rounds: how often each engine has its turn. Where the peer is not installed, a line says so. Raises InternalError if
    the check fails or two runs differ, UsageError for an unknown peer.
    """
    if unknown := set(against) - {"torch"}:
        raise UsageError(f"no peer is called {', '.join(sorted(unknown))}; there is torch")
    config = DCGANConfig()
    weights, z = random_weights(config, seed=1), noise(1, 0, count, config.z_size)
    start = time.perf_counter()
    model = DCGAN(config, weights, dtype=dtype)
    images = model.generate(z)  # compiled, or fetched from the cache
    once_s = time.perf_counter() - start
    error = float(np.abs(images[:CHECKED] - reference_images(config, weights, z[:CHECKED])).max())
    limit = TOLERANCE[dtype]
    say(f"checked {min(CHECKED, count)} images against float64: largest error {error:.1e} (limit {limit:.0e})")
    if not error <= limit:
        raise InternalError(f"the images are off by {error:.3g}; {limit} is allowed, nothing is reported")
    again = np.empty_like(images)
    ours = Engine(
        "tilewright", lambda: model.generate(z, out=again), count, once_s, f"groups of {config.batch_on('cpu')}"
    )
    engines = [ours, *(peer for _ in against for peer in torch_engines(config, weights, z, dtype, say))]
    timings = take_turns(engines, rounds)
    if again.tobytes() != images.tobytes():
        raise InternalError("two runs over the same noise gave different bits; nothing is reported")
    rows = list(_rows(engines, timings, dtype, f"passed {error:.1e}"))
    for row in rows:
        say(f"{row.rung}, {row.label}: {row.rows / row.median_s:,.0f} images/s")
    return rows + profile(model, z[: config.batch_on("cpu")], rounds)


def take_turns(engines: list[Engine], rounds: int) -> dict[str, Timing]:
    """Seconds an image of each: A, B, C, A, B, C, with a pause between two; a first turn of each is not counted."""
    seconds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for turn in range(rounds + 1):
        for engine in engines:
            time.sleep(SPIN_S)
            rouse()
            start = time.perf_counter()
            engine.run()
            if turn:
                seconds[engine.name].append((time.perf_counter() - start) / engine.images)
    return {name: Timing(tuple(spent)) for name, spent in seconds.items()}


def torch_engines(config: DCGANConfig, weights: dict, z: np.ndarray, dtype: str, say: Say) -> Iterator[Engine]:
    """PyTorch in each layout, at its fastest batch there; none, and a line, where it is not installed."""
    try:
        import torch
    except ModuleNotFoundError as missing:
        say(f"no peer: {missing.name} is not installed; pip install torch puts PyTorch beside ours")
        return
    torch.set_num_threads(thread_count())
    for layout in LAYOUTS:
        start = time.perf_counter()
        draw = _torch_generator(torch, config, weights, dtype, getattr(torch, layout))
        inputs = torch.from_numpy(z)
        draw(inputs[: PEER_BATCHES[0]])
        once_s, rates = time.perf_counter() - start, {}
        for batch in PEER_BATCHES:
            draw(inputs[:batch])
            start = time.perf_counter()
            draw(inputs[:batch])
            rates[min(batch, len(z))] = min(batch, len(z)) / (time.perf_counter() - start)
        batch = max(rates, key=rates.__getitem__)
        turns = -(-PEER_IMAGES // batch)
        name = "PyTorch" if layout == "contiguous_format" else "PyTorch, channels last"

        def run(draw=draw, some=inputs[:batch], turns=turns):
            for _ in range(turns):
                draw(some)

        yield Engine(name, run, batch * turns, once_s, f"batch {batch}")


def torch_weights(torch, config: DCGANConfig, weights: dict) -> Iterator[tuple[Any, Any]]:
    """(matrix, bias) of the projection, (z_size, columns), and of each layer, (C, O, KH, KW); norms folded in."""
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


def _torch_generator(torch, config: DCGANConfig, weights: dict, dtype: str, layout):
    """z (n, z_size) -> images (n, channels, height, width) by PyTorch's layers."""
    kind = torch.float32 if dtype == "float32" else torch.bfloat16
    (matrix, bias), *kernels = torch_weights(torch, config, weights)
    matrix, bias = matrix.T.contiguous().to(kind), bias.to(kind)
    layers = [(kernel.to(kind).contiguous(memory_format=layout), term.to(kind)) for kernel, term in kernels]

    def draw(z):
        with torch.inference_mode():
            x = torch.nn.functional.linear(z.to(kind), matrix, bias).relu_()
            x = x.view(len(z), config.size, config.size, config.channels).permute(0, 3, 1, 2)
            x = x.contiguous(memory_format=layout)
            for i, ((kernel, term), layer) in enumerate(zip(layers, config.layers, strict=True)):
                before, after = layer.padding
                x = torch.nn.functional.conv_transpose2d(x, kernel, term, stride=layer.stride, padding=before)
                extra = after - before
                x = x[:, :, : x.shape[2] - extra, : x.shape[3] - extra]
                x = x.relu() if i < len(layers) - 1 else x.tanh()
            return x.float()

    return draw


def _rows(engines: list[Engine], timings: dict[str, Timing], dtype: str, passed: str) -> Iterator[Row]:
    peers = [engine.name for engine in engines[1:]]
    best = min(peers, key=lambda name: timings[name].median_s, default=None)
    for engine in engines:
        timing, ours, n = timings[engine.name], engine.name not in peers, engine.images
        yield Row(
            op="dcgan", rung=engine.name, size=f"{n} images", dtype=dtype, threads=thread_count(), rows=n,
            median_s=timing.median_s * n, low_s=timing.low_s * n, high_s=timing.high_s * n, runs=len(timing.rounds),
            one_off_s=engine.once_s, peer=best if ours else None,
            peer_ratio=timing.times_faster_than(timings[best]) if ours and best else None,
            check=passed if ours else PEER, label=engine.batch,
        )  # fmt: skip


def profile(model: DCGAN, z: np.ndarray, rounds: int) -> list[Row]:
    """Where the time of a group of images goes: a row a layer, in their order, with its share of the roof."""
    n, shapes, roof = len(z), list(model.config.shapes()), roofs(thread_count())
    places = [np.zeros((n, *shape), np.float32) for shape in shapes]
    matrix, bias = model.projection
    (H, _, C), calls = shapes[0], {}
    calls[f"matmul {matrix.K}x{matrix.N}"] = (
        lambda: matmul(z, matrix, bias=bias, activation="relu", out=places[0].reshape(n, -1)),
        2.0 * n * matrix.K * matrix.N, float(z.nbytes + matrix.nbytes + places[0].nbytes),
    )  # fmt: skip
    for i, (kernel, term, activation) in enumerate(model.layers):
        layer, (H, W, C) = model.config.layers[i], shapes[i]
        padding = (layer.padding, layer.padding)
        case = Case(n, H, W, C, layer.channels, (layer.kernel,) * 2, (layer.stride,) * 2, padding, model.dtype)
        run = lambda i=i, k=kernel, t=term, a=activation: conv_transpose2d(  # noqa: E731
            places[i], k, bias=t, activation=a, out=places[i + 1]
        )
        calls[f"conv_transpose2d {H}x{W}x{C} -> {layer.channels}, {kernel.rung}"] = (run, *cost(case))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, (call, *_) in calls.items():
            start = time.perf_counter()
            call()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    timings = {name: Timing(tuple(spent)) for name, spent in seconds.items()}
    total = sum(timing.median_s for timing in timings.values())
    rows = []
    for name, timing in timings.items():
        s, (_, flops, nbytes) = timing.median_s, calls[name]
        rows.append(Row(
            op="dcgan_profile", rung=name, size=f"{n} images", dtype=model.dtype, threads=thread_count(), rows=n,
            median_s=s, low_s=timing.low_s, high_s=timing.high_s, runs=rounds, gflops=flops / s / 1e9,
            gbytes_s=nbytes / s / 1e9, roof_share=roof.seconds(flops, nbytes, model.dtype) / s,
            roof_gflops=roof.gflops(model.dtype), roof_gbytes_s=roof.copy_gbytes_s, label=f"{s / total:.1%}",
        ))  # fmt: skip
    return rows

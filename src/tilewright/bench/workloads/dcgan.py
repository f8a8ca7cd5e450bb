"""The whole job of drawing images, compared with PyTorch and OpenVINO: the course's DCGAN generator at full size, with
random weights.

On a GPU the images stay in its memory, as PyTorch's do. Another row measures images that are copied to the host as
8-bit pixels. Further rows give tilewright's time for each layer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import RUNS, Clock, SameResults, Timing, interleave
from tilewright.bench.results import PEER, Row
from tilewright.bench.roofs import measured_roofs
from tilewright.bench.workloads.dcgan_peers import Engine, cpu_engines, gpu_engines
from tilewright.bench.workloads.dcgan_reference import reference_images
from tilewright.errors import InternalError, UsageError, counted
from tilewright.models.dcgan import DCGAN, DCGANConfig
from tilewright.models.noise import noise
from tilewright.ops.conv_transpose2d import conv_transpose2d
from tilewright.ops.conv_transpose2d.problem import Case, cost
from tilewright.ops.core.launch import thread_count
from tilewright.ops.matmul import matmul

CHECKED = 8  # images that are checked against float64 before anything is timed
TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 0.1}  # absolute error; values are from -1 to 1
IMAGES = {"cpu": 960, "cuda": 1 << 16}  # per round: half a second on 2 cores, 60 ms on an H200
ROUNDS = {"cpu": 3, "cuda": RUNS}
PEERS = {"cpu": ("torch", "openvino"), "cuda": ("torch",)}  # by device
OURS = "tilewright"
Say = Callable[[str], None]


def random_weights(config: DCGANConfig, seed: int) -> dict[str, Any]:
    """float32 weights with which the sums of all layers have similar sizes, and no norm is the identity."""
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


def bench(
    count: int, *, dtype: str, device: str = "cpu", against: tuple[str, ...] | None = None, rounds: int = RUNS, say: Say
) -> Iterator[list[Row]]:
    """Yield the rows of `count` images on `thread_count()` threads, or of whole batches on the GPU. Then yield the rows
    of the layers.

    against: names of PEERS; None: all of the device. CHECKED images are checked before anything is timed. If a peer is
    not installed, a line says so. Raises InternalError if the check fails, if two runs differ, or on a GPU if an
    image's bits depend on its batch. Raises ResourceError if the GPU is missing, UsageError for an unknown peer or
    dtype.
    """
    peers = PEERS[device] if against is None else against
    if unknown := set(peers) - set(PEERS[device]):
        raise UsageError(f"no peer is called {', '.join(sorted(unknown))}; {', '.join(PEERS[device])} can be named")
    if dtype not in TOLERANCE:
        raise UsageError(f"dtype is {dtype!r}; {', '.join(TOLERANCE)} are measured")
    clock = _clock(device)
    config = DCGANConfig()
    weights = random_weights(config, seed=1)
    start = time.perf_counter()
    model = DCGAN(config, weights, dtype=dtype, device=device)
    z = noise(1, 0, count if device == "cpu" else 300, config.z_size)
    images = model.generate(z)  # compiles the kernels, or loads them from the cache
    once_s = time.perf_counter() - start
    passed = _checked(model, weights, z, images, say)
    say(f"{dtype}: measuring {counted(rounds, 'round')}")
    if device == "cpu":
        again = np.empty_like(images)
        label = f"groups of {model.batch}"
        engines = [Engine(OURS, lambda: model.generate(z, out=again), count, once_s, label)]
        engines += cpu_engines(config, weights, z, dtype, peers, say)
    else:
        engines = [_on_gpu(model, count, once_s)]
        engines += gpu_engines(config, weights, dtype, count, say) if peers else ()
    same = SameResults({OURS: images})
    timings = interleave(
        {engine.name: engine.run for engine in engines},
        clock,
        runs=rounds,
        check=(lambda name, result: same(name, result) if name == OURS else None) if device == "cpu" else None,
    )
    if device != "cpu":
        engines.append(_to_host(model, count))
        timings |= interleave({engines[-1].name: engines[-1].run}, CpuClock(cold=False), runs=rounds)
    rows = list(_rows(engines, timings, {"dtype": dtype, "threads": _threads(model)}, passed))
    for row in rows:
        say(f"{row.rung}, {row.label}: {row.rows / row.median_s:,.0f} images/s")
    yield rows
    yield profile(model, min(count, model.batch), rounds)


def _clock(device: str) -> Clock:
    """The clock of the device. Raises ResourceError if the GPU is missing."""
    if device == "cpu":
        return CpuClock(cold=False, settle=True)
    from tilewright.bench.clocks.cuda import CudaClock

    return CudaClock()


def _threads(model: DCGAN) -> int:
    """The number of threads in the rows: 0 on a GPU."""
    return thread_count() if model.backend.name == "cpu" else 0


def _checked(model: DCGAN, weights: dict, z: np.ndarray, images: np.ndarray, say: Say) -> str:
    """The row's `check`. Raises InternalError for wrong images, or on a GPU if the bits depend on the batch."""
    error = float(np.abs(images[:CHECKED] - reference_images(model.config, weights, z[:CHECKED])).max())
    limit = TOLERANCE[model.dtype]
    say(f"checked {min(CHECKED, len(z))} images against float64: largest error {error:.1e} (limit {limit:.0e})")
    if not error <= limit:
        raise InternalError(f"the images are off by {error:.3g}; {limit} is allowed, nothing is reported")
    alone = (0, 77, 299) if model.backend.name != "cpu" else ()
    if any(model.generate(z[i : i + 1]).tobytes() != images[i : i + 1].tobytes() for i in alone):
        raise InternalError("an image alone has other bits than in a batch; nothing is reported")
    return f"passed {error:.1e}"


def _on_gpu(model: DCGAN, count: int, once_s: float) -> Engine:
    """An engine whose noise and images stay on the GPU."""
    import torch

    from tilewright.backends.cuda import Batches

    batches, turns = model.batches_of("images"), -(-count // model.batch)
    assert isinstance(batches, Batches), "the model is on the GPU"
    slots = batches.slots[model.batch]
    for i, slot in enumerate(slots):
        z = noise(2, i * model.batch, model.batch, model.config.z_size)
        slot.inputs[0][:, : z.shape[1]].copy_(torch.from_numpy(z))

    def run():
        for turn in range(turns):
            slots[turn % len(slots)].launch()

    return Engine(OURS, run, turns * model.batch, once_s, f"batch {model.batch}")


def _to_host(model: DCGAN, count: int) -> Engine:
    """An engine that copies 8-bit pixels to the host. Its noise is in the host's memory before."""
    z, turns = noise(3, 0, model.batch, model.config.z_size), -(-count // model.batch)

    def run():
        for _ in model.stream(repeat(z, turns), pixels=True):
            pass

    return Engine("tilewright, 8-bit on the host", run, turns * model.batch, 0.0, f"batch {model.batch}")


def _rows(engines: list[Engine], timings: dict[str, Timing], common: dict[str, Any], passed: str) -> Iterator[Row]:
    """common: the columns that are equal in all rows."""
    each = {engine.name: timings[engine.name].scaled(1 / engine.images) for engine in engines}  # seconds per image
    best = min((e.name for e in engines if e.is_peer), key=lambda name: each[name].median_s, default=None)
    for engine in engines:
        versus = None if engine.is_peer else best
        yield Row(
            op="dcgan", rung=engine.name, size=f"{engine.images} images", rows=engine.images, label=engine.label,
            one_off_s=engine.once_s or None, peer=versus, check=PEER if engine.is_peer else passed,
            peer_ratio=each[engine.name].times_faster_than(each[versus]) if versus else None,
            **(common | timings[engine.name].columns()),
        )  # fmt: skip


def profile(model: DCGAN, n: int, rounds: int) -> list[Row]:
    """Where the time of n images goes: one row per layer, in order, with its share of the machine's limit."""
    calls = dict(_layers(model, n))
    for call, *_ in calls.values():  # each layer reads what the layer before has written
        call()
    on_cpu = model.backend.name == "cpu"
    clock = CpuClock(cold=False) if on_cpu else _clock("cuda")
    timings = interleave({name: call for name, (call, *_) in calls.items()}, clock, runs=rounds)
    roof, total = measured_roofs(_threads(model)), sum(timing.median_s for timing in timings.values())
    return [
        Row(
            op="dcgan_profile", rung=name, size=f"{n} images", dtype=model.dtype, threads=_threads(model), rows=n,
            label=f"{timing.median_s / total:.1%}", **timing.columns(),
            **roof.columns(calls[name][1], calls[name][2], model.dtype, timing.median_s),
        )
        for name, timing in timings.items()
    ]  # fmt: skip


def _layers(model: DCGAN, n: int) -> Iterator[tuple[str, tuple[Callable[[], object], float, float]]]:
    """(name, (call, operations, bytes)) of the projection, of each layer, and on a GPU of the conversion to 8-bit
    pixels."""
    new, shapes, on_cpu = model.backend.empty, list(model.config.shapes()), model.backend.name == "cpu"
    z = np.zeros((n, model.columns), np.float32)
    z[:, : model.config.z_size] = noise(1, 0, n, model.config.z_size)
    source = model.backend.array(z)
    outs: list[Any] = [
        new((n, H, W, 2, C), "bfloat16") if model.in_limbs(i) else new((n, H, W, C), model.backend.between)
        for i, (H, W, C) in enumerate(shapes[:-1])
    ]
    outs.append(new((n, *shapes[-1])))
    (matrix, bias), word = model.projection, 2 if model.dtype.endswith("16") else 4
    yield f"matmul {matrix.K}x{matrix.N}", (
        lambda: matmul(source, matrix, bias=bias, activation="relu", out=outs[0].reshape(n, -1)),
        2.0 * n * matrix.K * matrix.N, float(z.nbytes + outs[0].nbytes + word * matrix.K * matrix.N),
    )  # fmt: skip
    for i, (kernel, term, activation) in enumerate(model.layers):
        layer, (H, W, C) = model.config.layers[i], shapes[i]
        padding = (layer.padding, layer.padding)
        sizes = (n, H, W, C, layer.channels, (layer.kernel,) * 2, (layer.stride,) * 2)
        case = Case(*sizes, padding, model.dtype, device=model.backend.name)
        run = lambda i=i, k=kernel, t=term, a=activation: conv_transpose2d(  # noqa: E731
            outs[i], k, bias=t, activation=a, out=outs[i + 1]
        )
        yield f"conv_transpose2d {H}x{W}x{C} -> {layer.channels}, {kernel.rung}", (run, *cost(case))
    if not on_cpu:
        from tilewright.backends.pixels import to_pixels

        pixels, invalid = new((n, *shapes[-1]), "uint8"), new((n,), "uint8")
        yield "8-bit pixels", (lambda: to_pixels(outs[-1], pixels, invalid), 0.0, 1.25 * outs[-1].nbytes)

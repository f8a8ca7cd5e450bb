"""Where the time of the sentiment job goes: each layer of the TextCNN alone, on one batch, with its share of a roof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import Clock, interleave
from tilewright.bench.results import Row
from tilewright.bench.roofs import measured_roofs
from tilewright.models.textcnn import TextCNN
from tilewright.ops.core.launch import thread_count
from tilewright.ops.embedding_conv1d import embedding_conv1d
from tilewright.ops.embedding_conv1d.problem import Case, cost
from tilewright.ops.matmul import matmul

Layer = tuple[Callable[[], object], float, float]  # a call, its operations and bytes


def profile(model: TextCNN, ids: np.ndarray, rounds: int) -> list[Row]:
    """A row per layer, in their order. ids: int32 (n, L), whose rows of the token table exist; a batch of them runs.

    In a row `rows` are sentences, `label` is the share of the time of all layers.
    """
    on_cpu = model.backend.name == "cpu"
    batch = np.resize(ids, (model.batches.largest, ids.shape[1]))
    calls = dict(_layers(model, batch))
    for call, *_ in calls.values():  # what a layer reads, the one before has written
        call()
    timings = interleave({name: call for name, (call, *_) in calls.items()}, _clock(on_cpu), runs=rounds)
    count = thread_count() if on_cpu else 0
    roof, total = measured_roofs(count), sum(timing.median_s for timing in timings.values())
    return [
        Row(
            op="sentiment_profile", rung=name, size=f"{len(batch)} sentences", dtype=model.dtype, threads=count,
            rows=len(batch), label=f"{timing.median_s / total:.1%}", **timing.columns(),
            **roof.columns(*calls[name][1:], model.dtype, timing.median_s),
        )
        for name, timing in timings.items()
    ]  # fmt: skip


def _clock(on_cpu: bool) -> Clock:
    """Raises ResourceError if the GPU is missing."""
    if on_cpu:
        return CpuClock(cold=False)
    from tilewright.bench.clocks.cuda import CudaClock

    return CudaClock()


def _layers(model: TextCNN, ids: np.ndarray) -> Iterator[tuple[str, Layer]]:
    """(name, layer) of the convolutions over embeddings, and of each linear layer."""
    config, backend, n = model.config, model.backend, len(ids)
    widths, between = config.widths, backend.between
    outs: list[Any] = [backend.empty((n, width), between) for width in widths[:-1]]
    outs.append(backend.empty((n, widths[-1])))
    located: Any = ids
    if backend.name != "cpu":
        located = model.tokens.located(backend.upload(ids), backend.empty((n,), "int32"))  # type: ignore[attr-defined]
    case = Case(
        n, config.sequence_length, config.vocab_size, config.hidden_size, config.num_filters,
        tuple(config.kernel_sizes), model.dtype, device=backend.name,
    )  # fmt: skip
    sizes = "+".join(map(str, config.kernel_sizes))
    name = f"embedding_conv1d {config.hidden_size} -> {config.num_filters}x{sizes}, {model.convolutions.rung}"
    yield name, (lambda: embedding_conv1d(located, model.convolutions, out=outs[0]), *cost(case))
    word = 2 if model.dtype.endswith("16") else 4
    for i, (matrix, bias) in enumerate(model.linears):
        activation = None if i == len(model.linears) - 1 else "relu"
        call = lambda i=i, m=matrix, b=bias, a=activation: matmul(  # noqa: E731
            outs[i], m, bias=b, activation=a, out=outs[i + 1]
        )
        nbytes = float(outs[i].nbytes + outs[i + 1].nbytes + word * matrix.K * matrix.N)
        yield f"matmul {matrix.K}x{matrix.N}, {matrix.rung}", (call, 2.0 * n * matrix.K * matrix.N, nbytes)

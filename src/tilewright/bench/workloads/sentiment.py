"""The sentiment job end to end, beside PyTorch: the course's TextCNN at full size, weights from a seed, real sentences.

Ours is timed twice: with the token table built inside the run, and with the table in memory, as a run finds it that
loads a saved one. PyTorch runs the usual network at its fastest batch: on a CPU in the dtype of ours; on a GPU in
float32 through cuDNN and cuBLAS, without tf32, and compiled in bfloat16. Times run from NumPy ids to NumPy logits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import SameResults, Timing, interleave
from tilewright.bench.results import PEER, Row
from tilewright.errors import InternalError, UsageError
from tilewright.formats.validate import largest_error
from tilewright.models.initial import random_textcnn
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.ops.core.launch import threads

SAMPLE = 256  # sentences checked against float64
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}  # of the logits: min(absolute, relative)
ROUNDS = 10
INSIDE, EXISTS = "table inside", "table exists"
# By device and dtype: the batches of which PyTorch's fastest counts. A compilation takes 20 s.
PEER_BATCHES = {
    ("cpu", "float32"): (16, 64, 256),
    ("cpu", "bfloat16"): (16, 64, 256),
    ("cuda", "float32"): (1024, 4096),
    ("cuda", "bfloat16"): (2048,),
}
PEER_SENTENCES = {"cpu": 256, "cuda": 4096}  # per round, about a fifth of a second: the rate does not depend on it
Say = Callable[[str], None]


@dataclass(frozen=True)
class Peer:
    """A library's call over `sentences` sentences."""

    name: str
    dtype: str
    run: Callable[[], object]
    sentences: int


def reference_logits(config: TextCNNConfig, weights: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """float64 logits (n, labels) in plain NumPy."""
    from tilewright.ops.embedding_conv1d.reference import embedding_conv1d

    branches = range(len(config.kernel_sizes))
    convolutions = [weights[f"convs.{i}.weight"] for i in branches], [weights[f"convs.{i}.bias"] for i in branches]
    x = embedding_conv1d(ids, weights["embedding.weight"], *convolutions)
    layers = len(config.hidden_sizes) + 1
    for i in range(layers):
        x = x @ weights[f"linears.{i}.weight"].T.astype(np.float64) + weights[f"linears.{i}.bias"]
        x = np.maximum(x, 0) if i < layers - 1 else x
    return x


def bench(
    ids: np.ndarray,
    *,
    count: int,
    dtype: str = "float32",
    device: str = "cpu",
    against: tuple[str, ...] = ("torch",),
    say: Say,
) -> list[Row]:
    """Rows for ids int32 (n, 16) on `count` threads, or on the GPU; SAMPLE of them are checked before any is timed.

    If a peer is not installed, a line says so. Raises ResourceError if the GPU is missing, InternalError if the check
    fails or bits change between runs, UsageError for an unknown peer.
    """
    if unknown := set(against) - {"torch"}:
        raise UsageError(f"no peer is called {', '.join(map(repr, sorted(unknown)))}; there is torch")
    if device != "cpu":
        from tilewright.bench.clocks.cuda import torch_on_a_gpu

        torch_on_a_gpu()
    config = TextCNNConfig()
    say("making weights from a seed (801 MB)")
    weights = random_textcnn(config.tensor_shapes(), seed=1)
    with threads(count):
        start = time.perf_counter()
        model = TextCNN(config, weights, dtype=dtype, device=device)
        model.logits(ids[:1])  # kernels compiled or fetched, graphs captured
        prepared_s = time.perf_counter() - start
        say(f"prepared in {prepared_s:.2f} s")
        inside, logits = _table_inside(model, ids)
        error = _checked(config, weights, ids, logits, dtype, say)
        peers = list(_peers(config, weights, ids, (device, dtype, count), say)) if against else []
        calls: dict[str, Callable[[], object]] = {EXISTS: lambda: model.logits(ids)}
        calls |= {peer.name: peer.run for peer in peers}
        check = SameResults({EXISTS: logits}, may_differ=[peer.name for peer in peers])
        timings = {INSIDE: inside} | interleave(
            calls,
            CpuClock(cold=False, settle=bool(peers) and device == "cpu"),
            runs=ROUNDS,
            check=lambda name, result: check(name, result) if name == EXISTS else None,
        )
    rows = list(_rows(len(ids), timings, peers, dtype, 0 if device != "cpu" else count))
    rows = [_with_once(row, prepared_s, error) for row in rows]
    for row in rows:
        say(f"{row.rung}: {row.rows / row.median_s:,.1f} sentences/s")
    return rows

"""The sentiment job end to end, side by side with PyTorch: the course's TextCNN at full size, weights from a seed, real
sentences.

Three figures of ours: the whole input with the token table built inside, again with the table in memory, and what a run
that loads a kept table would see is the second. PyTorch runs the same network the usual way; its fastest batch counts.
On a GPU `sentiment_device` measures the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tilewright.bench.results import Row
from tilewright.errors import InternalError, UsageError
from tilewright.formats.validate import largest_error
from tilewright.models.initial import random_textcnn
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.ops.core.launch import threads

SAMPLE = 256  # sentences checked against float64
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}  # of the logits: min(absolute, relative)
PEER_BATCHES = (16, 64, 256)
PEER_SECONDS = 6.0  # PyTorch is timed on batches for about as long; its rate does not depend on how many


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
    against: str | None = "torch",
    say: Callable[[str], None],
) -> list[Row]:
    """Run ids int32 (n, 16) on `count` threads, or on the GPU; check SAMPLE of them before anything is reported.

    Where the peer is not installed, a line says so, and the rows are ours. Raises InternalError if the check fails,
    UsageError for an unknown peer.
    """
    if against not in (None, "torch"):
        raise UsageError(f"no peer is called {against!r}; there is torch")
    if device != "cpu":
        from tilewright.bench.sentiment_device import bench as bench_there

        return bench_there(ids, dtype=dtype, against=against, say=say)
    config = TextCNNConfig()
    say("making weights from a seed (801 MB)")
    weights = random_textcnn(config.tensor_shapes(), seed=1)
    with threads(count):
        seconds = _ours(config, weights, ids, dtype, say)
        logits = seconds.pop("logits")
        error = largest_error(logits, reference_logits(config, weights, ids[_sample(ids)]))
        say(
            f"checked {len(logits)} sentences against float64: largest error {error:.1e} (limit {TOLERANCE[dtype]:.0e})"
        )
        if not error <= TOLERANCE[dtype]:
            raise InternalError(
                f"the logits are off by {error:.3g}; {TOLERANCE[dtype]} is allowed, nothing is reported"
            )
        try:
            peer = _torch_rate(config, weights, ids, dtype, count, say) if against else None
        except ModuleNotFoundError as missing:
            peer = None
            say(f"no peer: {missing.name} is not installed; pip install torch puts PyTorch beside ours")
    rows = []
    for name, spent in seconds.items():
        if name != "prepare":
            rows.append(_row(name, ids, dtype, count, spent, seconds["prepare"], peer, f"passed {error:.1e}"))
    if peer:
        rows.append(_row("PyTorch", ids, dtype, count, len(ids) / peer, None, None, "peer"))
    return rows


def _sample(ids: np.ndarray) -> np.ndarray:
    return np.random.default_rng(0).choice(len(ids), min(SAMPLE, len(ids)), replace=False)


def _ours(config, weights, ids: np.ndarray, dtype: str, say) -> dict:
    """Seconds of each phase; "logits" of the sample, from the first run."""
    start = time.perf_counter()
    model = TextCNN(config, weights, dtype=dtype)
    model.logits(ids[:1])  # kernels compiled or fetched
    found = {"prepare": time.perf_counter() - start}
    say(f"prepared in {found['prepare']:.2f} s")
    start = time.perf_counter()
    logits = model.logits(ids)
    found["table inside"] = time.perf_counter() - start
    say(f"{len(ids):,} sentences, token table built inside: {len(ids) / found['table inside']:,.0f} sentences/s")
    again = []
    for _ in range(5):
        start = time.perf_counter()
        second = model.logits(ids)
        again.append(time.perf_counter() - start)
        if second.tobytes() != logits.tobytes():
            raise InternalError("two runs over the same sentences gave different bits; nothing is reported")
    found["table exists"] = sorted(again)[len(again) // 2]
    say(f"{len(ids):,} sentences, token table there: {len(ids) / found['table exists']:,.0f} sentences/s")
    return {**found, "logits": logits[_sample(ids)]}


def _torch_rate(config, weights, ids: np.ndarray, dtype: str, count: int, say) -> float:
    """PyTorch's sentences a second at its fastest batch."""
    import torch

    torch.set_num_threads(count)
    kind = torch.float32 if dtype == "float32" else torch.bfloat16
    w = {name: torch.from_numpy(array).to(kind) for name, array in weights.items()}
    branches, layers = range(len(config.kernel_sizes)), range(len(config.hidden_sizes) + 1)

    def run(batch):
        x = torch.nn.functional.embedding(batch, w["embedding.weight"]).transpose(1, 2)
        pooled = [
            torch.nn.functional.conv1d(x, w[f"convs.{i}.weight"], w[f"convs.{i}.bias"]).relu().amax(2) for i in branches
        ]
        x = torch.cat(pooled, dim=1)
        for i in layers:
            x = torch.nn.functional.linear(x, w[f"linears.{i}.weight"], w[f"linears.{i}.bias"])
            x = x.relu() if i < layers[-1] else x
        return x

    best = 0.0
    with torch.inference_mode():
        for batch in PEER_BATCHES:
            tokens = torch.from_numpy(ids[:batch].astype(np.int64))
            rounds: list[float] = []
            run(tokens)
            begin = time.perf_counter()
            while len(rounds) < 3 or time.perf_counter() - begin < PEER_SECONDS / len(PEER_BATCHES):
                start = time.perf_counter()
                run(tokens)
                rounds.append(time.perf_counter() - start)
            rate = batch / sorted(rounds)[len(rounds) // 2]
            say(f"PyTorch, batch {batch}: {rate:,.1f} sentences/s")
            best = max(best, rate)
    return best


def _row(name, ids, dtype, count, seconds, prepare, peer, check) -> Row:
    return Row(
        op="sentiment", rung=name, size=f"{len(ids)} sentences", dtype=dtype, threads=count, rows=len(ids),
        median_s=seconds, low_s=seconds, high_s=seconds, runs=5 if name == "table exists" else 1,
        one_off_s=prepare, peer="PyTorch" if peer else None, peer_ratio=len(ids) / seconds / peer if peer else None,
        check=check, label=f"{len(ids) / seconds:,.1f} sentences/s",
    )  # fmt: skip

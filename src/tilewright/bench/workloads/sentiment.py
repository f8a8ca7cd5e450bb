"""The whole job of classifying sentences, compared with PyTorch: the course's TextCNN at full size, with random weights
and real sentences.

tilewright is timed twice: once with the token table built during the run, and once with the table in memory, as in a
run that has loaded a saved table. On a CPU the first is a single run, which alternates with no peer. PyTorch runs the
usual network with its fastest batch. On a CPU it has tilewright's dtype. On a GPU it runs compiled in bfloat16, and
beside tilewright's float32 also in float32 through cuDNN and cuBLAS, without tf32. A time is from NumPy ids to NumPy
logits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import SameResults, Timing, interleave
from tilewright.bench.results import PEER, Row
from tilewright.bench.workloads.sentiment_profile import profile
from tilewright.errors import InternalError, UsageError
from tilewright.formats.validate import largest_error
from tilewright.models.initial import random_textcnn
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.ops.core.launch import thread_count, threads

SAMPLE = 256  # sentences that are checked against float64
# Of the logits: the smaller of the absolute and the relative error.
TOLERANCE = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.1}
ROUNDS = 10
INSIDE, EXISTS = "table inside", "table exists"
# By device and dtype: the batches that are tried to find PyTorch's fastest. A compilation takes 20 s.
PEER_BATCHES = {
    ("cpu", "float32"): (16, 64, 256),
    ("cpu", "bfloat16"): (16, 64, 256),
    ("cuda", "float32"): (1024, 4096),
    ("cuda", "bfloat16"): (2048,),
}
PEER_SENTENCES = {"cpu": 256, "cuda": 4096}  # per round, about 0.2 s; the rate does not depend on it
Say = Callable[[str], None]


@dataclass(frozen=True)
class Peer:
    """A library's call for `sentences` sentences, `batch` at a time."""

    name: str
    dtype: str
    run: Callable[[], object]
    sentences: int
    batch: int


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
    """Rows for ids int32 (n, 16) on `count` threads, or on the GPU, then rows of each layer.

    SAMPLE of the sentences are checked before any is timed.

    If a peer is not installed, a line says so. Raises ResourceError if the GPU is missing, InternalError if the check
    fails or two runs differ, UsageError for an unknown peer.
    """
    if unknown := set(against) - {"torch"}:
        raise UsageError(f"no peer is called {', '.join(map(repr, sorted(unknown)))}; the only peer is torch")
    if device != "cpu":
        from tilewright.bench.clocks.cuda import torch_on_a_gpu

        torch_on_a_gpu()
    config = TextCNNConfig()
    say("making weights from a seed (801 MB)")
    weights = random_textcnn(config.tensor_shapes(), seed=1)
    with threads(count):
        start = time.perf_counter()
        model = TextCNN(config, weights, dtype=dtype, device=device)
        model.logits(ids[:1])  # compiles the kernels or loads them, and captures graphs
        prepared_s = time.perf_counter() - start
        say(f"prepared in {prepared_s:.2f} s")
        start = time.perf_counter()
        logits = model.logits(ids)
        first = Timing((time.perf_counter() - start,))
        error = _checked(config, weights, ids, logits, dtype, say)
        peers = [*_peers(config, weights, ids, dtype, device, say)] if against else []
        timings = _timed(model, ids, logits, first, peers)
        layers = profile(model, ids, ROUNDS)
    ours = {"one_off_s": prepared_s, "check": f"passed {error:.1e}"}
    rows = list(_rows(len(ids), timings, peers, {"dtype": dtype, "threads": count if device == "cpu" else 0}, ours))
    for row in rows:
        say(f"{row.rung}: {row.rows / row.median_s:,.1f} sentences/s")
    return rows + layers


def _checked(config, weights, ids: np.ndarray, logits: np.ndarray, dtype: str, say: Say) -> float:
    """The largest error of a sample. Raises InternalError if it is too large."""
    some = np.random.default_rng(0).choice(len(ids), min(SAMPLE, len(ids)), replace=False)
    error = largest_error(logits[some], reference_logits(config, weights, ids[some]))
    say(f"checked {len(some)} sentences against float64: largest error {error:.1e} (limit {TOLERANCE[dtype]:.0e})")
    if not error <= TOLERANCE[dtype]:
        raise InternalError(f"the logits are off by {error:.3g}; {TOLERANCE[dtype]} is allowed, nothing is reported")
    return error


def _timed(model: TextCNN, ids: np.ndarray, logits: np.ndarray, first: Timing, peers: list[Peer]) -> dict[str, Timing]:
    """first: the time of the run that built the token table. A CPU's table cannot be emptied, so only this run is timed
    there."""
    on_gpu = model.backend.name != "cpu"
    names = (INSIDE, EXISTS) if on_gpu else (EXISTS,)
    calls: dict[str, Callable[[], Any]] = {name: lambda: model.logits(ids) for name in names}
    calls |= {peer.name: peer.run for peer in peers}
    # the call after one with new tokens checks again for new tokens, so one sentence is computed before each timed call
    before = {INSIDE: model.tokens.forget, EXISTS: lambda: model.logits(ids[:1])} if on_gpu else {}
    same = SameResults(dict.fromkeys(names, logits))
    found = interleave(
        calls,
        CpuClock(cold=False, settle=bool(peers) and not on_gpu),
        runs=ROUNDS,
        before=before,
        check=lambda name, result: same(name, result) if name in names else None,
    )
    return {INSIDE: first} | found


def _rows(
    total: int, timings: dict[str, Timing], peers: list[Peer], common: dict[str, Any], ours: dict[str, Any]
) -> Iterator[Row]:
    """common: columns of all rows. ours: columns of tilewright's rows. These also name the fastest peer in their dtype,
    as in the other workloads, or of all peers if none has it."""
    of_peer = {peer.name: peer for peer in peers}
    counts = {name: of_peer[name].sentences if name in of_peer else total for name in timings}
    each = {name: timing.scaled(1 / counts[name]) for name, timing in timings.items()}  # seconds per sentence
    same = [peer.name for peer in peers if peer.dtype == common["dtype"]]
    beside = min(same or [*of_peer], key=lambda name: each[name].median_s, default=None)
    for name, timing in timings.items():
        rest: dict[str, Any] = {"peer": beside, **ours}
        if peer := of_peer.get(name):
            rest = {"check": PEER, "dtype": peer.dtype}
        elif beside and len(timing.rounds) == len(each[beside].rounds):
            rest["peer_ratio"] = each[name].times_faster_than(each[beside])
        elif beside:  # the one run that built a CPU's table alternated with none of the peer's
            rest["peer_ratio"] = each[beside].median_s / each[name].median_s
        rate = f"{1 / each[name].median_s:,.1f} sentences/s"
        yield Row(
            op="sentiment", rung=name, size=f"{total} sentences", rows=counts[name],
            label=f"{rate}; batch {peer.batch}" if peer else rate, **(common | timing.columns() | rest),
        )  # fmt: skip


def _peers(config, weights, ids: np.ndarray, dtype: str, device: str, say: Say) -> Iterator[Peer]:
    """PyTorch with its fastest batch. On a GPU it runs in float32 if tilewright does, and compiled in bfloat16."""
    try:
        import torch
    except ModuleNotFoundError as missing:
        say(f"no peer: {missing.name} is not installed; pip install torch puts PyTorch beside ours")
        return
    from tilewright.bench.peers._shared import packs

    torch.set_num_threads(thread_count())
    dtypes = {"PyTorch": dtype} if device == "cpu" or dtype == "float32" else {}
    dtypes |= {"PyTorch compiled": "bfloat16"} if device != "cpu" else {}
    for name, kind in dtypes.items():
        run = torch_network(torch, config, weights, kind, device, compiled="compiled" in name)
        yield _fastest(name, kind, run, ids, device, say)
    if device == "cpu" and packs(dtype):
        run = torch_network(torch, config, weights, dtype, device, compiled=False, windows=True)
        yield _fastest("PyTorch, windows", dtype, run, ids, device, say)


def torch_windows(torch, filters, bias) -> Callable:
    """x (n, L, C) -> (n, O, positions), as a product of oneDNN with packed weights. filters: (O, C, K). A window of K
    tokens is a row of K C adjacent elements."""
    O, C, K = filters.shape
    packed = torch.ops.mkldnn._reorder_linear_weight(filters.transpose(1, 2).reshape(O, K * C).contiguous(), 16)

    def convolve(x):
        n, L, _ = x.shape
        rows = x.as_strided((n, L - K + 1, K * C), (L * C, C, 1)).reshape(-1, K * C)
        sums = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
        return sums.view(n, L - K + 1, O).transpose(1, 2)

    return convolve


def torch_network(
    torch, config, weights, kind: str, device: str, *, compiled: bool, windows: bool = False
) -> Callable[[np.ndarray], object]:
    """A function that runs PyTorch's network on int64 ids in host memory, and returns the logits there."""
    dtype = getattr(torch, kind)
    w = {name: torch.from_numpy(np.array(array)).to(device, dtype) for name, array in weights.items()}
    layers = range(len(config.hidden_sizes) + 1)
    branches = [(w[f"convs.{i}.weight"], w[f"convs.{i}.bias"]) for i in range(len(config.kernel_sizes))]
    if windows:
        with torch.inference_mode():
            convolutions = [torch_windows(torch, *branch) for branch in branches]
    else:
        conv1d = torch.nn.functional.conv1d
        convolutions = [lambda x, f=f, bias=b: conv1d(x.transpose(1, 2), f, bias) for f, b in branches]

    def network(batch):
        x = torch.nn.functional.embedding(batch, w["embedding.weight"])
        convolved = [convolve(x) for convolve in convolutions]
        x = torch.cat([y.relu_().amax(2) for y in convolved], dim=1)
        for i in layers:
            x = torch.nn.functional.linear(x, w[f"linears.{i}.weight"], w[f"linears.{i}.bias"])
            x = x.relu() if i < layers[-1] else x
        return x

    run = torch.compile(network, dynamic=False) if compiled else network

    def call(tokens: np.ndarray) -> object:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        with torch.inference_mode():
            return run(torch.from_numpy(tokens).to(device)).float().cpu()

    return call


def _fastest(name: str, kind: str, run: Callable[[np.ndarray], object], ids: np.ndarray, device: str, say: Say) -> Peer:
    """The peer with its fastest batch, measured on PEER_SENTENCES of the sentences."""
    tokens = ids[: PEER_SENTENCES[device]].astype(np.int64)
    sizes = [size for size in PEER_BATCHES[device, kind] if size <= len(tokens)] or [len(tokens)]
    calls = {str(size): partial(run, tokens[:size]) for size in sizes}
    timings = interleave(calls, CpuClock(cold=False), runs=5)
    rates = {size: size / timings[str(size)].median_s for size in sizes}
    for size, rate in rates.items():
        say(f"{name} {kind}, batch {size}: {rate:,.1f} sentences/s")
    fastest = max(rates, key=rates.__getitem__)
    whole = len(tokens) // fastest * fastest

    def batches() -> None:
        for first in range(0, whole, fastest):
            run(tokens[first : first + fastest])

    return Peer(name, kind, batches, whole, fastest)

"""The sentiment job on a GPU, from ids to logits in the host's memory, in turns with PyTorch on the same machine.

PyTorch runs the network the usual way: in float32 through cuDNN and cuBLAS, without tf32, and compiled in bfloat16;
each at its fastest batch. Every time is the host's, from NumPy ids to NumPy logits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tilewright.bench.device import torch_on_a_gpu
from tilewright.bench.results import Row
from tilewright.bench.sentiment import SAMPLE, TOLERANCE
from tilewright.errors import InternalError
from tilewright.formats.validate import largest_error
from tilewright.models.initial import random_blocks, textcnn_scale
from tilewright.models.textcnn import TextCNN, TextCNNConfig

ROUNDS = 10
PEER_BATCHES = {"float32": (1024, 4096), "bfloat16": (2048,)}  # one compilation takes 20 s
PEER_SENTENCES = 4096  # timed a round: at 20,000 a second a fifth of a second


class Call(NamedTuple):
    """What is timed: run(), over so many sentences; before() is called first, and is not."""

    before: Callable[[], object]
    run: Callable[[], object]
    sentences: int


def bench(ids: np.ndarray, *, dtype: str = "float32", against: str | None = "torch", say: Callable[[str], None]):
    """Rows for ids int32 (n, 16): the table built inside, the table there, and each peer.

    Raises ResourceError without a GPU, InternalError if SAMPLE sentences are not those of float64, or if bits change.
    """
    torch = torch_on_a_gpu()
    config = TextCNNConfig()
    say("making weights from a seed (801 MB)")
    weights = _weights(config)
    start = time.perf_counter()
    model = TextCNN(config, weights, dtype=dtype, device="cuda")
    model.logits(ids[:1])
    prepared_s = time.perf_counter() - start
    say(f"prepared in {prepared_s:.2f} s: weights laid out, kernels compiled or fetched, graphs captured")
    logits = model.logits(ids)
    error = _checked(config, weights, ids, logits, dtype, say)

    def whole() -> None:
        if model.logits(ids).tobytes() != logits.tobytes():
            raise InternalError("two runs over the same sentences gave different bits; nothing is reported")

    def nothing() -> None:
        pass

    calls: dict[str, Call] = {
        "table inside": Call(model.tokens.forget, whole, len(ids)),
        "table exists": Call(lambda: model.logits(ids[:1]), whole, len(ids)),  # and the last call had no new token
    }
    peers = {"PyTorch": "float32"} if against and dtype == "float32" else {}
    peers |= {"PyTorch compiled": "bfloat16"} if against else {}
    beside = next(iter(peers), None)  # ours are compared with it
    for name, kind in peers.items():
        run = _peer(torch, config, weights, kind, "compiled" in name)
        calls[name] = Call(nothing, *_fastest(name, run, ids, kind, say))
    seconds = _in_turns(calls)
    rates = {name: calls[name].sentences / statistics.median(spent) for name, spent in seconds.items()}
    for name, rate in rates.items():
        say(f"{name}: {rate:,.0f} sentences/s")
    ours = {"one_off_s": prepared_s, "check": f"passed {error:.1e}"}
    rows = []
    for name, spent in seconds.items():
        compared = {"peer": beside, "peer_ratio": rates[name] / rates[beside]} if beside else {}
        rest: dict[str, Any] = {"check": "peer"} if name in peers else {**ours, **compared}
        rows.append(_row(len(ids), calls[name].sentences, spent, rung=name, dtype=peers.get(name, dtype), **rest))
    return rows


def _row(total: int, count: int, spent: list[float], **rest: Any) -> Row:
    """One measurement over `count` of the sentences."""
    median_s = statistics.median(spent)
    times: dict[str, Any] = {"median_s": median_s, "low_s": min(spent), "high_s": max(spent), "runs": len(spent)}
    size, label = f"{total} sentences", f"{count / median_s:,.0f} sentences/s"
    return Row(op="sentiment", size=size, threads=0, rows=count, label=label, **times, **rest)


def _weights(config: TextCNNConfig) -> dict[str, np.ndarray]:
    """As `random_textcnn` makes them, a thread a tensor."""

    def tensor(number: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.concatenate(list(random_blocks(shape, 1, number, *textcnn_scale(name, shape)))).reshape(shape)

    shapes = config.tensor_shapes()
    with ThreadPoolExecutor() as pool:
        return dict(zip(shapes, pool.map(tensor, range(len(shapes)), shapes, shapes.values()), strict=True))


def _checked(config, weights, ids: np.ndarray, logits: np.ndarray, dtype: str, say) -> float:
    """The largest error of a sample. Raises InternalError if it is too large."""
    some = np.random.default_rng(0).choice(len(ids), min(SAMPLE, len(ids)), replace=False)
    error = largest_error(logits[some], _reference(config, weights, ids[some]))
    say(f"checked {len(some)} sentences against float64: largest error {error:.1e} (limit {TOLERANCE[dtype]:.0e})")
    if not error <= TOLERANCE[dtype]:
        raise InternalError(f"the logits are off by {error:.3g}; {TOLERANCE[dtype]} is allowed, nothing is reported")
    return error


def _reference(config, weights, ids: np.ndarray) -> np.ndarray:
    """Logits in PyTorch's float64, on the GPU: NumPy would take seconds."""
    import torch

    w = {name: torch.from_numpy(np.array(array)).cuda() for name, array in weights.items()}
    x = w["embedding.weight"][torch.from_numpy(ids).cuda().long()].double()  # (n, L, C)
    features = []
    for i, K in enumerate(config.kernel_sizes):
        positions = ids.shape[1] - K + 1
        y = sum(x[:, t : t + positions] @ w[f"convs.{i}.weight"][:, :, t].double().T for t in range(K))
        features.append((y + w[f"convs.{i}.bias"].double()).relu().amax(1))
    y = torch.cat(features, 1)
    layers = len(config.hidden_sizes) + 1
    for i in range(layers):
        y = y @ w[f"linears.{i}.weight"].double().T + w[f"linears.{i}.bias"].double()
        y = y.relu() if i < layers - 1 else y
    return y.cpu().numpy()


def _peer(torch, config, weights, kind: str, compiled: bool) -> Callable[[np.ndarray], object]:
    """PyTorch's run of int64 ids on the host; logits come back to it."""
    dtype = getattr(torch, kind)
    w = {name: torch.from_numpy(np.array(array)).to("cuda", dtype) for name, array in weights.items()}
    branches, layers = range(len(config.kernel_sizes)), range(len(config.hidden_sizes) + 1)

    def network(batch):
        x = torch.nn.functional.embedding(batch, w["embedding.weight"]).transpose(1, 2)
        convolved = [torch.nn.functional.conv1d(x, w[f"convs.{i}.weight"], w[f"convs.{i}.bias"]) for i in branches]
        x = torch.cat([y.relu().amax(2) for y in convolved], dim=1)
        for i in layers:
            x = torch.nn.functional.linear(x, w[f"linears.{i}.weight"], w[f"linears.{i}.bias"])
            x = x.relu() if i < layers[-1] else x
        return x

    run = torch.compile(network, dynamic=False) if compiled else network

    def call(tokens: np.ndarray) -> object:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        with torch.inference_mode():
            return run(torch.from_numpy(tokens).cuda()).float().cpu()

    return call


def _fastest(name: str, call, ids: np.ndarray, kind: str, say) -> tuple[Callable[[], object], int]:
    """(a call over some sentences in its fastest batch, how many)."""
    tokens = ids[:PEER_SENTENCES].astype(np.int64)
    best, fastest = 0.0, 0
    for batch in PEER_BATCHES[kind]:
        if batch > len(tokens):
            continue
        some = tokens[:batch]
        call(some)
        rounds = []
        for _ in range(5):
            start = time.perf_counter()
            call(some)
            rounds.append(time.perf_counter() - start)
        rate = batch / statistics.median(rounds)
        say(f"{name} {kind}, batch {batch}: {rate:,.0f} sentences/s")
        best, fastest = max((best, fastest), (rate, batch))
    whole = len(tokens) // fastest * fastest

    def batches() -> None:
        for first in range(0, whole, fastest):
            call(tokens[first : first + fastest])

    return batches, whole


def _in_turns(calls: dict[str, Call]) -> dict[str, list[float]]:
    """Seconds of ROUNDS rounds of each call, the first of which is dropped."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(1 + ROUNDS):
        for name, call in calls.items():
            call.before()
            start = time.perf_counter()
            call.run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds

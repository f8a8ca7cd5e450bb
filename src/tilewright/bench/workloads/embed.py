"""The whole job of embedding texts, compared with PyTorch and OpenVINO, on a GPU with PyTorch: an encoder with random
weights, and random texts with the lengths of real ones.

Every library gets the same token ids. tilewright gets them without padding. The peers get padded batches of texts
sorted by length, as sentence-transformers makes them. All compute the mean over the tokens of each text. A time is from
NumPy ids to NumPy vectors. The peers' batches are made before.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import SameResults, Timing, interleave
from tilewright.bench.peers.openvino import compiled
from tilewright.bench.results import PEER, Row
from tilewright.bench.roofs import measured_roofs
from tilewright.errors import InputError, InternalError, UsageError
from tilewright.formats.files import InputFile
from tilewright.models.bert import Bert
from tilewright.models.bert_config import BertConfig
from tilewright.ops.core.launch import threads

SIZES: dict[str, dict[str, Any]] = {  # by a model that has this size
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "distilbert": {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 3072},
    "bert": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
PEERS = {"cpu": ("torch", "openvino"), "cuda": ("torch",)}  # by device
COUNT = {"cpu": 512, "cuda": 32768}  # texts
TOLERANCE = {
    "float32": 1e-4,
    "bfloat16": 0.2,
    "float16": 0.03,
}  # absolute error of an element, which is about 1
SAMPLE = 4  # texts that are checked against float64
BATCH = 32  # texts in a peer's batch: the default of sentence-transformers
LARGE = 512  # texts in a second peer's batch on a GPU: launching small batches takes longer than their work
PER_WORD, SPECIAL = 1.3, 2  # tokens per English word; tokens added before and after a text
ROUNDS = 10
Say = Callable[[str], None]
Vectors = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Setting:
    """texts: the token ids of each text. count: number of CPU threads. size: a name of SIZES. against: names of
    PEERS."""

    config: BertConfig
    texts: list[np.ndarray]
    size: str
    dtype: str = "float32"
    count: int = 1
    against: tuple[str, ...] = PEERS["cpu"]
    rounds: int = ROUNDS
    device: str = "cpu"


def lengths_of(lines: list[str] | None, count: int, most: int) -> np.ndarray:
    """Token counts of `count` texts, drawn from the lengths of these lines. Without lines: random ones like those of
    film reviews, 28 on average."""
    rng = np.random.default_rng(1)
    if lines is None:
        drawn = rng.gamma(3.5, 7.5, count)
    else:
        drawn = rng.choice([PER_WORD * len(line.split()) for line in lines if line.strip()], count)
    return np.clip(drawn + SPECIAL, SPECIAL + 1, most).astype(int)


def random_texts(config: BertConfig, lines: list[str] | None, count: int) -> list[np.ndarray]:
    """Random token ids of `count` texts, with the lengths of `lengths_of`."""
    rng = np.random.default_rng(2)
    return [rng.integers(0, config.vocab_size, n) for n in lengths_of(lines, count, config.context)]


def read_lines(path: str) -> list[str]:
    """The lines of a text file, at least one with a word. Bytes that are not UTF-8 become U+FFFD. Raises InputError."""
    with InputFile(path, "input") as file:
        text = bytearray(file.size)
        file.read_into(text, 0)
    lines = text.decode(errors="replace").splitlines()
    if not any(line.strip() for line in lines):
        raise InputError("the file has no line with words", path=path, remedy="give a file with text")
    return lines


def random_weights(config: BertConfig, seed: int) -> dict[str, np.ndarray]:
    """float32 weights by name, with about the standard deviation of trained ones."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in config.tensor_shapes().items():
        values = rng.standard_normal(shape, np.float32) * np.float32(0.04)
        weights[name] = values + 1 if name.endswith("LayerNorm.weight") else values
    return weights


def reference_vector(config: BertConfig, weights: Mapping[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """float64 (C,): the mean over the hidden states of one text, in plain NumPy."""
    T, C, H = len(ids), config.hidden_size, config.num_attention_heads

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T.astype(np.float64) + weights[f"{name}.bias"]

    def normed(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=1, keepdims=True) + config.layer_norm_eps)
        return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    tables = {name: weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    x = tables["word"][ids].astype(np.float64) + tables["position"][:T] + tables["token_type"][0]
    x = normed(x, "embeddings.LayerNorm")
    for i in range(config.num_hidden_layers):
        layer = f"encoder.layer.{i}"
        q, k, v = (linear(x, f"{layer}.attention.self.{name}").reshape(T, H, C // H).transpose(1, 0, 2)
                   for name in ("query", "key", "value"))  # fmt: skip
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(C // H)  # (H, T, T)
        odds = np.exp(scores - scores.max(axis=2, keepdims=True))
        y = (odds / odds.sum(axis=2, keepdims=True) @ v).transpose(1, 0, 2).reshape(T, C)
        x = normed(x + linear(y, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        u = linear(x, f"{layer}.intermediate.dense")
        u = u * 0.5 * (1 + np.vectorize(math.erf)(u / math.sqrt(2)))
        x = normed(x + linear(u, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return x.mean(axis=0)


def bench(setting: Setting, say: Say) -> list[Row]:
    """Rows of tilewright and of each installed peer. A line names each peer that is missing. SAMPLE texts are checked
    before anything is timed. Raises InternalError if the check fails or two runs differ, UsageError for an unknown
    peer, ResourceError if the GPU is missing."""
    known = PEERS[setting.device]
    if unknown := set(setting.against) - set(known):
        raise UsageError(f"no peer is called {', '.join(map(repr, sorted(unknown)))}; {', '.join(known)} are known")
    if setting.device != "cpu":
        from tilewright.bench.clocks.cuda import torch_on_a_gpu

        torch_on_a_gpu()
    config, texts = setting.config, setting.texts
    weights = random_weights(config, seed=1)
    with threads(setting.count):
        start = time.perf_counter()
        model = Bert(config, weights, dtype=setting.dtype, device=setting.device)
        vectors = model.embeddings(texts)
        prepared_s = time.perf_counter() - start
        error = _checked(config, weights, texts, vectors, setting.dtype)
        say(f"checked {min(SAMPLE, len(texts))} texts against float64: largest error {error:.1e}")
        calls: dict[str, Vectors] = {"tilewright": lambda: model.embeddings(texts)}
        calls |= dict(_peers(setting, weights, say))
        same = SameResults({"tilewright": vectors})
        timings = interleave(
            calls,
            CpuClock(cold=False, settle=len(calls) > 1 and setting.device == "cpu"),
            runs=setting.rounds,
            check=lambda name, result: same(name, result) if name == "tilewright" else None,
        )
    rows = list(_rows(setting, timings, {"one_off_s": prepared_s, "check": f"passed {error:.1e}"}))
    for row in rows:
        say(f"{row.rung}: {row.rows / row.median_s:,.1f} texts/s")
    return rows


def _checked(config: BertConfig, weights: Mapping[str, np.ndarray], texts: list[np.ndarray], vectors: np.ndarray,
             dtype: str) -> float:  # fmt: skip
    """The largest error of a sample. Raises InternalError if it is too large."""
    expected = np.stack([reference_vector(config, weights, ids) for ids in texts[:SAMPLE]])
    error = float(np.abs(vectors[:SAMPLE] - expected).max())
    if not error <= TOLERANCE[dtype]:
        raise InternalError(f"the vectors are off by {error:.3g}; {TOLERANCE[dtype]} is allowed, nothing is reported")
    return error


def _rows(setting: Setting, timings: dict[str, Timing], ours: dict[str, Any]) -> Iterator[Row]:
    """ours: the columns of tilewright's row, which also names the fastest peer."""
    count, flops = len(setting.texts), sum(setting.config.flops(len(ids)) for ids in setting.texts)
    fastest = min(
        (name for name in timings if name != "tilewright"), key=lambda name: timings[name].median_s, default=None
    )
    for name, timing in timings.items():
        rest: dict[str, Any] = {"check": PEER}
        if name == "tilewright":
            ratio = timing.times_faster_than(timings[fastest]) if fastest else None
            rest = {"peer": fastest, "peer_ratio": ratio, **ours}
        rate: dict[str, Any] = {"gflops": flops / timing.median_s / 1e9}
        if setting.device != "cpu":  # the weights are read once for many texts, so operations are the limit
            rate = measured_roofs(0).columns(flops, 0.0, setting.dtype, timing.median_s)
        yield Row(
            op="embed", rung=name, size=f"{setting.size}, {count} texts", dtype=setting.dtype,
            threads=setting.count if setting.device == "cpu" else 0, rows=count,
            label=f"{count / timing.median_s:,.1f} texts/s", **rate, **timing.columns(), **rest,
        )  # fmt: skip


def _peers(setting: Setting, weights: Mapping[str, np.ndarray], say: Say) -> Iterator[tuple[str, Vectors]]:
    """(name, call) of each installed peer."""
    if not setting.against:
        return
    try:
        import torch
        from transformers import BertConfig as TheirConfig
        from transformers import BertModel
    except ModuleNotFoundError as missing:
        say(f"no peers: {missing.name} is not installed; pip install torch transformers puts them beside ours")
        return
    torch.set_num_threads(setting.count)
    config = setting.config
    sizes = {name: getattr(config, name) for name in SIZES["minilm"]}
    network = BertModel(TheirConfig(vocab_size=config.vocab_size, **sizes), add_pooling_layer=False).eval()
    network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()}, strict=False)
    if setting.device != "cpu":
        yield from _on_gpu(torch, network, setting)
        return
    batches = list(padded(setting.texts))
    if "torch" in setting.against:
        network.to(getattr(torch, setting.dtype))

        def of_torch(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                found = network(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
            return found.last_hidden_state.float().numpy()

        yield "PyTorch", lambda: _means(of_torch, batches, setting)
    if "openvino" in setting.against:
        try:
            import openvino
        except ModuleNotFoundError as missing:
            say(f"no peer: {missing.name} is not installed; in a clone: pip install -e '.[peers]'")
            return
        call = _compiled(openvino, torch, copy.deepcopy(network).float(), setting)
        yield "OpenVINO", lambda: _means(call, batches, setting)


def _on_gpu(torch: Any, network: Any, setting: Setting) -> Iterator[tuple[str, Vectors]]:
    """PyTorch on the GPU, by batches of two sizes. Vectors stay on the GPU until all are computed."""
    network.to(setting.device, getattr(torch, setting.dtype))

    def means(batches: list[Padded]) -> np.ndarray:
        found = []
        with torch.inference_mode():
            for _, ids, mask in batches:
                there, counted = (torch.from_numpy(x).to(setting.device) for x in (ids, mask))
                states = network(input_ids=there, attention_mask=counted).last_hidden_state.float()
                weights = counted[:, :, None].float()
                found.append((states * weights).sum(dim=1) / weights.sum(dim=1))
            vectors = torch.cat(found).cpu().numpy()
        result = np.empty_like(vectors)
        result[np.concatenate([chosen for chosen, _, _ in batches])] = vectors
        return result

    for size in (BATCH, LARGE):
        yield f"PyTorch, batches of {size}", partial(means, list(padded(setting.texts, size)))


def _compiled(openvino: Any, torch: Any, network: Any, setting: Setting) -> Callable[..., np.ndarray]:
    """A function of (ids, mask): OpenVINO's network on the CPU."""

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.network(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    example = torch.full((2, 8), 5), torch.ones(2, 8, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns of every branch that depends on a shape
        converted = openvino.convert_model(Named(), example_input=example)
    model = compiled(converted, setting.dtype)
    return lambda ids, mask: model([ids, mask])[0]


Padded = tuple[np.ndarray, np.ndarray, np.ndarray]


def padded(texts: list[np.ndarray], size: int = BATCH) -> Iterator[Padded]:
    """(indices, ids, mask) of batches of `size` texts with similar lengths, padded with 0."""
    order = np.argsort([-len(ids) for ids in texts], kind="stable")
    for first in range(0, len(order), size):
        chosen = order[first : first + size]
        ids = np.zeros((len(chosen), len(texts[chosen[0]])), np.int64)
        mask = np.zeros_like(ids)
        for row, i in enumerate(chosen):
            ids[row, : len(texts[i])], mask[row, : len(texts[i])] = texts[i], 1
        yield chosen, ids, mask


def _means(call: Callable[..., np.ndarray], batches: list[Padded], setting: Setting) -> np.ndarray:
    """float32 (texts, C): the mean over the tokens of each text."""
    result = np.empty((len(setting.texts), setting.config.hidden_size), np.float32)
    for chosen, ids, mask in batches:
        counted = mask[:, :, None].astype(np.float32)
        result[chosen] = (call(ids, mask) * counted).sum(axis=1) / counted.sum(axis=1)
    return result

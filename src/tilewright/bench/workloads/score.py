"""Scoring of given continuations, compared with transformers and with the "hf" backend of lm-evaluation-harness. The
model is a GPT-2 of full size with random weights, or any other GPT-2. Token ids are random. The text lengths are
typical of real texts.

Every library gets the same token ids. Both peers get batches of texts sorted by length, padded, as the harness makes
them. The harness computes the log-softmax of all positions; the peer "PyTorch" computes it only for the positions that
predict a scored token. The timed part starts with Python lists of token ids, and ends with one log-probability per
continuation.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import SameResults, Timing, interleave
from tilewright.bench.results import PEER, Row
from tilewright.bench.roofs import measured_roofs
from tilewright.bench.workloads.embed import PER_WORD
from tilewright.bench.workloads.gpt2 import model_name, reference_logits
from tilewright.bench.workloads.gpt2_engines import torch_model
from tilewright.errors import InternalError, UsageError, counted
from tilewright.formats.packages import install_command
from tilewright.generation.memory import Prompts
from tilewright.models.gpt2 import GPT2, GPT2Config
from tilewright.ops.core.launch import threads

PEERS = ("torch", "lm-eval")
NAMES = {"torch": "PyTorch", "lm-eval": "lm-eval hf"}
COUNT = {"cpu": 64, "cuda": 4096}  # continuations
BATCH = {"cpu": 16, "cuda": 64}  # texts of a peer's batch; a GPU would need gigabytes for the logits of larger ones
LONGEST = 24  # most tokens of a continuation; the least is 2
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}  # absolute error of a token's log-probability
SAMPLE = 2  # continuations that are checked against float64
ROUNDS = 3
Ids = list[int]
Pair = tuple[Ids, Ids]  # context, continuation
Say = Callable[[str], None]
Scores = Callable[[], np.ndarray]


@dataclass(frozen=True, eq=False)
class Setting:
    """What to measure. pairs: what to score. answers: continuations of each context. count: number of CPU threads.
    against: names of PEERS."""

    config: GPT2Config
    weights: Mapping[str, np.ndarray]
    pairs: list[Pair]
    answers: int = 1
    dtype: str = "float32"
    count: int = 1
    against: tuple[str, ...] = PEERS
    rounds: int = ROUNDS
    device: str = "cpu"

    @property
    def size(self) -> str:
        """The size in results, such as "124M, 64 texts, 4 per context"."""
        size = f"{model_name(self.config)}, {counted(len(self.pairs), 'text')}"
        return size if self.answers == 1 else f"{size}, {self.answers} per context"

    @property
    def tokens(self) -> int:
        """Tokens of all texts, each read alone."""
        return sum(len(context) + len(continuation) - 1 for context, continuation in self.pairs)

    @property
    def flops(self) -> float:
        """Operations if each text is read alone, and only the scored positions are multiplied by the output matrix."""
        scored = sum(len(continuation) for _, continuation in self.pairs)
        longest = max(len(context) + len(continuation) - 1 for context, continuation in self.pairs)
        head = 2.0 * self.config.vocab_size * self.config.n_embd
        rest = self.config.flops(Prompts(len(self.pairs), self.tokens, longest), 1)
        return rest + head * (scored - len(self.pairs))


def random_pairs(config: GPT2Config, lines: list[str] | None, count: int, answers: int = 1) -> list[Pair]:
    """`count` pairs of a context and a continuation, `answers` of them with the same context.

    A context is as long as a line, drawn from `lines`; without lines 80 tokens on average. Both fit the model.
    """
    rng, most = np.random.default_rng(3), config.n_positions - LONGEST
    if most < 1:
        raise UsageError(f"the model reads {config.n_positions} tokens; this workload needs more than {LONGEST}")
    contexts = -(-count // answers)
    if lines is None:
        drawn = rng.gamma(4.0, 20.0, contexts)
    else:
        drawn = rng.choice([PER_WORD * len(line.split()) for line in lines if line.strip()], contexts)
    found = []
    for length in np.clip(drawn, 1, most).astype(int):
        context = rng.integers(0, config.vocab_size, length).tolist()
        for n in rng.integers(2, LONGEST + 1, answers):
            found.append((context, rng.integers(0, config.vocab_size, n).tolist()))
    return found[:count]


def bench(setting: Setting, say: Say) -> list[Row]:
    """Rows of tilewright and of each installed peer. It says which peers are missing, and how far each peer's values
    differ from tilewright's. SAMPLE texts are checked before anything is timed. Raises InternalError if the check fails
    or two runs differ, UsageError for an unknown peer, ResourceError if the GPU is missing."""
    if unknown := set(setting.against) - set(PEERS):
        raise UsageError(f"no peer is called {', '.join(map(repr, sorted(unknown)))}; {', '.join(PEERS)} are known")
    if setting.device != "cpu":
        from tilewright.bench.clocks.cuda import torch_on_a_gpu

        torch_on_a_gpu()
    with threads(setting.count):
        start = time.perf_counter()
        model = GPT2(setting.config, setting.weights, dtype=setting.dtype, device=setting.device)

        def ours() -> np.ndarray:
            return np.array([score.logprob for score in model.score(setting.pairs)])

        found = ours()
        prepared_s = time.perf_counter() - start
        error = _checked(setting, [score.logprobs for score in model.score(setting.pairs[:SAMPLE])])
        say(f"checked {counted(min(SAMPLE, len(setting.pairs)), 'text')} against float64: largest error {error:.1e}")
        calls: dict[str, Scores] = {"tilewright": ours, **dict(_peers(setting, say))}
        same = SameResults({"tilewright": found}, may_differ=set(calls) - {"tilewright"})
        clock = CpuClock(cold=False, settle=len(calls) > 1 and setting.device == "cpu")
        timings = interleave(calls, clock, runs=setting.rounds, check=same)
    rows = list(_rows(setting, timings, {"one_off_s": prepared_s, "check": f"passed {error:.1e}"}))
    for row in rows:
        off = f"; values within {np.abs(same.first[row.rung] - found).max():.1e} of tilewright's"
        say(f"{row.rung}: {row.rows / row.median_s:,.1f} texts/s{off if row.check == PEER else ''}")
    return rows


def _checked(setting: Setting, found: list[list[float]]) -> float:
    """The largest error of a token's log-probability in the first texts. Raises InternalError if it is too large."""
    error = 0.0
    for (context, continuation), values in zip(setting.pairs, found, strict=False):
        ids = np.array([[*context, *continuation[:-1]]])
        logits = reference_logits(setting.config, setting.weights, ids, len(continuation))[0]  # (tokens, V)
        peak = logits.max(axis=1)
        exact = logits[np.arange(len(logits)), continuation] - peak - np.log(np.exp(logits.T - peak).sum(axis=0))
        off = np.abs(values - exact)
        error = max(error, math.inf if np.isnan(off).any() else float(off.max()))
    if not error <= TOLERANCE[setting.dtype]:
        allowed = f"{TOLERANCE[setting.dtype]} is allowed, nothing is reported"
        raise InternalError(f"a log-probability is off by {error:.3g}; {allowed}")
    return error


def _rows(setting: Setting, timings: dict[str, Timing], ours: dict[str, Any]) -> Iterator[Row]:
    """The rows of all libraries. ours: the columns of tilewright's row, which also names the fastest peer."""
    count = len(setting.pairs)
    peers = [name for name in timings if name != "tilewright"]
    fastest = min(peers, key=lambda name: timings[name].median_s, default=None)
    for name, timing in timings.items():
        rest: dict[str, Any] = {"check": PEER}
        if name == "tilewright":
            rest = {"peer": fastest, "peer_ratio": timing.times_faster_than(timings[fastest]) if fastest else None,
                    **ours}  # fmt: skip
        rate: dict[str, Any] = {"gflops": setting.flops / timing.median_s / 1e9}
        if setting.device != "cpu":  # the weights are read once for many texts, so operations are the limit
            rate = measured_roofs(0).columns(setting.flops, 0.0, setting.dtype, timing.median_s)
        yield Row(
            op="score", rung=name, size=setting.size, dtype=setting.dtype, rows=count,
            threads=setting.count if setting.device == "cpu" else 0,
            label=f"{setting.tokens / timing.median_s:,.0f} tokens/s", **rate, **timing.columns(), **rest,
        )  # fmt: skip


def _peers(setting: Setting, say: Say) -> Iterator[tuple[str, Scores]]:
    """(name, call) of each installed peer."""
    if not setting.against:
        return
    try:
        import torch

        network = torch_model(setting.config, setting.weights).to(setting.device, getattr(torch, setting.dtype))
    except ModuleNotFoundError as missing:
        say(f"no peers: {missing.name} is not installed; to compare with it: pip install torch transformers")
        return
    torch.set_num_threads(setting.count)
    if "torch" in setting.against:
        yield NAMES["torch"], lambda: _torch_scores(network, setting)
    if "lm-eval" in setting.against:
        try:
            yield NAMES["lm-eval"], _harness(network, setting)
        except ModuleNotFoundError as missing:
            say(f"no peer: {missing.name} is not installed; to compare with it: {install_command('eval')}")


def _torch_scores(network: Any, setting: Setting) -> np.ndarray:
    """transformers' logits in padded batches, the longest texts first; log-softmax of the positions that are scored.
    Values stay on the device until all are computed."""
    import torch

    pairs, size, found = setting.pairs, BATCH[setting.device], []
    order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
    with torch.inference_mode():
        for first in range(0, len(order), size):
            some = [pairs[i] for i in order[first : first + size]]
            read = [[*context, *continuation[:-1]] for context, continuation in some]
            ids = np.zeros((len(some), max(map(len, read))), np.int64)
            for row, tokens in zip(ids, read, strict=True):
                row[: len(tokens)] = tokens
            lengths = [len(continuation) for _, continuation in some]
            texts = np.repeat(np.arange(len(some)), lengths)
            at = np.concatenate([np.arange(len(context) - 1, len(context) - 1 + n)
                                 for (context, _), n in zip(some, lengths, strict=True)])  # fmt: skip
            targets = np.concatenate([continuation for _, continuation in some])
            there = [torch.from_numpy(x).to(setting.device) for x in (ids, texts, at, targets)]
            logits = network(input_ids=there[0], use_cache=False).logits[there[1], there[2]]
            values = torch.log_softmax(logits.float(), dim=-1).gather(1, there[3][:, None])[:, 0].double()
            sums = torch.zeros(len(some), dtype=torch.float64, device=setting.device)
            found.append(sums.index_add_(0, there[1], values))
        every = torch.cat(found).cpu().numpy()
    result = np.empty(len(pairs))
    result[order] = every
    return result


def _harness(network: Any, setting: Setting) -> Scores:
    """The harness's backend "hf", with a tokenizer that is not used. Raises ModuleNotFoundError if it is missing."""
    from lm_eval.models.huggingface import HFLM
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns that it did not load the model itself
    word = "a"
    only = Tokenizer(models.WordLevel({word: 0}, unk_token=word))
    unused = PreTrainedTokenizerFast(tokenizer_object=only, eos_token=word, pad_token=word)
    backend = HFLM(pretrained=network, tokenizer=unused, batch_size=BATCH[setting.device])
    requests = [(("", str(i)), context, continuation) for i, (context, continuation) in enumerate(setting.pairs)]
    return lambda: np.array([value for value, _ in backend._loglikelihood_tokens(requests, disable_tqdm=True)])

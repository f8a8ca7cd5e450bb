"""The whole job of text generation, compared with transformers, CTranslate2 and OpenVINO, on a GPU with transformers
and PyTorch. The model is a GPT-2 of full size with random weights, or any other GPT-2.

There are four workloads:

* "course": prompts of 16 tokens and 8 new tokens. It runs once with the prompts as given, where tilewright computes
  equal prompts once, and once without duplicates.
* "batch": 64 prompts, on a GPU 1,024, and 128 new tokens.
* "single": one prompt and 64 new tokens.
* "sampled": the same as "batch", but each token is drawn from the 50 likeliest, which is transformers' default.

All engines run in alternation on the same threads or GPU, each peer with its fastest batch. On a CPU a peer's rate does
not depend on the number of prompts, so it gets only the first ones of the course. Each compared greedy token of
tilewright must be the best according to a float64 reference, or so close to the best that rounding explains the choice.
A drawn token must be among the 50 best, with the same allowance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import SameResults, Timing, interleave
from tilewright.bench.results import PEER, Row
from tilewright.bench.workloads.gpt2_counts import counting
from tilewright.bench.workloads.gpt2_engines import PEERS, Engine, Weights, ours
from tilewright.bench.workloads.gpt2_profile import cpu_profile, gpu_profile
from tilewright.errors import InternalError, UsageError, counted
from tilewright.models.activations import ACTIVATIONS
from tilewright.models.gpt2 import GPT2Config
from tilewright.ops.attention.reference import attention
from tilewright.ops.core.launch import thread_count
from tilewright.ops.elementwise.reference import FUNCTIONS
from tilewright.ops.layernorm.reference import layernorm

Say = Callable[[str], None]
CHECKED = 8  # prompts that are checked against float64 before anything is timed
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}  # error of a logit, times the logits' deviation if that is above 1
COMPARED = 128  # prompts with which bfloat16 is compared
PEER_PROMPTS = 256  # of the course, for a peer: at least two batches
COURSE, BATCH, SINGLE, SAMPLED = "course", "batch", "single", "sampled"
USUAL = COURSE, BATCH, SINGLE
WORKLOADS = *USUAL, SAMPLED
COUNT = {"cpu": 1024, "cuda": 6400}  # prompts of the course unless the user gives a number
DRAWN_FROM = 50  # tokens
CLOCK = CpuClock(cold=False, settle=True)  # also on a GPU: a call returns when its tokens are on the host


@dataclass(frozen=True, eq=False)
class Setting:
    """What to measure. prompts: int (?, L), as they are given. count: how many of them the course uses. device: "cpu"
    or "cuda". rounds: an odd number."""

    config: GPT2Config
    weights: Weights
    prompts: np.ndarray
    count: int
    tokens: int = 8
    against: tuple[str, ...] = tuple(PEERS)
    workloads: tuple[str, ...] = USUAL
    rounds: int = 3
    profile: bool = False
    device: str = "cpu"

    @property
    def threads(self) -> int:
        """The number of threads in the rows: 0 on a GPU."""
        return thread_count() if self.device == "cpu" else 0


@dataclass(frozen=True, eq=False)
class Workload:
    """ours: tilewright's inputs by name. theirs: the prompts of a peer. batches: the batch sizes from which a peer may
    choose. top_k: a token is drawn from so many of the best; 1 is greedy."""

    name: str
    tokens: int
    ours: dict[str, np.ndarray]
    theirs: np.ndarray
    batches: tuple[int, ...]
    top_k: int = 1

    @property
    def size(self) -> str:
        """The size in results, such as "course: 16 -> 8"."""
        return f"{self.name}: {self.theirs.shape[1]} -> {self.tokens}"


def random_weights(config: GPT2Config, seed: int) -> dict[str, np.ndarray]:
    """float32 weights, initialised like GPT-2: N(0, 0.02**2); those at the end of a branch are divided by sqrt(2
    layers)."""
    rng, weights = np.random.default_rng(seed), {}
    for name, shape in config.tensor_shapes().items():
        ends, norm = name.endswith("c_proj.weight"), "ln_" in name and name.endswith("weight")
        weights[name] = rng.standard_normal(shape, dtype=np.float32)
        weights[name] *= np.float32(0.02 / (math.sqrt(2 * config.n_layer) if ends else 1))
        weights[name] += np.float32(norm)
    return weights


def random_prompts(config: GPT2Config, count: int, length: int = 16) -> np.ndarray:
    """Token ids int32 (count, length)."""
    return np.random.default_rng(1).integers(0, config.vocab_size, (count, length), dtype=np.int32)


def workloads(setting: Setting) -> list[Workload]:
    """The workloads that the setting names. Raises UsageError if the prompts leave no room in the context."""
    prompts = setting.prompts
    distinct = prompts[np.sort(np.unique(prompts, axis=0, return_index=True)[1])]
    free = setting.config.n_positions - prompts.shape[1]
    if free < 1:
        raise UsageError(
            f"prompts have {prompts.shape[1]} tokens; the context of {setting.config.n_positions} must hold one more"
        )
    course = {"as given": prompts[: setting.count], "distinct prompts": distinct[: setting.count]}
    here = setting.device == "cpu"
    theirs = distinct[: min(setting.count, PEER_PROMPTS)] if here else course["distinct prompts"]
    batch = distinct[: 64 if here else 1024]
    few, many = ((32, 64, 128), (32, 64)) if here else ((512, 1024, 2048), (512, 1024))
    long = min(128, free), {f"{len(batch):,} prompts": batch}, batch, many
    every = [
        Workload(COURSE, min(setting.tokens, free), course, theirs, few),
        Workload(BATCH, *long),
        Workload(SINGLE, min(64, free), {"1 prompt": distinct[:1]}, distinct[:1], (1,)),
        Workload(SAMPLED, *long, top_k=DRAWN_FROM),
    ]
    return [workload for workload in every if workload.name in setting.workloads]


def bench(setting: Setting, *, dtype: str, say: Say) -> Iterator[list[Row]]:
    """Check, then measure on `thread_count()` threads. If a check fails, nothing is reported. Yields the rows of each
    workload as soon as it is measured, then the rows of its profile.

    Raises InternalError for wrong logits or tokens, UsageError for an unknown peer or workload.
    """
    for given, known in ((setting.against, PEERS), (setting.workloads, WORKLOADS)):
        if unknown := set(given) - set(known):
            raise UsageError(f"{', '.join(sorted(unknown))} is not known; it must be one of {', '.join(known)}")
    wanted = workloads(setting)
    engine = ours(setting.config, setting.weights, dtype, setting.device)
    say(f"tilewright {dtype}: prepared in {engine.once_s:.1f} s")
    error = max(check(setting, engine, top_k) for top_k in sorted({workload.top_k for workload in wanted}))
    say(f"checked {CHECKED} prompts against float64: largest error of a logit {error:.1e}")
    peers = _peers(setting, dtype, say)
    if dtype != "float32" and COURSE in setting.workloads:
        yield accuracy(setting, [engine, *peers], say)
    for workload in wanted:
        say(f"{workload.size}: measuring {counted(setting.rounds, 'round')} of {counted(1 + len(peers), 'engine')}")
        yield _measured(setting, workload, [engine, *peers], f"passed {error:.1e}", say)
    for workload in wanted if setting.profile else ():  # after everything is timed, see `gpt2_profile.leave`
        say(f"{workload.size}: where the time goes")
        run = _call(engine, list(workload.ours.values())[-1], workload)
        size = f"{model_name(setting.config)}, {workload.size}"
        if setting.device == "cpu":
            yield cpu_profile(run, size=size, dtype=dtype, vocabulary=setting.config.vocab_size)
        else:
            plain = ours(setting.config, setting.weights, dtype, setting.device, frozenset({"graphs"}))
            with counting() as work:
                _call(plain, list(workload.ours.values())[-1], workload)()
            yield gpu_profile(run, size=size, dtype=dtype, work=work)


def _peers(setting: Setting, dtype: str, say: Say) -> list[Engine]:
    """The peers that are installed and support the dtype. A line names each of the others."""
    engines = []
    for name in setting.against:
        try:
            engines.append(PEERS[name](setting.config, setting.weights, dtype, setting.device))
            say(f"{engines[-1].key}: prepared in {engines[-1].once_s:.1f} s")
        except (ImportError, UsageError) as error:
            say(f"{name}: unavailable - {error}")
    return engines


def check(setting: Setting, engine: Engine, top_k: int = 1) -> float:
    """The largest error of `engine`'s logits against float64.

    Raises InternalError if it exceeds the tolerance, or if a token's logit is further than that below the `top_k` best.
    """
    some = setting.prompts[:CHECKED]
    tokens = min(setting.tokens, setting.config.n_positions - some.shape[1])
    found = engine.generate(some, tokens, len(some), top_k)
    exact = reference_logits(setting.config, setting.weights, np.hstack([some, found])[:, :-1], tokens)
    allowed = TOLERANCE[engine.dtype] * max(1.0, float(exact.std()))
    error = float(np.abs(engine.logits(some) - exact[:, 0]).max()) if engine.logits else 0.0
    least = np.partition(exact, -min(top_k, exact.shape[2]), axis=2)[..., -min(top_k, exact.shape[2])]
    gap = float((least - np.take_along_axis(exact, found[:, :, None], axis=2)[..., 0]).max())
    if not (error <= allowed and gap <= 2 * allowed):
        raise InternalError(
            f"{engine.key}: the logits are off by {error:.3g} and a token is {gap:.3g} below the best; {allowed:.3g} "
            "is allowed, nothing is reported"
        )
    return error


def reference_logits(config: GPT2Config, weights: Weights, ids: np.ndarray, last: int) -> np.ndarray:
    """float64 logits (n, last, V) after each of the last positions of ids (n, L), in plain NumPy."""

    def w(name: str) -> np.ndarray:
        return np.asarray(weights[name], np.float64)

    def affine(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w(f"{name}.weight") + w(f"{name}.bias")

    def normed(x: np.ndarray, name: str) -> np.ndarray:
        return layernorm(x, w(f"{name}.weight"), w(f"{name}.bias"), config.layer_norm_epsilon)

    (n, L), C, H = ids.shape, config.n_embd, config.n_head
    scale = math.sqrt(H / C) if config.scale_attn_weights else 1.0
    x = np.asarray(weights["wte.weight"][ids], np.float64) + w("wpe.weight")[:L]  # (n, L, C)
    for i in range(config.n_layer):
        q, k, v = np.split(affine(normed(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, axis=-1)
        heads = (part.reshape(n, L, H, C // H).swapaxes(1, 2) for part in (q, k, v))  # (n, H, L, D)
        y = attention(*heads, scale=scale / (i + 1) if config.scale_attn_by_inverse_layer_idx else scale)
        x = x + affine(y.swapaxes(1, 2).reshape(n, L, C), f"h.{i}.attn.c_proj")
        u = FUNCTIONS[ACTIVATIONS[config.activation_function]](affine(normed(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"))
        x = x + affine(u, f"h.{i}.mlp.c_proj")
    return normed(x[:, -last:], "ln_f") @ w("wte.weight").T


def accuracy(setting: Setting, engines: list[Engine], say: Say) -> list[Row]:
    """What a 16-bit dtype changes: logits and greedy tokens of each engine, compared with tilewright's float32, which
    were checked before."""
    exact = ours(setting.config, setting.weights, "float32", setting.device)
    check(setting, exact)
    assert exact.logits
    some = setting.prompts[:COMPARED]
    tokens = min(setting.tokens, setting.config.n_positions - some.shape[1])
    logits, answers = exact.logits(some), exact.generate(some, tokens, len(some), 1)
    rows = []
    for engine in engines:
        if engine.logits is None:
            continue
        off = np.abs(engine.logits(some) - logits)
        found = engine.generate(some, tokens, 64, 1)
        equal = f"{(found[:, 0] == answers[:, 0]).mean():.1%}", f"{(found == answers).mean():.1%}"
        rows.append(Row(
            op="gpt2_accuracy", rung=engine.name, size=f"{model_name(setting.config)}: {some.shape[1]} -> {tokens}",
            dtype=engine.dtype, threads=setting.threads, rows=len(some), median_s=0.0, low_s=0.0, high_s=0.0, runs=1,
            check=PEER if engine.name in PEERS else "passed",
            label=f"{off.max():.2g}; {np.sqrt((off**2).mean()):.2g}; {equal[0]}; {equal[1]}",
        ))  # fmt: skip
        say(f"{engine.key} against our float32, {len(some)} prompts: logits off by {off.max():.2g} at most, equal are "
            f"{equal[0]} of the first tokens and {equal[1]} of all {tokens}")  # fmt: skip
    return rows


def _measured(setting: Setting, workload: Workload, engines: list[Engine], passed: str, say: Say) -> list[Row]:
    """Measure one workload, all engines in alternation: one row per input of tilewright, and one per peer."""
    our, peers = engines[0], {engine.name: engine for engine in engines[1:]}
    batches = {name: len(workload.theirs) if peer.whole else best_batch(peer, workload) for name, peer in peers.items()}
    calls = {name: _call(our, prompts, workload) for name, prompts in workload.ours.items()}
    calls |= {name: _call(peer, workload.theirs, workload, batches[name]) for name, peer in peers.items()}
    check = SameResults(may_differ=peers)  # other libraries do not promise equal results
    # The first call of an engine allocates and compiles; on a GPU the second one captures CUDA graphs.
    timings = interleave(calls, CLOCK, runs=setting.rounds, warm_up=1 if setting.device == "cpu" else 2, check=check)
    answers, restless = check.first, check.changed if workload.top_k == 1 else ()  # sampled tokens may differ
    if workload.top_k == 1 and our.dtype == "float32":
        compare(setting, workload, answers, list(peers))
    rows, hardest = [], list(workload.ours)[-1]  # of the course the distinct prompts: no work is shared
    for name, timing in timings.items():
        ratios = {other: _ratios(timings, answers, name, other) for other in ([hardest] if name in peers else peers)}
        other = min(ratios, key=lambda peer: statistics.median(ratios[peer]), default=None)
        ratio = Timing(tuple(ratios[other])) if other else None
        spread = "" if ratio is None else _spread(ratio, upside_down=name in peers)
        rows.append(Row(
            op="gpt2", rung=name, size=f"{model_name(setting.config)}, {workload.size}", dtype=our.dtype,
            threads=setting.threads, rows=answers[name].size, **timing.columns(), peer=other,
            peer_ratio=ratio.median_s if ratio else None,
            one_off_s=peers.get(name, our).once_s, check=PEER if name in peers else passed,
            label="; ".join(filter(None, [f"batch {batches[name]}" if name in peers else "", spread,
                                          "two runs differ" if name in restless else ""])),
        ))  # fmt: skip
        say(f"{workload.size}, {name}: {answers[name].size / timing.median_s:,.1f} tokens/s  {rows[-1].label}")
    return rows


def _call(engine: Engine, prompts: np.ndarray, workload: Workload, batch: int = 0) -> Callable[[], np.ndarray]:
    return lambda: engine.generate(prompts, workload.tokens, batch, workload.top_k)


def _ratios(timings: dict[str, Timing], answers: dict[str, np.ndarray], name: str, other: str) -> list[float]:
    """For each round, the tokens per second of `name`, divided by those of `other`."""
    fewer = answers[name].size / answers[other].size
    return [fewer * b / a for a, b in zip(timings[name].rounds, timings[other].rounds, strict=True)]


def _spread(ratio: Timing, *, upside_down: bool) -> str:
    """The smallest and the largest speed-up of all rounds, as text."""
    ends = sorted(1 / r if upside_down else r for r in ratio.rounds)
    return f"{ends[0]:.2f} to {ends[-1]:.2f} x"


def best_batch(peer: Engine, workload: Workload) -> int:
    """The batch with which a peer is fastest, measured on a small part of the work. The first call with each batch,
    in which a library may compile, is not timed."""
    choices = [batch for batch in workload.batches if batch <= len(workload.theirs)] or [len(workload.theirs)]
    if len(choices) == 1:
        return choices[0]
    tokens = min(workload.tokens, 16)
    calls = {str(n): partial(peer.generate, workload.theirs[:n], tokens, n, workload.top_k) for n in choices}
    timings = interleave(calls, CLOCK, runs=1)
    return max(choices, key=lambda n: n / timings[str(n)].median_s)


def compare(setting: Setting, workload: Workload, answers: dict[str, np.ndarray], peers: list[str]) -> None:
    """Where a token of tilewright differs from a peer's, tilewright's must be as good as the best token, in float64.

    Raises InternalError if it is not.
    """
    mine = list(workload.ours.values())[-1]
    found = answers[list(workload.ours)[-1]]
    for peer in peers:
        their = answers[peer]
        unlike = np.flatnonzero((found[: len(their)] != their).any(axis=1))[:CHECKED]
        for i in unlike:
            at = int(np.argmax(found[i] != their[i]))
            ids = np.concatenate([mine[i], found[i, :at]])[None]
            exact = reference_logits(setting.config, setting.weights, ids, 1)[0, 0]
            gap, allowed = exact.max() - exact[found[i, at]], 2 * TOLERANCE["float32"] * max(1.0, float(exact.std()))
            if not gap <= allowed:
                raise InternalError(
                    f"{workload.size}: token {at} of prompt {i} is {found[i, at]} and {peer}'s is {their[i, at]}; "
                    f"ours is {gap:.3g} below the best, {allowed:.3g} is allowed, nothing is reported"
                )


def model_name(config: GPT2Config) -> str:
    """The model's name by its number of parameters, such as "124M"."""
    count = sum(math.prod(shape) for shape in config.tensor_shapes().values())
    return f"{count / 1e6:.0f}M" if count >= 1e6 else f"{count / 1e3:.0f}K"

"""Timing on a GPU: CUDA events, cold L2, calls that take turns; and a ladder climbed there.

The L2 is emptied by writing a buffer four times its size, eight times; while the GPU does that, the call after it is
already queued, so that what is timed is the GPU's work and not the way there.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from tilewright.bench.measure import RUNS, Timing
from tilewright.bench.results import Row
from tilewright.errors import InternalError, ResourceError
from tilewright.hardware import gpus, no_gpu
from tilewright.ops._ladder import using
from tilewright.ops.matmul.spec import Case

SEED = 20261121
SLOW_S = 0.25  # a rung that takes longer is timed on PROBE rows alone
PROBE = 256  # rows that tell whether it does
CHECKED = 2048  # rows that are compared with a float64 product


def torch_on_a_gpu():
    """torch. Raises ResourceError if there is none here, or no GPU for it."""
    try:
        import torch
    except ImportError as error:
        raise ResourceError("measuring on a GPU needs PyTorch", hint="pip install 'tilewright[gpu]'") from error
    if not torch.cuda.is_available():
        raise ResourceError(f"there is no GPU to measure: {no_gpu() or 'PyTorch sees none'}")
    return torch


def interleave(calls: dict[str, Callable[[], object]], *, runs: int = RUNS) -> dict[str, Timing]:
    """Time every call `runs` times on the current stream, taking turns in random order, after one untimed round."""
    torch = torch_on_a_gpu()
    flush = torch.empty(4 * gpus()[0].l2, dtype=torch.uint8, device="cuda")
    order = random.Random(0)
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(1 + runs):
        names = list(calls)
        order.shuffle(names)
        marks = {}
        for name in names:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(8):  # half a millisecond of an H200: longer than any call takes to be queued
                flush.fill_(turn)
            start.record()
            calls[name]()
            stop.record()
            marks[name] = start, stop
        torch.cuda.synchronize()
        if turn:
            for name, (start, stop) in marks.items():
                rounds[name].append(start.elapsed_time(stop) / 1e3)
    return {name: Timing(tuple(seconds)) for name, seconds in rounds.items()}


@dataclass(frozen=True)
class Roofs:
    """What this GPU was measured to do. copy_gbytes_s counts bytes read and written; gflops by accuracy class."""

    copy_gbytes_s: float
    gflops: dict[str, float]

    def seconds(self, flops: float, nbytes: float, dtype: str) -> float:
        """The least time for that many operations and bytes."""
        return max(flops / self.gflops[dtype], nbytes / self.copy_gbytes_s) / 1e9


@cache
def roofs() -> Roofs:
    """The largest copy and the vendor's products of 8192^3: seconds, once a process.

    float32's roof is that of its multiply-adds; what runs on matrix units instead may pass it.
    """
    torch = torch_on_a_gpu()
    size, calls = 8192, {}
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    calls["copy"] = lambda: target.copy_(source)
    for dtype in ("float32", "tf32", "bfloat16", "float16"):
        square = Case(size, size, size, dtype)
        calls[dtype] = vendor(torch, square, {x: torch.randn(size, size, device="cuda") for x in "ab"})
    best = {name: min(timing.rounds) for name, timing in interleave(calls, runs=5).items()}
    rates = {name: 2 * size**3 / seconds / 1e9 for name, seconds in best.items() if name != "copy"}
    return Roofs(2 * source.nbytes / best["copy"] / 1e9, rates)


def vendor(torch, case, inputs: dict, *, transposed: bool = False) -> Callable[[], object]:
    """cuBLAS on a case's tensors, bias in its own epilogue, residual and activation as kernels of their own.

    transposed: b lies as (N, K).
    """
    kind = getattr(torch, case.dtype) if case.dtype.endswith("16") else torch.float32
    a, b = inputs["a"].to(kind), inputs["b"].to(kind)
    bias, residual = (inputs[x].to(kind) if x in inputs else None for x in ("bias", "residual"))
    b = b.T.contiguous().T if transposed else b
    out = torch.empty(len(a), b.shape[1], dtype=kind, device=a.device)
    functions = {None: lambda x: x, "relu": torch.relu_, "gelu_tanh": partial(_gelu, torch)}
    activate = functions[case.activation]

    def call():
        torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
        product = torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)
        return activate(product if residual is None else product.add_(residual))

    return call


def _gelu(torch, x):
    return torch.nn.functional.gelu(x, approximate="tanh")


def _peers(torch, case, tensors: dict) -> dict[str, Callable[[], object]]:
    """cuBLAS with b as it comes and transposed."""
    if case.batch or case.gathered or case.activation not in (None, "relu", "gelu_tanh"):
        return {}
    return {
        "cuBLAS": vendor(torch, case, tensors),
        "cuBLAS, b transposed": vendor(torch, case, tensors, transposed=True),
    }


def climb(ladder, spec, case, *, only: str | None = None) -> Iterator[Row]:
    """Rows for the rungs that accept `case`, whose device is "cuda"; only: one rung's name.

    Raises Refused if `only` refuses the case, ResourceError without a GPU, InternalError if a rung's check fails: what
    is wrong is never timed.
    """
    torch = torch_on_a_gpu()
    if only:
        with using(**{ladder.op: only}):
            ladder.choose(case.problem)
    rungs = [r for r in ladder.rungs.values() if not r.refuses(case.problem) and only in (None, r.name)]
    inputs = spec.make(case, np.random.default_rng(SEED))
    tensors = {name: torch.from_numpy(value).cuda() for name, value in inputs.items() if isinstance(value, np.ndarray)}
    truth = _truth(torch, case, tensors)
    candidates = {rung.name: _candidate(torch, ladder, rung, spec, case, inputs, truth) for rung in rungs}
    others = _peers(torch, case, tensors)
    timings = interleave({name: c.call for name, c in candidates.items() if c.rows == case.M} | others)
    timings |= interleave({name: c.call for name, c in candidates.items() if c.rows < case.M}, runs=3)
    yield from _rows(ladder, spec, case, timings, candidates, others)


@dataclass
class Candidate:
    """A rung ready to be timed on the first `rows` rows of a case."""

    call: Callable[[], object]
    rows: int
    error: float  # worst error over its bound
    one_off_s: float


def _truth(torch, case, tensors: dict):
    """(exact, size, later) of the first CHECKED rows in float64, as `spec.bound` has them."""
    a, b = tensors["a"][:CHECKED].double(), tensors["b"].double()
    exact, size, later = a @ b, a.abs() @ b.abs(), 0.0
    addends = [tensors["residual"][:CHECKED]] if "residual" in tensors else []
    addends += [tensors["bias"]] if "bias" in tensors else []
    for addend in addends:
        exact = exact + addend.double()
        later = later + addend.double().abs()
    if case.activation:
        exact = _gelu(torch, exact) if case.activation == "gelu_tanh" else exact.relu()
    return exact, size, later + (4 if case.activation else 1) * exact.abs()


def _candidate(torch, ladder, rung, spec, case, inputs: dict, truth) -> Candidate:
    """Prepare a rung for the case, or for PROBE of its rows where all would take SLOW_S, and check it there.

    It is timed writing what the peer writes: 16 bits in a 16-bit class.
    """

    def bound(rows: int):
        few = {name: value[:rows] if name in ("a", "residual") else value for name, value in inputs.items()}
        with using(**{ladder.op: rung.name}):
            return spec.bind(spec.with_rows(case, rows), few)

    def forced(call, **options):
        with using(**{ladder.op: rung.name}):
            return call(**options)

    rows = min(PROBE, case.M)
    probe = bound(rows)
    seconds = interleave({rung.name: lambda: forced(probe)}, runs=1)[rung.name].median_s * case.M / rows
    if seconds < SLOW_S:
        rows = case.M
    start = time.perf_counter()
    call = bound(rows)
    torch.cuda.synchronize()
    one_off_s = time.perf_counter() - start
    exact, size, later = (x[:rows] for x in truth)
    slope = spec.STEEPEST if case.activation else 1.0
    allowed = spec.EPS32 * slope * (rung.c * np.sqrt(case.K) * size + 2 * later)
    error = float(((forced(call)[:CHECKED] - exact).abs() / allowed).nan_to_num(nan=torch.inf).max())
    if not error <= 1:
        raise InternalError(
            f"{ladder.op}.{rung.name} is wrong on {case.name}: its error is {error:.3g} times the bound; not timed"
        )
    kind = getattr(torch, case.dtype) if case.dtype.endswith("16") else torch.float32
    out = torch.empty(rows, case.N, dtype=kind, device="cuda")
    return Candidate(lambda: forced(call, out=out), rows, error, one_off_s)


def _rows(ladder, spec, case, timings: dict, candidates: dict, others: dict) -> Iterator[Row]:
    """One Row a rung and one a peer; threads is 0: on a GPU they are no setting."""
    roof, rates = roofs(), {}
    peer = min(others, key=lambda name: timings[name].median_s) if others else None
    for name in [*candidates, *others]:
        timing, ours = timings[name], candidates.get(name)
        timed = spec.with_rows(case, ours.rows) if ours else case
        flops, nbytes = spec.cost(timed)
        rates[name], after = timed.M / timing.median_s, ladder.rungs[name].after if ours else None
        yield Row(
            op=ladder.op,
            rung=name,
            size=case.name,
            dtype=case.dtype,
            threads=0,
            rows=timed.M,
            label=case.label,
            median_s=timing.median_s,
            low_s=timing.low_s,
            high_s=timing.high_s,
            runs=len(timing.rounds),
            gflops=flops / timing.median_s / 1e9,
            gbytes_s=nbytes / timing.median_s / 1e9,
            roof_share=roof.seconds(flops, nbytes, case.dtype) / timing.median_s,
            roof_gflops=roof.gflops[case.dtype],
            roof_gbytes_s=roof.copy_gbytes_s,
            versus_below=rates[name] / rates[after] if after in rates else None,
            peer=peer if ours else None,
            peer_ratio=timing.times_faster_than(timings[peer]) if peer and ours and timed.M == case.M else None,
            one_off_s=ours.one_off_s if ours else None,
            check=f"passed {ours.error:.2f}" if ours else "peer",
        )

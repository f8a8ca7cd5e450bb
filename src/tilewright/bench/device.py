"""Timing on a GPU: CUDA events, cold L2, calls that take turns; and a ladder climbed there.

The L2 is emptied by writing a buffer four times its size, eight times; while the GPU does that, the call after it is
already queued, so that what is timed is the GPU's work and not the way there.
"""

import importlib
import importlib.util
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from tilewright.bench.measure import RUNS, Timing
from tilewright.bench.results import Row
from tilewright.errors import InternalError, ResourceError
from tilewright.hardware import gpus, no_gpu
from tilewright.ops.core.gpu.tensors import moved
from tilewright.ops.core.ladder import using

SEED = 20261121
SLOW_S = 0.25  # a rung that takes longer is timed on PROBE rows alone
PROBE = 256  # rows that tell whether it does, unless `bench.sizes` says otherwise (PROBE_ROWS)


def torch_on_a_gpu():
    """torch. Raises ResourceError if there is none here, or no GPU for it."""
    if why := no_gpu():
        raise ResourceError(f"there is no GPU to measure: {why}", hint="leave --device cuda out to measure the CPU")
    try:
        import torch
    except ImportError as error:
        raise ResourceError(
            "measuring on a GPU needs PyTorch", hint="install it: pip install 'tilewright[gpu]'"
        ) from error
    if not torch.cuda.is_available():
        raise ResourceError(
            "there is no GPU to measure: PyTorch sees none", hint="leave --device cuda out to measure the CPU"
        )
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
    whole, probe = _Subject(ladder, spec, case), _Subject(ladder, spec, spec.with_rows(case, _probed(spec, case)))
    candidates = {rung.name: _candidate(torch, rung, whole, probe) for rung in rungs}
    beside = _beside(ladder.op)
    others = beside.peers(case, whole.tensors) if beside else {}
    timings = interleave({name: c.call for name, c in candidates.items() if c.case is case} | others)
    timings |= interleave({name: c.call for name, c in candidates.items() if c.case is not case}, runs=3)
    yield from _rows(ladder, spec, case, timings, candidates, others)


def _probed(spec, case) -> int:
    """Rows that tell whether all of a case would take too long."""
    return min(getattr(spec, "PROBE_ROWS", PROBE), spec.rows(case))


def _beside(op: str):
    """The operation's module in `bench.gpu`; None if it has none."""
    name = f"tilewright.bench.gpu.{op}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


class _Subject:
    """A case with its inputs, the same for all rungs, and its truth, computed when it is first asked for.

    place: "cuda", or "cpu" where kernels are run as Python.
    """

    def __init__(self, ladder, spec, case, place: str = "cuda"):
        self.ladder, self.spec, self.case, self.place = ladder, spec, case, place
        self.inputs = spec.make(case, np.random.default_rng(SEED))

    @cached_property
    def tensors(self) -> dict:
        """The inputs on the GPU."""
        return moved(self.inputs, self.place)

    @cached_property
    def truth(self):
        """(exact, allowed) as in `bench.gpu`."""
        if beside := _beside(self.ladder.op):
            return beside.truth(self.case, self.tensors)
        reference = self.spec.reference(self.case, self.inputs)

        def allowed(c: float):
            bound = self.spec.bound(self.case, self.inputs, reference, c)
            return moved({"bound": np.broadcast_to(bound, reference.shape)}, self.place)["bound"]

        return moved({"exact": reference}, self.place)["exact"], allowed

    def bound(self, rung: str) -> Callable:
        """The rung's call on this case."""
        with using(**{self.ladder.op: rung}):
            call = self.spec.bind_tensors(self.case, self.inputs, self.place)

        def forced(**options):
            with using(**{self.ladder.op: rung}):
                return call(**options)

        return forced


@dataclass
class Candidate:
    """A rung ready to be timed on a case."""

    call: Callable[[], object]
    case: Any
    error: float  # worst error over its bound
    one_off_s: float


def _candidate(torch, rung, whole: _Subject, probe: _Subject) -> Candidate:
    """Prepare a rung for the case, or for the probe where all of it would take SLOW_S, and check it there.

    It is timed writing what the peer writes, 16 bits in a 16-bit class, and checked in that form, too.
    """
    spec, name = whole.spec, rung.name
    scale = spec.rows(whole.case) / max(spec.rows(probe.case), 1)
    subject = probe
    if interleave({name: probe.bound(name)}, runs=1)[name].median_s * scale < SLOW_S:
        subject = whole
    start = time.perf_counter()
    call = subject.bound(name)
    torch.cuda.synchronize()
    one_off_s = time.perf_counter() - start
    (exact, allowed), result, dtype = subject.truth, call(), subject.case.dtype
    bound = allowed(rung.c)
    error = _error(torch, result, exact, bound)
    out = torch.empty_like(result, dtype=getattr(torch, dtype) if dtype.endswith("16") else result.dtype)
    if out.dtype != result.dtype:  # another form of the kernel, whose result is rounded once more
        rounding = torch.finfo(out.dtype)
        bound = bound + (exact.abs() + bound) * rounding.eps + rounding.smallest_normal * rounding.eps
        error = max(error, _error(torch, call(out=out), exact, bound))
    if not error <= 1:
        op, case = whole.ladder.op, subject.case.name
        raise InternalError(f"{op}.{name} is wrong on {case}: its error is {error:.3g} times the bound; not timed")
    return Candidate(partial(call, out=out), subject.case, error, one_off_s)


def _error(torch, result, exact, bound) -> float:
    """The largest error of a result's first rows, as a part of the bound; infinite for a NaN that is none there."""
    checked = result[: len(exact)]
    off = torch.where(checked == exact, 0.0, (checked - exact).abs() / bound)
    return float(off.nan_to_num(nan=torch.inf).max())


def _rows(ladder, spec, case, timings: dict, candidates: dict, others: dict) -> Iterator[Row]:
    """One Row a rung and one a peer; threads is 0: on a GPU they are no setting."""
    from tilewright.bench.device_roofs import roofs

    roof, rates = roofs(), {}
    peer = min(others, key=lambda name: timings[name].median_s) if others else None
    for name in [*candidates, *others]:
        timing, ours = timings[name], candidates.get(name)
        timed = ours.case if ours else case
        flops, nbytes = spec.cost(timed)
        rates[name], after = spec.rows(timed) / timing.median_s, ladder.rungs[name].after if ours else None
        yield Row(
            op=ladder.op,
            rung=name,
            size=case.name,
            dtype=case.dtype,
            threads=0,
            rows=spec.rows(timed),
            label=case.label,
            median_s=timing.median_s,
            low_s=timing.low_s,
            high_s=timing.high_s,
            runs=len(timing.rounds),
            gflops=flops / timing.median_s / 1e9 if flops else None,
            gbytes_s=nbytes / timing.median_s / 1e9,
            roof_share=roof.seconds(flops, nbytes, case.dtype) / timing.median_s,
            roof_gflops=roof.gflops[case.dtype],
            roof_gbytes_s=roof.copy_gbytes_s,
            versus_below=rates[name] / rates[after] if after in rates else None,
            peer=peer if ours else None,
            peer_ratio=timing.times_faster_than(timings[peer]) if peer and ours and timed is case else None,
            one_off_s=ours.one_off_s if ours else None,
            check=f"passed {ours.error:.2f}" if ours else "peer",
        )

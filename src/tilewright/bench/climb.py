"""Measure a ladder on a CPU or a GPU: check every rung on a case, then time the rungs and the peers in alternation."""

import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import SEED, Call, Clock, Timing, interleave
from tilewright.bench.peers import cpu_peers, peers_of
from tilewright.bench.results import PEER, SLOW, Row
from tilewright.bench.roofs import measured_roofs
from tilewright.errors import InputError, InternalError, UsageError, suggestion
from tilewright.ops.core.gpu.tensors import moved
from tilewright.ops.core.ladder import Ladder, Rung, operations, trying, using
from tilewright.ops.core.launch import threads
from tilewright.ops.core.memory import empty

SLOW_S = 0.25  # a rung that takes longer is timed on fewer rows: the lowest is a thousand times slower than the highest
PATIENCE = 8  # a CPU call that takes longer than this times SLOW_S is timed on fewer rows


def parts(op: str):
    """(ladder, module of `bench.sizes`) of an operation. Raises UsageError for an unknown name."""
    if op not in operations():
        near = suggestion(op, operations())
        raise UsageError(f"there is no operation {op!r}{near}; the operations are {', '.join(operations())}")
    return importlib.import_module(f"tilewright.ops.{op}").ladder, importlib.import_module(
        f"tilewright.bench.sizes.{op}"
    )


class Subject:
    """A case on a CPU: its inputs, which are the same for all rungs, and its exact result. spec: its module of
    `bench.sizes`."""

    probe_rows = 16  # rows that are timed to find out whether a rung is slow

    def __init__(self, ladder: Ladder, spec: Any, case: Any):
        self.ladder, self.spec, self.case = ladder, spec, case
        self.inputs = spec.make(case, np.random.default_rng(SEED))
        self._resized: dict[int, Subject] = {}

    def resized(self, rows: int) -> "Subject":
        """The subject with this many rows, or the subject itself if it has no more."""
        if rows >= self.spec.rows(self.case):
            return self
        if rows not in self._resized:
            self._resized[rows] = type(self)(self.ladder, self.spec, self.spec.with_rows(self.case, rows))
        return self._resized[rows]

    @cached_property
    def reference(self) -> np.ndarray:
        """The exact result."""
        return self.spec.reference(self.case, self.inputs)

    def forced(self, rung: str | Rung) -> Callable[..., Any]:
        """call(out=None) of the rung, with prepared weights. rung: a name in the ladder, or a rung outside of it."""
        op = self.ladder.op
        force = partial(trying, op, rung) if isinstance(rung, Rung) else partial(using, **{op: rung})
        with force():
            call = self.bind()

        def run(**options):
            with force():
                return call(**options)

        return run

    def bind(self) -> Callable[..., Any]:
        """call(out=None) of the rung that the ladder chooses."""
        return self.spec.bind(self.case, self.inputs)

    def finish(self) -> None:
        """Wait until everything that was queued is done."""

    def peers(self) -> dict[str, Call]:
        """Name -> call of each library that computes this case."""
        return cpu_peers(self.ladder.op, self.case, self.inputs)

    def clock(self, *, settle: bool) -> Clock:
        """The clock of this device. settle: see `CpuClock`."""
        return CpuClock(settle=settle)

    def few_rows(self, rung: str | Rung) -> int:
        """The number of rows on which the rung is timed. These are all rows, unless they take longer than PATIENCE *
        SLOW_S: then as many as take about SLOW_S."""
        probe = self.resized(self.probe_rows)
        call = probe.forced(rung)
        call()
        start = time.perf_counter()
        call()
        every = self.spec.rows(self.case)
        seconds_a_row = (time.perf_counter() - start) / max(self.spec.rows(probe.case), 1)
        return every if seconds_a_row * every <= SLOW_S * PATIENCE else max(1, int(SLOW_S / seconds_a_row))

    def checked(self, rung: Rung, call: Callable[..., Any]) -> tuple[float, Call]:
        """(the largest error divided by its bound, the call that is timed). The call writes into memory that is
        allocated."""
        result, (exact, bound) = call(), self.allowed(rung)
        return float(np.max(_errors(result, exact, bound), initial=0.0)), partial(
            call, out=empty(result.shape, result.dtype)
        )

    def allowed(self, rung: Rung) -> tuple[np.ndarray, np.ndarray]:
        """(the exact result, the allowed error of each element), in float64 on the CPU."""
        return self.reference, self.spec.bound(self.case, self.inputs, self.reference, rung.c)

    def check(self, rung: Rung, result: Any) -> None:
        """Raises InputError, which names the worst element, if the rung's result is beyond its bound."""
        exact, bound = self.allowed(rung)
        found = np.asarray(result if isinstance(result, np.ndarray) else result.double().cpu())[: len(exact)]
        errors = np.nan_to_num(_errors(found, exact, bound), nan=np.inf)
        if not errors.size or errors.max() <= 1:
            return
        worst = np.unravel_index(int(errors.argmax()), errors.shape)
        at, most = ", ".join(map(str, worst)), np.broadcast_to(bound, exact.shape)[worst]
        raise InputError(
            f"{rung.name} is wrong on {self.ladder.op} {self.case.name}: its worst element, out[{at}], is "
            f"{found[worst]:.7g}; it must be within {most:.2g} of {exact[worst]:.7g}. It is not timed"
        )


class GpuSubject(Subject):
    """A case on a GPU. device: "cuda", or "cpu" if a test runs the kernels as Python code."""

    device = "cuda"

    def __init__(self, ladder: Ladder, spec: Any, case: Any):
        super().__init__(ladder, spec, case)
        self.probe_rows = getattr(spec, "PROBE_ROWS", 256)
        self.beside = peers_of(ladder.op)

    @cached_property
    def tensors(self) -> dict:
        """The inputs, on the GPU."""
        return moved(self.inputs, self.device)

    @cached_property
    def truth(self) -> tuple[Any, Callable[[float], Any]]:
        """(exact, allowed) as in `bench.peers`."""
        if self.beside:
            return self.beside.truth(self.case, self.tensors)

        def allowed(c: float):
            bound = self.spec.bound(self.case, self.inputs, self.reference, c)
            return moved({"bound": np.broadcast_to(bound, self.reference.shape)}, self.device)["bound"]

        return moved({"exact": self.reference}, self.device)["exact"], allowed

    def bind(self) -> Callable[..., Any]:
        """See `Subject`."""
        return self.spec.bind_tensors(self.case, self.inputs, self.device)

    def finish(self) -> None:
        """See `Subject`."""
        import torch

        torch.cuda.synchronize()

    def peers(self) -> dict[str, Call]:
        """See `Subject`."""
        return self.beside.gpu(self.case, self.tensors) if self.beside else {}

    def clock(self, *, settle: bool) -> Clock:
        """See `Subject`. Raises ResourceError without a GPU."""
        from tilewright.bench.clocks.cuda import CudaClock

        return CudaClock()

    def few_rows(self, rung: str | Rung) -> int:
        """All rows, or only the probe's rows if all would take SLOW_S or longer."""
        probe = self.resized(self.probe_rows)
        (timing,) = interleave({"rung": probe.forced(rung)}, self.clock(settle=False), runs=1).values()
        every, few = self.spec.rows(self.case), self.spec.rows(probe.case)
        return every if timing.median_s * every / max(few, 1) < SLOW_S else few

    def allowed(self, rung: Rung) -> tuple[np.ndarray, np.ndarray]:
        """See `Subject`. Covers only the first rows."""
        exact, allowed = self.truth
        return exact.double().cpu().numpy(), allowed(rung.c).double().cpu().numpy()

    def checked(self, rung: Rung, call: Callable[..., Any]) -> tuple[float, Call]:
        """See `Subject`. The call writes the same dtype as the peer: 16-bit numbers in a 16-bit class. This form is
        checked too."""
        import torch

        (exact, allowed), result, dtype = self.truth, call(), self.case.dtype
        bound = allowed(rung.c)
        error = _error(result, exact, bound)
        out = torch.empty_like(result, dtype=getattr(torch, dtype) if dtype.endswith("16") else result.dtype)
        if out.dtype != result.dtype:  # another variant of the kernel, which rounds its result once more
            rounding = torch.finfo(out.dtype)
            bound = bound + (exact.abs() + bound) * rounding.eps + rounding.smallest_normal * rounding.eps
            error = max(error, _error(call(out=out), exact, bound))
        return error, partial(call, out=out)


def _errors(result: np.ndarray, exact: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """The error of each element, divided by its bound."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(result == exact, 0.0, np.abs(result - exact) / bound)


def _error(result, exact, bound) -> float:
    """The largest error of a result's first rows, divided by its bound. It is infinite for a NaN that is not in
    `exact`."""
    import torch

    checked = result[: len(exact)]
    off = torch.where(checked == exact, 0.0, (checked - exact).abs() / bound)
    return float(off.nan_to_num(nan=torch.inf).max())


@dataclass
class Candidate:
    """A rung that passed its check. error: the largest error, divided by its bound."""

    rung: Rung
    case: Any
    call: Call
    one_off_s: float
    error: float

    @property
    def check(self) -> str:
        """The row's `check`: the largest error divided by its bound, and a mark if this machine chooses another rung
        for speed."""
        return f"passed {self.error:.2f}{SLOW if self.rung.unfit(self.case.problem) else ''}"


def climb(op: str, case, *, count: int, only: str | None = None, mine: Rung | None = None) -> Iterator[Row]:
    """Rows for the rungs that accept `case`, on `count` threads, or on a GPU if the case's device is a GPU.

    only: the name of one rung. mine: a rung outside of the ladder. If it accepts the case, it is timed with the
    ladder's rungs; if its check fails, InputError is raised. A rung of the ladder with a wrong result is never timed:
    it raises InternalError. Raises Refused if `only` refuses the case, ResourceError if the case needs a GPU and there
    is none.
    """
    ladder, spec = parts(op)
    if only:
        with using(**{op: only}):
            ladder.choose(case.problem)
    on_gpu = getattr(case, "device", "cpu") != "cpu"
    if on_gpu:
        from tilewright.bench.clocks.cuda import torch_on_a_gpu

        torch_on_a_gpu()
    rungs = [rung for rung in ladder.rungs.values() if not rung.refuses(case.problem) and only in (None, rung.name)]
    rungs += [mine] if mine and not mine.refuses(case.problem) else []
    with threads(None if on_gpu else count):
        subject = (GpuSubject if on_gpu else Subject)(ladder, spec, case)
        candidates = {rung.name: candidate(rung, subject) for rung in rungs}
        others = subject.peers()
        calls = {name: c.call for name, c in candidates.items() if c.case is case} | others
        timings = interleave(calls, subject.clock(settle=bool(others) and count > 1))
        slow = {name: c.call for name, c in candidates.items() if c.case is not case}
        timings |= interleave(slow, subject.clock(settle=False), runs=3)
    yield from _rows(subject, 0 if on_gpu else count, candidates, timings, others)


def candidate(rung: Rung, whole: Subject) -> Candidate:
    """Prepare a rung for the case, or for fewer of its rows if the rung is slow, and check it there."""
    return checked_candidate(rung, whole.resized(whole.few_rows(rung)))


def checked_candidate(rung: Rung, subject: Subject) -> Candidate:
    """Prepare a rung for the subject's case and check it. Raises InternalError if its result is wrong."""
    start = time.perf_counter()
    call = subject.forced(rung)
    subject.finish()
    one_off_s = time.perf_counter() - start
    if rung.name not in subject.ladder.rungs:
        subject.check(rung, call())
    error, timed = subject.checked(rung, call)
    if not error <= 1:
        raise InternalError(
            f"{subject.ladder.op}.{rung.name} is wrong on {subject.case.name}: its error is {error:.3g} times the "
            "bound; not timed"
        )
    return Candidate(rung, subject.case, timed, one_off_s, error)


def _rows(
    subject: Subject, count: int, candidates: dict[str, Candidate], timings: dict[str, Timing], others: dict[str, Call]
) -> Iterator[Row]:
    """One row per rung and one per peer."""
    roof, rates, spec, case = measured_roofs(count), {}, subject.spec, subject.case
    peer = min(others, key=lambda name: timings[name].median_s) if others else None
    for name in [*candidates, *others]:
        timing, ours = timings[name], candidates.get(name)
        timed = ours.case if ours else case
        flops, nbytes = spec.cost(timed)
        rates[name], after = spec.rows(timed) / timing.median_s, ours.rung.after if ours else None
        yield Row(
            op=subject.ladder.op, rung=name, size=case.name, dtype=case.dtype, threads=count, rows=spec.rows(timed),
            label=case.label, **timing.columns(), **roof.columns(flops, nbytes, case.dtype, timing.median_s),
            versus_below=rates[name] / rates[after] if after in rates else None,
            peer=peer if ours else None,
            peer_ratio=timing.times_faster_than(timings[peer]) if peer and ours and timed is case else None,
            one_off_s=ours.one_off_s if ours else None, check=ours.check if ours else PEER,
        )  # fmt: skip


def replaced(case, **sizes):
    """The case with the given sizes replaced; None keeps a size. Raises UsageError for a size that the case does not
    have."""
    wanted = {name: value for name, value in sizes.items() if value is not None}
    known = {field.name for field in dataclasses.fields(case)}
    if unknown := wanted.keys() - known:
        raise UsageError(f"{type(case).__module__.split('.')[-2]} has no size {', '.join(sorted(unknown))}")
    return dataclasses.replace(case, **wanted)

"""Sweep an operation: check each rung at each value of one or two parameters, then time all in alternation."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tilewright.bench.climb import Call, Candidate, GpuSubject, Subject, checked_candidate, parts
from tilewright.bench.measure import RUNS, Timing, interleave
from tilewright.bench.results import Row
from tilewright.errors import Refused
from tilewright.ops.core.ladder import Rung
from tilewright.ops.core.launch import thread_count, threads

PREFIX = "sweep_"  # the name of a sweep's result file: this prefix, then the operation
THREADS = "threads"  # the parameter that is not an option of a rung
REFUSED, OTHER_BITS = "refused: ", "; other bits"  # the beginning and the end of a row's `check`
SLOW_RUNS = 3  # rounds for a rung that is timed on fewer rows than the case has


@dataclass(frozen=True)
class Point:
    """A rung at one value of each parameter. refused: the reason why it cannot run; then it has no candidate."""

    rung: Rung
    setting: Mapping[str, Any]
    candidate: Candidate | None = None
    digest: bytes = b""
    refused: str = ""

    @property
    def name(self) -> str:
        """The values of the parameters, as in "threads=3, tile=8"."""
        return ", ".join(f"{name}={value}" for name, value in self.setting.items())

    def call(self) -> Any:
        """Run the rung once, with this point's threads."""
        assert self.candidate  # a refused point is never timed
        with _threads(self.setting):
            return self.candidate.call()


def sweep(op: str, case: Any, rungs: list[Rung], axes: Mapping[str, tuple]) -> list[Row]:
    """A Row per rung and combination of values, in this order. A refused one has `runs` 0 and the reason as its check.

    axes: parameter -> its values; the parameter is "threads", or an option in `swept` of every rung. All calls of a
    case are timed in alternation. Raises ResourceError if the case needs a GPU and there is none, InternalError if a
    result is wrong.
    """
    ladder, spec = parts(op)
    on_gpu = getattr(case, "device", "cpu") != "cpu"
    if on_gpu:
        from tilewright.bench.clocks.cuda import torch_on_a_gpu

        torch_on_a_gpu()
    subject = (GpuSubject if on_gpu else Subject)(ladder, spec, case)
    points = [point for rung in rungs for point in _points(rung, subject, axes)]
    return list(_rows(subject, points, _timed(subject, points)))


def _threads(setting: Mapping[str, Any]):
    return threads(setting[THREADS]) if THREADS in setting else nullcontext()


def _points(rung: Rung, whole: Subject, axes: Mapping[str, tuple]) -> Iterator[Point]:
    """Every point of a rung, checked. All points are timed on as many rows as the first one that can run."""
    subject: Subject | None = None
    for values in itertools.product(*axes.values()):
        setting = dict(zip(axes, values, strict=True))
        varied = rung.varied(**{name: value for name, value in setting.items() if name != THREADS})
        try:
            with _threads(setting):
                subject = subject or whole.resized(whole.few_rows(varied))
                candidate = checked_candidate(varied, subject)
                yield Point(varied, setting, candidate, _digest(candidate.call()))
        except Refused as error:
            yield Point(varied, setting, refused=" ".join(str(error).split()))


def _digest(result: Any) -> bytes:
    """The SHA-256 of an array's or a tensor's bits."""
    if hasattr(result, "cpu"):
        import torch

        result = result.contiguous().view(torch.uint8).cpu().numpy()
    return hashlib.sha256(result.tobytes()).digest()


def _timed(subject: Subject, points: list[Point]) -> dict[int, Timing]:
    """Timings by the index of their point. Refused points have none."""
    calls: dict[bool, dict[str, Call]] = {True: {}, False: {}}
    for i, point in enumerate(points):
        if point.candidate:
            calls[point.candidate.case is subject.case][str(i)] = point.call
    timings = interleave(calls[True], subject.clock(settle=False), runs=RUNS)
    timings |= interleave(calls[False], subject.clock(settle=False), runs=SLOW_RUNS)
    return {int(name): timing for name, timing in timings.items()}


def _rows(subject: Subject, points: list[Point], timings: dict[int, Timing]) -> Iterator[Row]:
    case, spec = subject.case, subject.spec
    on_gpu = isinstance(subject, GpuSubject)
    first: dict[str, bytes] = {}  # rung -> the digest of its first result
    for i, point in enumerate(points):
        count = 0 if on_gpu else point.setting.get(THREADS) or thread_count()
        same = {"op": PREFIX + subject.ladder.op, "rung": point.rung.name, "size": case.name, "dtype": case.dtype,
                "threads": count, "label": case.label, "point": point.name}  # fmt: skip
        if point.candidate is None:
            yield Row(**same, rows=0, median_s=0.0, low_s=0.0, high_s=0.0, runs=0, check=REFUSED + point.refused)
            continue
        flops, nbytes = spec.cost(point.candidate.case)
        seconds = timings[i].median_s
        timed, whole = spec.rows(point.candidate.case), spec.rows(case)
        fewer = f"; {timed} of {whole} rows" if timed < whole else ""
        changed = point.digest != first.setdefault(point.rung.name, point.digest)
        yield Row(
            **same, rows=timed, **timings[i].columns(),
            gflops=flops / seconds / 1e9 or None, gbytes_s=nbytes / seconds / 1e9 or None,
            one_off_s=point.candidate.one_off_s, check=point.candidate.check + fewer + OTHER_BITS * changed,
        )  # fmt: skip

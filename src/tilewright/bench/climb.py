"""Climb a ladder: check every rung on a case, then time those that passed, interleaved with the peers."""

import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.bench import device
from tilewright.bench.measure import interleave
from tilewright.bench.peers import peers
from tilewright.bench.results import Row
from tilewright.bench.roofs import roofs
from tilewright.bench.tables import SLOW
from tilewright.errors import InternalError, UsageError
from tilewright.ops.core.ladder import Rung, operations, using
from tilewright.ops.core.launch import threads
from tilewright.ops.core.memory import empty

# a rung that takes longer is timed on fewer rows: the lowest rungs are a thousand times slower than the highest
SLOW_S = 0.25
SEED = 20261121


@dataclass
class Candidate:
    """A rung ready to be timed on a case."""

    rung: Rung
    case: Any
    call: Callable[[], object]
    one_off_s: float
    error: float  # worst error over its bound


def parts(op: str):
    """(ladder, module of `bench.sizes`) of an operation. Raises UsageError for an unknown name."""
    if op not in operations():
        raise UsageError(f"there is no operation {op!r}; there are {', '.join(operations())}")
    return importlib.import_module(f"tilewright.ops.{op}").ladder, importlib.import_module(
        f"tilewright.bench.sizes.{op}"
    )


def climb(op: str, case, *, count: int, only: str | None = None) -> Iterator[Row]:
    """Rows for the rungs that accept `case`, on `count` threads, or on a GPU if that is the case's device.

    only: one rung's name.

    Raises Refused if `only` refuses the case, InternalError if a rung's check fails: what is wrong is never timed.
    """
    ladder, spec = parts(op)
    if getattr(case, "device", "cpu") != "cpu":
        yield from device.climb(ladder, spec, case, only=only)
        return
    if only:
        with using(**{op: only}):
            ladder.choose(case.problem)
    with threads(count):
        candidates = [
            _candidate(ladder, spec, rung, case)
            for rung in ladder.rungs.values()
            if not rung.refuses(case.problem) and only in (None, rung.name)
        ]
        fast = {c.rung.name: c for c in candidates if c.case is case}
        others = peers(op, case, spec.make(case, np.random.default_rng(SEED)))
        spinning = others if count > 1 else ()
        timings = interleave({name: c.call for name, c in fast.items()} | others, spinning=spinning)
        slow = {c.rung.name: c for c in candidates if c.case is not case}
        timings |= interleave({name: c.call for name, c in slow.items()}, runs=3)
    yield from _rows(op, spec, case, count, candidates, timings, others)


def _candidate(ladder, spec, rung, case) -> Candidate:
    """Prepare a rung for the case, or for as many of its rows as take SLOW_S, and check it there."""
    inputs = spec.make(case, np.random.default_rng(SEED))
    probe = spec.with_rows(case, min(16, spec.rows(case)))
    few = spec.make(probe, np.random.default_rng(SEED))
    with using(**{ladder.op: rung.name}):
        call = spec.bind(probe, few)
        call()
        start = time.perf_counter()
        call()
        seconds_a_row = (time.perf_counter() - start) / max(spec.rows(probe), 1)
        if seconds_a_row * spec.rows(case) > SLOW_S * 8:
            case = spec.with_rows(case, max(1, min(int(SLOW_S / seconds_a_row), spec.rows(case))))
            inputs = spec.make(case, np.random.default_rng(SEED))
        start = time.perf_counter()
        call = spec.bind(case, inputs)
        one_off_s = time.perf_counter() - start
        result = call()
        out = empty(result.shape, result.dtype)
        reference = spec.reference(case, inputs)
        bound = spec.bound(case, inputs, reference, rung.c)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = float(np.max(np.where(result == reference, 0.0, np.abs(result - reference) / bound), initial=0.0))
    if not error <= 1:
        raise InternalError(
            f"{ladder.op}.{rung.name} is wrong on {case.name}: its error is {error:.3g} times the bound; not timed"
        )
    return Candidate(rung, case, _forced(ladder.op, rung.name, lambda: call(out=out)), one_off_s, error)


def _forced(op: str, rung: str, call: Callable) -> Callable[[], object]:
    def run():
        with using(**{op: rung}):
            return call()

    return run


def _rows(op, spec, case, count, candidates, timings, others) -> Iterator[Row]:
    """One Row a rung and one a peer."""
    roof, rates = roofs(count), {}
    common = {"op": op, "dtype": case.dtype, "threads": count, "label": case.label, "size": case.name}
    peer = min(others, key=lambda name: timings[name].median_s) if others else None
    entries = [(c.rung.name, c.rung.after, c.case, c.one_off_s, _check(c)) for c in candidates]
    for name, after, timed, one_off_s, check in entries + [(name, None, case, None, "peer") for name in others]:
        timing, (flops, nbytes) = timings[name], spec.cost(timed)
        rates[name] = spec.rows(timed) / timing.median_s
        yield Row(
            **common,
            rung=name,
            rows=spec.rows(timed),
            median_s=timing.median_s,
            low_s=timing.low_s,
            high_s=timing.high_s,
            runs=len(timing.rounds),
            gflops=flops / timing.median_s / 1e9 if flops else None,
            gbytes_s=nbytes / timing.median_s / 1e9,
            roof_share=roof.seconds(flops, nbytes, case.dtype) / timing.median_s,
            roof_gflops=roof.gflops(case.dtype),
            roof_gbytes_s=roof.copy_gbytes_s,
            versus_below=rates[name] / rates[after] if after in rates else None,
            peer=peer if name not in others else None,
            peer_ratio=timing.times_faster_than(timings[peer])
            if peer and timed is case and name not in others
            else None,
            one_off_s=one_off_s,
            check=check,
        )


def _check(candidate: Candidate) -> str:
    """How near its bound the worst error was, and whether this machine chooses other rungs for being faster."""
    return f"passed {candidate.error:.2f}{SLOW if candidate.rung.unfit(candidate.case.problem) else ''}"


def replaced(case, **sizes):
    """The case with the sizes that are not None. Raises UsageError for one that it does not have."""
    wanted = {name: value for name, value in sizes.items() if value is not None}
    known = {field.name for field in dataclasses.fields(case)}
    if unknown := wanted.keys() - known:
        raise UsageError(f"{type(case).__module__.split('.')[-2]} has no size {', '.join(sorted(unknown))}")
    return dataclasses.replace(case, **wanted)

"""Convolution of volumes, compared with scipy.ndimage, PyTorch, Halide and OpenCV, and with the limit of each case. The
limit is the longer of two measured times: the case's multiply-adds alone, or a copy of its bytes.

The cases are the sizes of `bench/sizes/conv3d.py`. On the CPU every library but PyTorch writes to memory that it has
written to before. Otherwise page faults would take longer than the convolution. PyTorch's function always allocates its
result. On a GPU the peers are CuPy and cuDNN, and the L2 cache is cold before each call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from tilewright.bench import climb
from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import RUNS, Call, Timing, interleave
from tilewright.bench.peers.conv3d import scipy_call, torch_call
from tilewright.bench.peers.halide import halide_call
from tilewright.bench.peers.opencv import opencv_call
from tilewright.bench.results import PEER, Row
from tilewright.bench.roofs.cpu import limits_beside
from tilewright.bench.sizes import conv3d as spec
from tilewright.errors import InternalError, UsageError
from tilewright.ops.conv3d import ladder
from tilewright.ops.core.launch import thread_count

SHORT_S = 0.01
PEER_BOUND = 4.0  # the constant of a peer's error bound: three passes in float32, as in our separable rung
CALLS = {"scipy": scipy_call, "torch": torch_call, "halide": halide_call, "opencv": opencv_call}
PEERS = {"cpu": tuple(CALLS), "cuda": ("cudnn", "cupy")}
Say = Callable[[str], None]


def bench(
    cases: list[spec.Case] | None = None, *, device: str = "cpu", against: tuple[str, ...] | None = None, say: Say
) -> Iterator[list[Row]]:
    """Yield the rows of each case: tilewright with the rung that it chooses, checked against float64, and each peer.

    cases: by default `spec.sizes()` or `spec.device_sizes()`. against: names of peers; by default all that fit. On the
    CPU everything runs on `thread_count()` threads, and a line names each peer that is not installed. Raises
    InternalError if a check fails, UsageError for an unknown peer, ResourceError if the GPU is missing.
    """
    peers = PEERS[device] if against is None else against
    if unknown := set(peers) - set(PEERS[device]):
        where = "the peers are" if device == "cpu" else "on a GPU the peers are"
        raise UsageError(f"no peer is called {', '.join(sorted(unknown))}; {where} {', '.join(PEERS[device])}")
    if cases is None:
        cases = spec.sizes() if device == "cpu" else spec.device_sizes()
    for case in cases:
        yield _on_cpu(case, peers, say) if device == "cpu" else _on_gpu(case, peers, say)


def _on_gpu(case: spec.Case, against: tuple[str, ...], say: Say) -> list[Row]:
    rung = ladder.choose(case.problem).name
    found = climb.climb("conv3d", case, count=0, only=rung)
    ours, *others = [row for row in found if row.check != PEER or row.rung.lower() in against]
    say(f"{case.label or case.name}: {rung}, {ours.check}")
    return [replace(ours, op="volumes", rung="tilewright")] + [
        replace(row, op="volumes", peer=row.rung, peer_ratio=row.median_s / ours.median_s) for row in others
    ]


def _on_cpu(case: spec.Case, against: tuple[str, ...], say: Say) -> list[Row]:
    subject, rung = climb.Subject(ladder, spec, case), ladder.choose(case.problem)
    error, call = subject.checked(rung, subject.bind())
    if not error <= 1:
        raise InternalError(
            f"conv3d.{rung.name} is off by {error:.3g} times its bound on {case.name}; nothing is reported"
        )
    say(f"{case.label or case.name}: {rung.name}, largest error {error:.2f} of its bound")
    calls: dict[str, Call] = {"tilewright": call, **_peers(subject, against, say)}
    limits = limits_beside(*spec.cost(case))
    clock = CpuClock(settle="torch" in calls and thread_count() > 1)
    everything = calls | {name: limit for name, (limit, _) in limits.items()}
    timings = interleave(everything, clock, runs=_rounds(calls["tilewright"]))
    least = [timings.pop(name).scaled(share) for name, (_, share) in limits.items()]
    return _rows(case, timings, least, f"passed {error:.2f}")


def _rounds(call: Call) -> int:
    """The number of rounds. A short call gets more of them, because other programs disturb some of its rounds and not
    others."""
    start = time.perf_counter()
    call()
    return RUNS if time.perf_counter() - start > SHORT_S else 3 * RUNS


def _peers(subject: climb.Subject, against: tuple[str, ...], say: Say) -> dict[str, Call]:
    """Name -> call of each peer that is installed and computes this case. Raises InternalError for a wrong result."""
    found: dict[str, Call] = {}
    bound = spec.bound(subject.case, subject.inputs, subject.reference, PEER_BOUND)
    for name in against:
        try:
            call = CALLS[name](subject.case, subject.inputs)
        except ModuleNotFoundError as missing:
            say(f"no {name}: {missing.name} is not installed")
            continue
        if call is None:
            continue
        error = np.max(np.abs(np.asarray(call()).reshape(bound.shape) - subject.reference) / bound, initial=0.0)
        if not error <= 1:
            raise InternalError(f"{name} is off by {error:.3g} times its bound on {subject.case.name}")
        found[name] = call
    return found


def _rows(case: spec.Case, timings: dict[str, Timing], least: list[Timing], check: str) -> list[Row]:
    """The row of tilewright names the fastest peer. A peer's row says how many times as fast as this peer tilewright
    is.

    least: times of the case's multiply-adds alone and of a copy of its bytes, measured in alternation with the others.
    """
    count, (flops, nbytes), ours = thread_count(), spec.cost(case), timings["tilewright"]
    peers, limit = [name for name in timings if name != "tilewright"], max(least, key=lambda timing: timing.median_s)
    best = min(peers, key=lambda name: timings[name].median_s, default=None)
    rows = []
    for name, timing in timings.items():
        versus = best if name == "tilewright" else name
        rows.append(Row(
            op="volumes", rung=name, size=case.name, dtype="float32", threads=count, rows=case.D,
            **timing.columns(), gflops=flops / timing.median_s / 1e9, gbytes_s=nbytes / timing.median_s / 1e9,
            roof_share=limit.times_faster_than(timing) ** -1, roof_gflops=flops / least[0].median_s / 1e9,
            roof_gbytes_s=nbytes / least[1].median_s / 1e9, peer=versus,
            peer_ratio=ours.times_faster_than(timings[versus]) if versus else None,
            check=check if name == "tilewright" else PEER, label=case.label,
        ))  # fmt: skip
    return rows


def lines(rows: list[Row]) -> list[str]:
    """Lines for a terminal: one per case, then one per peer."""
    text = []
    for row in rows:
        share = 100 * (row.roof_share or 0)
        rates = f"{row.gflops:>8.1f} GFLOP/s{row.gbytes_s:>8.2f} GB/s{share:>6.1f} % of its limit"
        ratio = f"   tilewright is {row.peer_ratio:.2f} x as fast" if row.check == PEER and row.peer_ratio else ""
        name = (
            f"  {row.rung}"
            if row.check == PEER
            else f"{row.label or row.size}, {f'{row.threads} threads' if row.threads else 'GPU'}"
        )
        text.append(f"{name:<34}{row.median_s * 1e3:>10.2f} ms{rates}{ratio}")
    return text

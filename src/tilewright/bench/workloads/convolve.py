"""Volumes side by side with scipy.ndimage and PyTorch, and with the larger of a case's two limits: its multiply-adds
alone, and its bytes copied.

Cases are the sizes of `bench/sizes/conv3d.py`. On the CPU all write to memory that they have written to before: new
memory costs every library the same, and more than the convolution. On a GPU the peers are CuPy and cuDNN, and the L2
cache is empty before each call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from tilewright.bench.measure import RUNS, Timing, interleave
from tilewright.bench.results import Row
from tilewright.bench.roofs import limits_beside
from tilewright.bench.sizes import conv3d as spec
from tilewright.errors import InternalError, UsageError
from tilewright.ops.conv3d import ladder
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import thread_count
from tilewright.ops.core.memory import zeros

SEED = 20261121
SHORT_S = 0.01
Call = Callable[[], object]


def scipy_call(case: spec.Case, inputs: dict) -> Call | None:
    """scipy.ndimage's way: `correlate`, or `correlate1d` along each axis as `gaussian_filter` does. None for channels.

    Raises ModuleNotFoundError where scipy is not installed.
    """
    from scipy import ndimage

    x, weights, out = inputs["x"], inputs["weights"], zeros(inputs["x"].shape)
    border = {"mode": case.mode, "cval": case.cval}
    if case.C or case.mode == "valid" or case.origin:
        return None
    if not isinstance(weights, tuple):
        return lambda: ndimage.correlate(x, weights, output=out, **border)

    def passes():
        for axis, factor in enumerate(weights):
            ndimage.correlate1d(out if axis else x, factor, axis, output=out, **border)
        return out

    return passes


def torch_call(case: spec.Case, inputs: dict) -> Call | None:
    """PyTorch's conv3d, three of them where the kernel is given as factors. None for a border that it does not have.

    Raises ModuleNotFoundError where PyTorch is not installed.
    """
    import torch

    torch.set_num_threads(thread_count())
    if case.mode != "constant" or case.cval or case.origin or not all(K % 2 for K in (case.KD, case.KH, case.KW)):
        return None
    x, weights = inputs["x"], inputs["weights"]
    x = torch.from_numpy(x if case.C else x[None])[None]
    shapes = ((-1, 1, 1), (1, -1, 1), (1, 1, -1))
    whole = [w.reshape(s) for w, s in zip(weights, shapes, strict=True)] if isinstance(weights, tuple) else [weights]
    kernels = [torch.from_numpy(np.ascontiguousarray(w if case.C else w[None, None])) for w in whole]

    def run():
        y = x
        for kernel in kernels:
            y = torch.nn.functional.conv3d(y, kernel, padding=[K // 2 for K in kernel.shape[2:]])
        return y

    return run


PEERS = {"scipy": scipy_call, "torch": torch_call}


def bench_on_gpu(
    cases: list[spec.Case] | None = None,
    *,
    against: tuple[str, ...] | None = None,
    say: Callable[[str], None],
    done: Callable[[list[Row]], object] = list,
) -> list[Row]:
    """`bench` on one GPU: the rung that runs when nobody forces one, its first planes checked against float64.

    cases: `spec.device_sizes()` unless given. against: names of peers, all that fit unless given. done: is called with
    the rows of each case. Raises ResourceError without a GPU, UsageError for an unknown peer, InternalError if a check
    fails.
    """
    from tilewright.bench import device

    if unknown := set(against or ()) - {"cudnn", "cupy"}:
        raise UsageError(f"no peer is called {', '.join(sorted(unknown))}; on a GPU there are cudnn, cupy")
    rows = []
    for case in spec.device_sizes() if cases is None else cases:
        rung = ladder.choose(case.problem).name
        found = [
            row
            for row in device.climb(ladder, spec, case, only=rung)
            if row.check != "peer" or against is None or row.rung.lower() in against
        ]
        ours = next(row for row in found if row.check != "peer")
        say(f"{case.label or case.name}: {rung}, {ours.check}")
        for row in found:
            mine = row is ours
            peer, ratio = (row.peer, row.peer_ratio) if mine else (row.rung, row.median_s / ours.median_s)
            name = "tilewright" if mine else row.rung
            rows.append(replace(row, op="volumes", rung=name, peer=peer, peer_ratio=ratio))
        done(rows[-len(found) :])
    return rows


def bench(
    cases: list[spec.Case] | None = None, *, against: tuple[str, ...] = ("scipy", "torch"), say: Callable[[str], None]
) -> list[Row]:
    """A row a case and contender, on the threads there are; ours checked against float64 before it is timed.

    cases: `spec.sizes()` unless given. Where a peer is not installed, a line says so. Raises InternalError if a check
    fails, UsageError for an unknown peer.
    """
    if unknown := set(against) - PEERS.keys():
        raise UsageError(f"no peer is called {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    rows = []
    for case in spec.sizes() if cases is None else cases:
        inputs = spec.make(case, np.random.default_rng(SEED))
        call, out, rung, error = _checked(case, inputs)
        say(f"{case.label or case.name}: {rung}, largest error {error:.2f} of its bound")
        calls: dict[str, Call] = {"tilewright": partial(call, out=out), **_peers(case, inputs, against, say)}
        limits = limits_beside(*spec.cost(case))
        spinning = calls.keys() & {"torch"} if thread_count() > 1 else ()
        everything = calls | {name: limit for name, (limit, _) in limits.items()}
        timings = interleave(everything, runs=_rounds(calls["tilewright"]), spinning=spinning)
        least = [timings.pop(name).scaled(share) for name, (_, share) in limits.items()]
        rows += _rows(case, timings, least, f"passed {error:.2f}")
    return rows


def _rounds(call: Call) -> int:
    """A short call is hit by what else a machine does in some rounds and not in others: it gets more of them."""
    start = time.perf_counter()
    call()
    return RUNS if time.perf_counter() - start > SHORT_S else 3 * RUNS


def _checked(case: spec.Case, inputs: dict) -> tuple[Callable, np.ndarray, str, float]:
    """(call, out, rung, error over bound) of the rung that runs when nobody forces one."""
    rung = ladder.choose(case.problem)
    with using(conv3d=rung.name):
        call = spec.bind(case, inputs)
        reference = spec.reference(case, inputs)
        out = zeros(reference.shape)
        call(out=out)
    error = float(np.max(np.abs(out - reference) / spec.bound(case, inputs, reference, rung.c), initial=0.0))
    if not error <= 1:
        raise InternalError(
            f"conv3d.{rung.name} is off by {error:.3g} times its bound on {case.name}; nothing is reported"
        )
    return call, out, rung.name, error


def _peers(case: spec.Case, inputs: dict, against: tuple[str, ...], say: Callable[[str], None]) -> dict[str, Call]:
    found: dict[str, Call] = {}
    for name in against:
        try:
            call = PEERS[name](case, inputs)
        except ModuleNotFoundError as missing:
            say(f"no {name}: {missing.name} is not installed")
            continue
        if call is not None:
            found[name] = call
    return found


def _rows(case: spec.Case, timings: dict[str, Timing], least: list[Timing], check: str) -> list[Row]:
    """Ours names the faster peer; a peer's row says how many times faster than it we are.

    least: the case's multiply-adds alone and its bytes copied, which took turns with the rest.
    """
    count, (flops, nbytes), ours = thread_count(), spec.cost(case), timings["tilewright"]
    peers, limit = [name for name in timings if name != "tilewright"], max(least, key=lambda timing: timing.median_s)
    best = min(peers, key=lambda name: timings[name].median_s, default=None)
    rows = []
    for name, timing in timings.items():
        versus = best if name == "tilewright" else name
        rows.append(Row(
            op="volumes", rung=name, size=case.name, dtype="float32", threads=count, rows=case.D,
            median_s=timing.median_s, low_s=timing.low_s, high_s=timing.high_s, runs=len(timing.rounds),
            gflops=flops / timing.median_s / 1e9, gbytes_s=nbytes / timing.median_s / 1e9,
            roof_share=limit.times_faster_than(timing) ** -1, roof_gflops=flops / least[0].median_s / 1e9,
            roof_gbytes_s=nbytes / least[1].median_s / 1e9, peer=versus,
            peer_ratio=ours.times_faster_than(timings[versus]) if versus else None,
            check=check if name == "tilewright" else "peer", label=case.label,
        ))  # fmt: skip
    return rows


def lines(rows: list[Row]) -> list[str]:
    """For a terminal: a line a case, then one a peer of it."""
    text = []
    for row in rows:
        share = 100 * (row.roof_share or 0)
        rates = f"{row.gflops:>8.1f} GFLOP/s{row.gbytes_s:>8.2f} GB/s{share:>6.1f} % of its limit"
        ratio = f"   {row.peer_ratio:.1f} x slower" if row.check == "peer" and row.peer_ratio else ""
        name = (
            f"  {row.rung}"
            if row.check == "peer"
            else f"{row.label or row.size}, {f'{row.threads} threads' if row.threads else 'GPU'}"
        )
        text.append(f"{name:<34}{row.median_s * 1e3:>10.2f} ms{rates}{ratio}")
    return text

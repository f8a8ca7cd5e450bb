"""Where the time of a volume job goes: reading the file, copies to and from a GPU, the convolution, writing the result.

The volume is that of the job's ladder. Its file lies in the page cache, so reading and writing are copies in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.job_ladders.convolve import TAPS, Planes
from tilewright.bench.job_ladders.steps import Step
from tilewright.bench.measure import interleave
from tilewright.bench.results import Row
from tilewright.bench.roofs import measured_roofs
from tilewright.bench.sizes.conv3d import Case
from tilewright.errors import InternalError
from tilewright.ops.conv3d import ladder
from tilewright.ops.conv3d.problem import cost
from tilewright.ops.core.launch import thread_count

PLANES = {"cpu": 128, "cuda": 512}  # on a CPU the course's volume 3
ROUNDS = 5
Part = tuple[Callable[[], object], float, float]  # a call, its operations and bytes


def profile(device: str, planes: int | None = None, rounds: int = ROUNDS) -> list[Row]:
    """A row per part of the job, in their order, each timed alone; in a row `label` is the share of the sum.

    Raises InternalError if the result is wrong, ResourceError if the GPU is missing.
    """
    if device != "cpu":
        from tilewright.bench.clocks.cuda import torch_on_a_gpu

        torch_on_a_gpu()
    work = Planes(planes or PLANES[device], device)
    program = work.program(Step("", ""))
    result = program(work.total)
    share = work.error(result)
    if not share <= 1:
        raise InternalError(f"convolve: the result is off by {share:.3g} times the bound; nothing is reported")
    with tempfile.TemporaryDirectory(prefix="tilewright-bench-") as folder:
        parts = _parts(work, program, result, Path(folder))
        calls = {name: call for name, (call, *_) in parts.items()}
        timings = interleave(calls, CpuClock(cold=False), runs=rounds, warm_up=1)
    threads = thread_count() if device == "cpu" else 0
    roof, total = measured_roofs(threads), sum(timing.median_s for timing in timings.values())
    rows = []
    for name, timing in timings.items():
        _, flops, nbytes = parts[name]
        rates: dict[str, Any] = roof.columns(flops, nbytes, "float32", timing.median_s)
        if not flops:  # a copy of the CPU, or one over the link: the GPU's copies are no roof
            rates["roof_share"] = None
        rows.append(Row(
            op="volumes_profile", rung=name, size=_size(work), dtype="float32", threads=threads, rows=work.total,
            label=f"{timing.median_s / total:.1%}", check=f"passed {share:.2f}", **timing.columns(), **rates,
        ))  # fmt: skip
    return rows


def _size(work: Planes) -> str:
    return f"{'x'.join(map(str, work.volume.shape))}, kernel {TAPS}x{TAPS}x{TAPS}"


def _on_host(x: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.cpu().numpy()


def _parts(work: Planes, program: Callable[[int], Any], result: Any, folder: Path) -> dict[str, Part]:
    """Name -> part, in the order of the job."""
    D, H, W = work.volume.shape
    case = Case(D, H, W, TAPS, TAPS, TAPS, device=work.device)
    name = f"conv3d, {ladder.choose(case.problem).name}"
    convolve: Part = (lambda: program(work.total), *cost(case))
    on_host, found = _on_host(work.volume), _on_host(result)
    source, target = folder / "in", folder / "out"
    source.write_bytes(on_host.tobytes())
    buffer, nbytes = np.empty_like(on_host), float(on_host.nbytes)

    def read() -> None:
        with source.open("rb", buffering=0) as file:
            view = buffer.data.cast("B")
            while len(view):
                view = view[file.readinto(view) :]

    def write() -> None:
        with target.open("wb", buffering=0) as file:
            view = found.data.cast("B")
            while len(view):
                view = view[file.write(view) :]

    if work.device == "cpu":
        return {"read the file": (read, 0.0, nbytes), name: convolve, "write the file": (write, 0.0, nbytes)}
    import torch

    pinned_in, pinned_out = torch.from_numpy(on_host).pin_memory(), torch.empty(on_host.shape, pin_memory=True)

    def copy(to: torch.Tensor, what: torch.Tensor) -> None:
        to.copy_(what, non_blocking=True)
        torch.cuda.synchronize()

    return {
        "read the file": (read, 0.0, nbytes),
        "copy to the GPU": (lambda: copy(work.volume, pinned_in), 0.0, nbytes),
        name: convolve,
        "copy from the GPU": (lambda: copy(pinned_out, result), 0.0, nbytes),
        "write the file": (write, 0.0, nbytes),
    }

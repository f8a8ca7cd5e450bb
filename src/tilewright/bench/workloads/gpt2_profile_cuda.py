"""Where the time of a generation goes on a GPU: its kernels by operation, and what is left while no kernel runs."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import NoReturn

from tilewright.bench.device_roofs import roofs
from tilewright.bench.results import Row

HEAD, REST, IDLE = "LM head and argmax", "choice of tokens, copies", "no kernel runs"
KERNELS = {  # those that models.gpt2 starts -> the operation
    "product": "matmul", "split": "limbs of activations", "best_product": HEAD, "best_tile": HEAD,
    "registers": "layernorm", "chunks": "layernorm", "gather": "embedding", "append": "append",
    "attend": "attention, prompts", "append_and_attend": "attention, prompts",
    "step": "attention, one position", "step_plain": "attention, one position",
    "step_heads": "attention, one position", "step_blocks": "attention, one position",
}  # fmt: skip


def operations(kernels: list[tuple[str, float]]) -> dict[str, tuple[int, float]]:
    """Operation -> (kernels, seconds) of kernels (name, seconds) in the order in which they ran.

    The product whose columns are searched bears the name of the others; what follows it tells.
    """
    found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for (name, seconds), (after, _) in zip(kernels, [*kernels[1:], ("", 0.0)], strict=True):
        searched = name == "product" and after == "best_tile"
        part = HEAD if searched else KERNELS.get(name, REST)
        found[part] = found[part][0] + 1, found[part][1] + seconds
    return dict(found)


def profile(run: Callable[[], object], *, size: str, dtype: str) -> list[Row]:
    """One run after another that warms up: a row an operation, the slowest first, and IDLE.

    In a row `rows` are kernels, `label` is the share of the run's time; the profiler's own time is not in it.
    """
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    run()
    start = time.perf_counter()
    run()
    total = time.perf_counter() - start
    with profiled(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    events = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    parts = operations([(event.name, event.time_range.elapsed_us() / 1e6) for event in events])
    slowest_first = sorted(parts.items(), key=lambda part: -part[1][1])
    left = total - sum(seconds for _, seconds in parts.values())
    roof = roofs()
    return [
        Row(
            op="gpt2_profile", rung=name, size=size, dtype=dtype, threads=0, rows=count, median_s=seconds,
            low_s=seconds, high_s=seconds, runs=1, roof_gflops=roof.gflops[dtype], roof_gbytes_s=roof.copy_gbytes_s,
            label=f"{seconds / total:.1%}",
        )
        for name, (count, seconds) in [*slowest_first, (IDLE, (1, max(left, 0.0)))]
    ]  # fmt: skip


def leave() -> NoReturn:
    """End a process that has profiled, all it had to say written, and free nothing: exit code 0.

    PyTorch's profiler may free buffers that the driver's still writes to. A process that had done its work then ended
    with "double free or corruption" (PyTorch 2.11, CUDA 13.0).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

"""Where the time of a generation goes: one row per operation of the model.

On a CPU a row has the calls, the rate and the share of the machine's limit. For this, the functions that
`models.decoder` calls are replaced in its namespace during the measurement; the model is not changed. No launches are
replayed meanwhile (`ops.core.recording`), so with few prompts the run takes longer than without a profile. The rest of
the time is Python: making batches, choosing tokens, returning results. On a GPU the rows are the kernels by operation,
with the rates that follow from counted calls (`gpt2_counts`), and the time in which no kernel runs.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isfunction
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np

from tilewright.bench.results import Row
from tilewright.bench.roofs import measured_roofs
from tilewright.bench.roofs.limits import Roofs
from tilewright.bench.workloads.gpt2_counts import HEAD, MATMUL, ONE, PROMPTS, Work
from tilewright.garbage import loaded_exempt
from tilewright.generation import attention
from tilewright.models import decoder
from tilewright.ops.attention.operands import SPAN, Cache
from tilewright.ops.core.launch import thread_count
from tilewright.ops.core.recording import no_replays
from tilewright.ops.gemm.operands import Packed

REST = "rest"
ASIDE = {"prepare", "prepare_argmax", "bytes_a_sequence", "span"}  # not timed: they are called once, or do no work
Cost = Callable[..., tuple[str, float, float]]


@dataclass
class Part:
    """One operation: its calls, seconds, operations, bytes, and the shortest time that the machine's limits allow."""

    calls: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0
    least_s: float = 0.0


def _matmul(a: np.ndarray, b: Any, **options: Any) -> tuple[str, float, float]:
    """The rows are read and written once, and the whole of b is read once."""
    K, N = (b.K, b.N) if isinstance(b, Packed) else b.shape
    M = a.size // K
    beside = sum(array.nbytes for array in options.values() if isinstance(array, np.ndarray) and array.ndim == 2)
    out = 0 if options.get("out") is not None else 4 * M * N
    return f"matmul {K}x{N}", 2.0 * M * N * K, a.nbytes + getattr(b, "nbytes", 0) + beside + out


def _matmul_argmax(a: np.ndarray, b: Any, **options: Any) -> tuple[str, float, float]:
    """The operations of the product. A rung that screens in 8 bits computes most of them in another unit."""
    name, flops, _ = _matmul(a, b.weights)
    return name, flops, a.nbytes + (b.weights.nbytes if b.screen is None else b.nbytes)


def _attend(q: np.ndarray, cache: Cache, spans: Any, **options: Any) -> tuple[str, float, float]:
    """Each query meets its visible keys: 2 D multiply-adds per head and key. A sequence's keys and values are read
    once."""
    spans = np.asarray(getattr(spans, "array", spans))
    first, count = spans[:, SPAN.first].astype(float), spans[:, SPAN.length].astype(float)
    seen = (count * first + count * (count + 1) / 2).sum()
    width = cache.heads * cache.D
    kept = (first + count).sum() * width * 2 * _word(cache)
    name = PROMPTS if (count > 1).any() else ONE
    out = options.get("out")
    return name, 4.0 * width * seen, kept + (q.itemsize + (4 if out is None else out.itemsize)) * width * count.sum()


def _append(k: np.ndarray, v: np.ndarray, cache: Cache, spans: Any) -> tuple[str, float, float]:
    """The rows are read, and stored in the cache's type."""
    return "append", 0.0, k.size * 2 * (k.itemsize + _word(cache))


def _word(cache: Cache) -> int:
    """Bytes per element of the cache."""
    return 4 if cache.dtype == "float32" else 2


def _rows_twice(name: str) -> Cost:
    def cost(x: np.ndarray, *rest: Any, **options: Any) -> tuple[str, float, float]:
        columns = x.shape[-1] if name == "layernorm" else rest[0].shape[-1]
        return name, 0.0, 8.0 * columns * (x.size // columns if name == "layernorm" else x.size)

    return cost


CALLERS = (decoder, attention)  # modules whose operations are timed
COSTS: dict[str, Cost] = {
    "matmul": _matmul, "matmul_argmax": _matmul_argmax, "attend": _attend, "append": _append,
    "layernorm": _rows_twice("layernorm"), "embedding": _rows_twice("embedding"),
}  # fmt: skip


TOKENS, IDLE = "choice of tokens, copies", "no kernel runs"
KERNELS = {  # kernels that models.decoder launches -> their operation
    "product": MATMUL, "product_of_few": MATMUL, "add_parts": MATMUL, "split": "limbs of activations",
    "best_product": HEAD, "best_tile": HEAD,
    "registers": "layernorm", "chunks": "layernorm", "gather": "embedding", "append": "append",
    "attend": PROMPTS, "append_and_attend": PROMPTS,
    "step": ONE, "step_plain": ONE, "step_heads": ONE, "step_blocks": ONE,
}  # fmt: skip


@contextmanager
def profiled(roof: Roofs, dtype: str, vocabulary: int) -> Iterator[dict[str, Part]]:
    """Operation -> Part, for all operations that GPT-2 calls on a CPU inside the block.

    An operation without an entry in COSTS gets only its time. vocabulary: the product with this width is the LM head.
    """
    parts: dict[str, Part] = {}

    def timed(name: str, function: Callable) -> Callable:
        cost = COSTS.get(name, lambda *args, **options: (name, 0.0, 0.0))

        def call(*args: Any, **options: Any) -> Any:
            label, flops, nbytes = cost(*args, **options)
            start = time.perf_counter()
            result = function(*args, **options)
            spent = time.perf_counter() - start
            if label.endswith(f"x{vocabulary}"):
                label = label.replace("matmul", "LM head")
            part = parts.setdefault(label, Part())
            part.calls, part.seconds = part.calls + 1, part.seconds + spent
            part.flops, part.nbytes = part.flops + flops, part.nbytes + nbytes
            part.least_s += roof.seconds(flops, nbytes, dtype)
            return result

        return call

    originals = [(module, *item) for module in CALLERS for item in vars(module).items() if _is_operation(*item)]
    for module, name, function in originals:
        setattr(module, name, timed(name, function))
    try:
        yield parts
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


def _is_operation(name: str, value: Any) -> bool:
    return isfunction(value) and value.__module__.startswith("tilewright.ops.") and name not in ASIDE


def cpu_profile(run: Callable[[], object], *, size: str, dtype: str, vocabulary: int) -> list[Row]:
    """Profile one run, after another that warms up: one row per operation, the slowest first, and REST.

    In a row `rows` is the number of calls, and `label` is the share of the run's time.
    """
    roof = measured_roofs(thread_count())
    run()
    with profiled(roof, dtype, vocabulary) as parts, no_replays():
        start = time.perf_counter()
        run()
        total = time.perf_counter() - start
    parts[REST] = Part(1, total - sum(part.seconds for part in parts.values()))
    slowest_first = sorted(parts.items(), key=lambda item: (item[0] == REST, -item[1].seconds))
    return [_row(name, part, total, roof, size, dtype) for name, part in slowest_first]


def _row(name: str, part: Part, total: float, roof: Roofs, size: str, dtype: str) -> Row:
    s = part.seconds
    return Row(
        op="gpt2_profile", rung=name, size=size, dtype=dtype, threads=thread_count(), rows=part.calls,
        median_s=s, low_s=s, high_s=s, runs=1, gflops=part.flops / s / 1e9 if part.flops else None,
        gbytes_s=part.nbytes / s / 1e9 if part.nbytes else None, roof_share=part.least_s / s if part.least_s else None,
        roof_gflops=roof.gflops[dtype], roof_gbytes_s=roof.copy_gbytes_s, label=f"{s / total:.1%}",
    )  # fmt: skip


def operations_of(kernels: list[tuple[str, float]]) -> dict[str, tuple[int, float]]:
    """Operation -> (number of kernels, seconds). kernels: (name, seconds) in the order in which they ran.

    The product whose columns are searched for the largest has the same name as other products. The kernel that runs
    after it tells them apart.
    """
    found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for (name, seconds), (after, _) in zip(kernels, [*kernels[1:], ("", 0.0)], strict=True):
        searched = name == "product" and after == "best_tile"
        part = HEAD if searched else KERNELS.get(name, TOKENS)
        found[part] = found[part][0] + 1, found[part][1] + seconds
    return dict(found)


def own_times(kernels: list[tuple[str, float, float]]) -> list[tuple[str, float]]:
    """(name, seconds) of kernels (name, start, end), in microseconds, by their start. A kernel that starts early waits
    for the kernel ahead (`ops.core.gpu.early`). The waiting time is counted for the kernel ahead."""
    found, done = [], -math.inf
    for name, start, end in sorted(kernels, key=itemgetter(1, 2)):
        found.append((name, max(end - max(start, done), 0.0) / 1e6))
        done = max(done, end)
    return found


def gpu_profile(run: Callable[[], object], *, size: str, dtype: str, work: Mapping[str, Work]) -> list[Row]:
    """Profile one run, after another that warms up: one row per operation, the slowest first, and IDLE.

    work: of the same run, by operation; others have no rate. In a row `rows` is the number of kernels, and `label` is
    the share of the run's time, which excludes the profiler's time.
    """
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with loaded_exempt():
        run()
        start = time.perf_counter()
        run()
        total = time.perf_counter() - start
        with profiled(activities=[ProfilerActivity.CUDA]) as seen:
            run()
            torch.cuda.synchronize()
    events = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
    parts = operations_of(own_times([(event.name, event.time_range.start, event.time_range.end) for event in events]))
    slowest_first = sorted(parts.items(), key=lambda part: -part[1][1])
    left = total - sum(seconds for _, seconds in parts.values())
    shares = [*slowest_first, (IDLE, (1, max(left, 0.0)))]
    return [_gpu_row(name, count, seconds, seconds / total, work.get(name, Work()), size, dtype)
            for name, (count, seconds) in shares]  # fmt: skip


def _gpu_row(name: str, count: int, seconds: float, share: float, work: Work, size: str, dtype: str) -> Row:
    roof = measured_roofs(0)
    known = work.flops or work.nbytes
    rates: dict[str, Any] = roof.columns(*work, dtype, seconds) if known and seconds else {
        "roof_gflops": roof.gflops[dtype], "roof_gbytes_s": roof.copy_gbytes_s,
    }  # fmt: skip
    return Row(
        op="gpt2_profile", rung=name, size=size, dtype=dtype, threads=0, rows=count, median_s=seconds, low_s=seconds,
        high_s=seconds, runs=1, label=f"{share:.1%}", **rates,
    )  # fmt: skip


def leave() -> NoReturn:
    """End a process that has used the profiler, after its output is written, without freeing anything. The exit code is
    0.

    PyTorch's profiler may free buffers to which the driver's profiler still writes. A process that had finished its
    work then ended with "double free or corruption" (PyTorch 2.11, CUDA 13.0).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

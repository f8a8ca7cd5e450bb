"""A CPU's limits, measured: copy bandwidth and the rates of its multiply-add instructions."""

import functools
import math
import time
from collections.abc import Callable

import numpy as np
from numba import types

from tilewright import simd
from tilewright.bench.roofs.limits import Roofs
from tilewright.hardware import cpu
from tilewright.ops.core.launch import launch, thread_count, threads
from tilewright.ops.core.memory import zeros
from tilewright.simd import amx

STEPS = 20_000  # rank-1 updates of a register block per task: much longer than it takes to fetch a task
COPY_BYTES = 256 << 20  # much larger than any cache
PIECE = 256 << 10  # bytes per task

SIGNATURE = types.void(simd.OUTPUT, simd.TASKS, simd.OUTPUT)


@functools.cache
def _block_kernel(name: str, lanes: int):
    """Multiply-adds on registers, which read only one cache line of memory."""
    product = {"float32": simd.block_rank1, "dot_pairs": simd.block_dot_pair}[name]
    rows = 12 if lanes == 16 else 6

    @simd.kernel(SIGNATURE, name=f"roofs.{name}.{lanes}")
    def multiply_add(words, tasks, scratch):
        while simd.draw(tasks) >= 0:
            block = simd.block_zeros(rows, 2, lanes)
            # with a constant address the compiler would load these operands before the loop, into too few registers
            for step in range(STEPS):
                at = step & 7
                block = product(block, words, at * rows, words, at * 2 * lanes)
            simd.block_store(block, scratch, 0, 2 * lanes, 2 * lanes)

    return multiply_add, 2 * rows * 2 * lanes * (1 if name == "float32" else 2)


@functools.cache
def _amx_kernel():
    tiles = amx.Hardware
    configure, release, load, zero, dot = tiles.configure, tiles.release, tiles.load, tiles.zero, tiles.dot

    @simd.kernel(SIGNATURE, name="roofs.amx")
    def multiply_add(words, tasks, scratch):
        """Four products alternate between four tiles."""
        state = scratch[: 9 * 256].reshape(9, 16, 16)
        configure(state, 16)
        zero(state, 0)
        zero(state, 1)
        zero(state, 2)
        zero(state, 3)
        load(state, 4, words, 0, 16)
        load(state, 5, words, 0, 16)
        while simd.draw(tasks) >= 0:
            for _ in range(STEPS):
                dot(state, 0, 4, 5)
                dot(state, 1, 4, 5)
                dot(state, 2, 4, 5)
                dot(state, 3, 4, 5)
        release(state)

    return multiply_add, 4 * 2 * 16 * 16 * 32


@simd.kernel(types.void(simd.INPUT, simd.OUTPUT, simd.TASKS, simd.OUTPUT), name="roofs.copy")
def _copy(source, target, tasks, scratch):
    """A task copies PIECE bytes."""
    task = simd.draw(tasks)
    while task >= 0:
        for i in range(task * PIECE // 4, min((task + 1) * PIECE // 4, source.size), 16):
            simd.store(target, i, simd.load(source, i, 16))
        task = simd.draw(tasks)


def _best(call, seconds: float = 0.3) -> float:
    """The time of the fastest run within `seconds`: a limit is what the machine can reach, not its average."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        call()
        best = min(best, time.perf_counter() - start)
    return best


def _repeat(kernel, tasks: int) -> None:
    """Run a kernel of multiply-adds, with STEPS steps per task."""
    launch(kernel, np.ones(64 * 16, np.float32), tasks=tasks, words=9 * 256)


def _rate(kernel, flops_a_step: int) -> float:
    tasks = 16 * thread_count()
    return tasks * STEPS * flops_a_step / _best(lambda: _repeat(kernel, tasks)) / 1e9


def _copy_all(source: np.ndarray, target: np.ndarray) -> None:
    """Copy in pieces, on all threads."""
    tasks = math.ceil(source.nbytes / PIECE)
    launch(_copy, source, target, tasks=tasks, words=1)


def _copy_rate() -> float:
    source, target = np.ones(COPY_BYTES // 4, np.float32), np.zeros(COPY_BYTES // 4, np.float32)
    return 2 * COPY_BYTES / _best(lambda: _copy_all(source, target)) / 1e9


def limits_beside(flops: float, nbytes: float) -> dict[str, tuple[Callable[[], object], float]]:
    """Name -> (call, work of the kernel divided by work of the call), for a float32 kernel with this many operations
    and bytes. The calls are meant to run in alternation with the kernel.

    One call only does multiply-adds in registers, the other only copies. A shared machine may be half as fast a moment
    later, so limits that were measured at another time would not be the kernel's limits.
    """
    kernel, step = _block_kernel("float32", cpu().lanes)
    count = thread_count()  # all threads have the same number of tasks
    tasks = count * max(1, math.ceil(flops / (STEPS * step * count)))
    pieces = count * max(1, math.ceil(nbytes / (2 * PIECE * count)))
    source, target = zeros(pieces * PIECE // 4), zeros(pieces * PIECE // 4)
    return {
        "multiply-adds": (lambda: _repeat(kernel, tasks), flops / (tasks * STEPS * step)),
        "copy": (lambda: _copy_all(source, target), nbytes / (2 * source.nbytes)),
    }


@functools.cache
def roofs(count: int) -> Roofs:
    """Measure the limits of `count` threads: about a second, once per process."""
    lanes = cpu().lanes
    with threads(count):
        copy, float32 = _copy_rate(), _rate(*_block_kernel("float32", lanes))
        bfloat16 = _rate(*_block_kernel("dot_pairs", lanes)) if cpu().has("avx512bf16") else None
        tiles = _rate(*_amx_kernel()) if amx.available() else None
    fastest = max(float32, bfloat16 or 0, tiles or 0)
    gflops = {"float32": float32, "float64": float32 / 2, "bfloat16": fastest}  # a vector holds half as many float64
    return Roofs(count, copy, gflops, {"float32": float32, "bfloat16": bfloat16, "amx": tiles})

"""Halide, a language for image pipelines: convolutions of volumes, compiled for this CPU with constant weights.

The border is added to the volume beforehand, outside the measured time. Several schedules are compiled and timed, and
the fastest is kept: which one it is depends on the kernel and on the CPU.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tilewright.bench.clocks.cpu import CpuClock
from tilewright.bench.measure import Call, interleave
from tilewright.ops.conv3d.arguments import window_for
from tilewright.ops.conv3d.operands import index_map
from tilewright.ops.core.launch import thread_count
from tilewright.ops.core.memory import zeros

TRIALS = 3  # rounds in which the schedules of a case are timed
MOST_WRITTEN = 125  # taps that are written out: LLVM takes seconds for more
MOST_UNROLLED = 49  # taps of a plane that are unrolled


class Schedule(NamedTuple):
    """A task is TY rows of TZ planes. Outputs are computed in blocks of UZ planes x UY rows x V columns.

    V: in vectors of the CPU.
    """

    TZ: int
    TY: int
    UZ: int
    UY: int
    V: int


WRITTEN = Schedule(16, 64, 1, 1, 2), Schedule(8, 32, 1, 1, 1), Schedule(32, 32, 1, 1, 2)
SUMMED = Schedule(4, 16, 1, 4, 2), Schedule(4, 16, 1, 8, 1), Schedule(8, 32, 2, 2, 1)
SEPARABLE = Schedule(4, 32, 4, 4, 1), Schedule(8, 32, 4, 8, 1), Schedule(16, 16, 8, 4, 1), Schedule(16, 64, 16, 4, 1)
Build = Callable[[Any, Schedule], Any]


def halide_call(case, inputs: dict) -> Call | None:
    """The fastest of several pipelines that compute this case, on `thread_count()` threads. Its result is float32
    (D, H, W), in memory that is allocated. None if there are channels, or if the mode is "valid".

    Raises ModuleNotFoundError if Halide is missing.
    """
    import halide  # noqa: F401 - raises the error before anything else is done

    if case.C or case.mode == "valid":
        return None
    calls = {str(number): call for number, call in enumerate(_candidates(case, inputs))}
    _limit_threads(thread_count())
    timings = interleave(calls, CpuClock(), runs=TRIALS)
    return calls[min(timings, key=lambda name: timings[name].low_s)]


def _candidates(case, inputs: dict) -> Iterator[Call]:
    """A call for every schedule."""
    weights = inputs["weights"]
    if isinstance(weights, tuple):
        every = [(functools.partial(_separable, weights), schedule) for schedule in SEPARABLE]
    else:
        every = [(functools.partial(_summed, weights), schedule) for schedule in SUMMED]
        if weights.size <= MOST_WRITTEN:
            every += [(functools.partial(_written, weights), schedule) for schedule in WRITTEN]
    wide = _surrounded(case, inputs["x"])
    for build, schedule in every:
        yield _compiled(case, wide, build, schedule)


def _surrounded(case, x: np.ndarray) -> np.ndarray:
    """The volume with the border that the kernel reads."""
    sizes = (case.KD, case.KH, case.KW)
    window = window_for(x.shape, sizes, case.mode, case.cval, case.origin)
    axes = zip(x.shape, sizes, window.first, strict=True)
    z, y, i = (index_map(n, K, window.mode, -first) for n, K, first in axes)
    around = (z < 0)[:, None, None] | (y < 0)[:, None] | (i < 0)
    return np.where(around, window.cval, x[np.ix_(z, y, i)])


def _compiled(case, wide: np.ndarray, build: Build, schedule: Schedule) -> Call:
    """The call of a pipeline. Result and volume are as large as whole tiles; the rest of them is zero."""
    import halide

    lanes = halide.get_host_target().natural_vector_size(halide.Float(32))
    schedule = schedule._replace(V=schedule.V * lanes)
    sizes = case.D, case.H, case.W
    whole = [-(-n // tile) * tile for n, tile in zip(sizes, (schedule.TZ, schedule.TY, schedule.V), strict=True)]
    read = [n + K - 1 for n, K in zip(whole, (case.KD, case.KH, case.KW), strict=True)]
    volume = zeros(tuple(read))
    volume[tuple(map(slice, wide.shape))] = wide
    out = zeros(tuple(whole))
    source, target = halide.Buffer(volume), halide.Buffer(out)
    result = build(source, schedule)
    for at, extent in zip(result.args(), reversed(whole), strict=True):
        result.bound(at, 0, extent)
    pipeline = halide.Pipeline(result)
    pipeline.compile_jit()
    shown = out[: case.D, : case.H, : case.W]

    def call(_held=(volume, source, out)):  # a Buffer does not keep its array alive
        pipeline.realize(target)
        return shown

    return call


def _tiled(result, schedule: Schedule):
    """Cut a function into tasks, and these into blocks of outputs. Returns the innermost loop over blocks."""
    import halide

    x, y, z = result.args()
    names = "column", "lane", "strip", "row", "line", "slab", "plane", "layer", "task"
    column, lane, strip, row, line, slab, plane, layer, task = map(halide.Var, names)
    result.split(z, slab, plane, schedule.TZ).split(plane, plane, layer, schedule.UZ)
    result.split(y, strip, row, schedule.TY).split(row, row, line, schedule.UY).split(x, column, lane, schedule.V)
    result.reorder(lane, line, layer, column, row, plane, strip, slab).fuse(strip, slab, task).parallel(task)
    result.vectorize(lane).unroll(line).unroll(layer)
    return column


def _written(weights: np.ndarray, source, schedule: Schedule):
    """The sum of products, with each weight written out."""
    import halide

    x, y, z = map(halide.Var, "xyz")
    result = halide.Func("written")
    result[x, y, z] = _sum(
        source[x + t, y + b, z + a] * float(weights[a, b, t]) for a, b, t in np.ndindex(weights.shape)
    )
    _tiled(result, schedule)
    return result


def _summed(weights: np.ndarray, source, schedule: Schedule):
    """Sums in registers: each tap is added to all outputs of a block before the next one."""
    import halide

    x, y, z = map(halide.Var, "xyz")
    sums, result = halide.Func("sums"), halide.Func("summed")
    taps = halide.RDom([(0, n) for n in reversed(weights.shape)])
    factors = halide.Buffer(np.ascontiguousarray(weights)).copy()
    sums[x, y, z] = halide.f32(0)
    sums[x, y, z] += source[x + taps.x, y + taps.y, z + taps.z] * factors[taps.x, taps.y, taps.z]
    result[x, y, z] = sums[x, y, z]
    column = _tiled(result, schedule)
    sums.compute_at(result, column).vectorize(x).unroll(y).unroll(z)
    added = sums.update()
    added.reorder(x, y, z, taps.y, taps.x, taps.z).vectorize(x).unroll(y).unroll(z).unroll(taps.y)
    if weights[0].size <= MOST_UNROLLED:
        added.unroll(taps.x)
    return result


def _separable(factors: tuple, source, schedule: Schedule):
    """Three passes, along z, y and x, over a tile that stays in the caches."""
    import halide

    x, y, z = map(halide.Var, "xyz")
    along_z, along_y, result = map(halide.Func, ("along_z", "along_y", "along_x"))
    wz, wy, wx = (list(enumerate(map(float, factor))) for factor in factors)
    along_z[x, y, z] = _sum(source[x, y, z + t] * w for t, w in wz)
    along_y[x, y, z] = _sum(along_z[x, y + t, z] * w for t, w in wy)
    result[x, y, z] = _sum(along_y[x + t, y, z] * w for t, w in wx)
    names = "strip", "row", "line", "slab", "plane", "task", "block", "layer"
    strip, row, line, slab, plane, task, block, layer = map(halide.Var, names)
    result.split(z, slab, plane, schedule.TZ).split(y, strip, row, schedule.TY).split(row, row, line, schedule.UY)
    result.reorder(x, line, row, plane, slab, strip).fuse(slab, strip, task).parallel(task)
    result.vectorize(x, schedule.V).unroll(line)
    along_y.compute_at(result, row).reorder(y, x, z).vectorize(x, schedule.V, halide.TailStrategy.ShiftInwards).unroll(
        y
    )
    along_z.compute_at(result, task).vectorize(x, schedule.V, halide.TailStrategy.ShiftInwards)
    along_z.split(z, block, layer, schedule.UZ).reorder(layer, x, y, block).unroll(layer)
    return result


def _sum(terms):
    """The terms' sum, from left to right."""
    return functools.reduce(lambda a, b: a + b, terms)


def _limit_threads(count: int) -> None:
    """Set the number of threads of all compiled pipelines.

    Halide reads HL_NUM_THREADS only once, and its Python module has no function for this. So the function of its C++
    library is called by its linker name.
    """
    from halide import halide_

    library = ctypes.CDLL(halide_.__file__)
    library._ZN6Halide8Internal16JITSharedRuntime15set_num_threadsEi(count)

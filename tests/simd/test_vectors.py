"""Vectors lane by lane against NumPy, at every width, also wider than the machine's registers."""

import mmap
import threading

import numpy as np
import pytest
from numba import types

from tilewright import simd

WIDTHS = (4, 8, 16)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1.5, 3.0e38], np.float32)
KERNELS: dict = {}


def kernels(lanes: int) -> dict:
    """Kernels of one width, compiled once: op(a, b, c, out) on the first `lanes` elements."""
    if lanes in KERNELS:
        return KERNELS[lanes]
    signature = types.void(simd.INPUT, simd.INPUT, simd.INPUT, simd.OUTPUT)
    found = {}

    def binary(name):
        operation = getattr(simd, name)

        @simd.kernel(signature, name=f"test.{name}.{lanes}")
        def kernel(a, b, c, out):
            simd.store(out, 0, operation(simd.load(a, 0, lanes), simd.load(b, 0, lanes)))

        found[name] = kernel

    for name in ("add", "subtract", "multiply", "divide", "maximum"):
        binary(name)

    @simd.kernel(signature, name=f"test.others.{lanes}")
    def others(a, b, c, out):
        x, y, z = simd.load(a, 0, lanes), simd.load(b, 0, lanes), simd.load(c, 0, lanes)
        simd.store(out, 0, simd.fma(x, y, z))
        simd.store(out, lanes, simd.select_greater(x, y, z, x))
        simd.store(out, 2 * lanes, simd.splat(a[1], lanes))
        simd.store(out, 3 * lanes, simd.broadcast(b, 2, lanes))
        simd.store(out, 4 * lanes, simd.zeros(lanes))
        out[5 * lanes] = simd.reduce_add(z)
        out[5 * lanes + 1] = simd.reduce_max(z)
        out[5 * lanes + 2] = simd.fetch(c, lanes - 1)
        simd.prefetch(a, 1 << 40)  # far outside: a prefetch never faults

    found["others"] = others

    @simd.kernel(types.void(simd.INPUT, simd.OUTPUT, types.int64, types.int64), name=f"test.parts.{lanes}")
    def parts(a, out, at, count):
        simd.store_first(out, at, simd.load_first(a, at, count, lanes), count)

    @simd.kernel(types.void(simd.INPUT, simd.OUTPUT, types.int64, types.int64), name=f"test.loaded.{lanes}")
    def loaded(a, out, at, count):
        simd.store(out, 0, simd.load_first(a, at, count, lanes))

    found |= {"parts": parts, "loaded": loaded}
    KERNELS[lanes] = found
    return found


def run(kernel, lanes, a, b=None, c=None) -> np.ndarray:
    out = np.full(6 * lanes, -7, np.float32)
    kernel(a, a if b is None else b, a if c is None else c, out)
    return out


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum"])
def test_lanewise(lanes, name, rng):
    a, b = rng.standard_normal((2, lanes), dtype=np.float32)
    assert np.isnan(np.maximum(np.nan, 1.0))  # NumPy's maximum is IEEE 754-2019's, as ours
    for x, y in ((a, b), (np.resize(SPECIAL, lanes), b), (b, np.resize(SPECIAL, lanes))):
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(x, y)
        assert run(kernels(lanes)[name], lanes, x, y)[:lanes].tobytes() == expected.tobytes()


@pytest.mark.parametrize("lanes", WIDTHS)
def test_the_other_operations(lanes, rng):
    a, b, c = rng.standard_normal((3, lanes), dtype=np.float32)
    out = run(kernels(lanes)["others"], lanes, a, b, c).reshape(6, lanes)
    exact = a.astype(np.float64) * b + c  # a product of float32 is exact in float64, its sum with c nearly
    assert np.abs(out[0] - exact).max() <= np.abs(exact).max() * 2.0**-24
    assert (out[1] == np.where(a > b, c, a)).all()
    assert (out[2] == a[1]).all() and (out[3] == b[2]).all() and (out[4] == 0).all()
    halves = c.copy()
    while halves.size > 1:
        halves = halves[: halves.size // 2] + halves[halves.size // 2 :]
    assert list(out[5][:3]) == [halves[0], c.max(), c[-1]]


@pytest.mark.parametrize("lanes", WIDTHS)
def test_fma_rounds_once(lanes):
    """(1 + 2^-12)^2 - 1 - 2^-11 is 2^-24: a product rounded on its own loses it."""
    a = np.full(lanes, 1 + 2.0**-12, np.float32)
    c = np.full(lanes, -1 - 2.0**-11, np.float32)
    assert (run(kernels(lanes)["others"], lanes, a, a, c)[:lanes] == np.float32(2.0**-24)).all()


@pytest.mark.parametrize("lanes", WIDTHS)
def test_masked_loads_and_stores_touch_no_other_memory(lanes, rng):
    a = rng.standard_normal(4 * lanes, dtype=np.float32)
    for at in (0, 1, lanes - 1, lanes + 3):
        for count in range(-1, lanes + 2):
            whole = min(max(count, 0), lanes)
            out = np.full(4 * lanes, -7, np.float32)
            kernels(lanes)["parts"](a, out, at, count)
            expected = np.full(4 * lanes, -7, np.float32)
            expected[at : at + whole] = a[at : at + whole]
            assert out.tobytes() == expected.tobytes(), (at, count)
            kernels(lanes)["loaded"](a, out, at, count)
            assert (out[:whole] == a[at : at + whole]).all() and (out[whole:lanes] == 0).all()


@pytest.mark.parametrize("lanes", WIDTHS)
def test_a_masked_load_at_the_end_of_memory_does_not_fault(lanes):
    """The array ends where a page ends, and the next page must not be touched."""
    import ctypes

    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    memory = np.frombuffer(pages, np.float32)
    start = memory.ctypes.data
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    last = mmap.PAGESIZE // 4
    try:
        array = memory[:last]
        array[-3:] = 1, 2, 3
        out = np.zeros(lanes, np.float32)
        kernels(lanes)["loaded"](array, out, last - 3, 3)
        kernels(lanes)["parts"](array, array, last - 3, 3)
        assert list(out[:4]) == [1, 2, 3, 0][: min(4, lanes)]
    finally:
        protect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 3)


@simd.kernel(types.void(simd.COUNTERS, types.int64), name="test.fetch_add")
def count_up(counter, times):
    for _ in range(times):
        simd.fetch_add(counter, 1, 3)


def test_fetch_add_loses_nothing_between_threads():
    counter = np.zeros(3, np.int64)
    count_up(counter, 0)
    workers = [threading.Thread(target=count_up, args=(counter, 200_000)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert list(counter) == [0, 4 * 200_000 * 3, 0]

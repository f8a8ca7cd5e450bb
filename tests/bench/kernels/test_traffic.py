"""The traffic that `traffic` says against accesses that are counted while matmul's kernels run as Python."""

import sys
import threading
from collections import Counter

import numpy as np
import pytest
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from numba.cuda.simulator.kernelapi import FakeCUDAShared

from tilewright.bench.kernels.traffic import FORMULAS, Traffic
from tilewright.ops.matmul.cpu import naive as loops
from tilewright.ops.matmul.ladder import ladder
from tilewright.ops.matmul.simt import blocks, naive, narrow, shared, warps

EMPTY, EMPTY_2D = np.empty(0, np.float32), np.empty((0, 0), np.float32)


class Counting(np.ndarray):
    """Counts elements that are read and written. A read of the element that the same thread read last is none: it
    stays in a register."""

    def __array_finalize__(self, parent):
        self.counts = getattr(parent, "counts", None)
        self.last = getattr(parent, "last", None)

    def __getitem__(self, index):
        found = super().__getitem__(index)
        thread = threading.get_ident()
        if not isinstance(found, np.ndarray) and self.last.get(thread) != index:
            self.counts["reads", thread] += 1  # by thread: threads that add to one counter may lose a count
            self.last[thread] = index
        return found

    def __setitem__(self, index, value):
        thread = threading.get_ident()
        self.counts["writes", thread] += np.asarray(super().__getitem__(index)).size
        self.last.pop(thread, None)
        super().__setitem__(index, value)


def total(counts, kind):
    return sum(count for (of, _), count in counts.items() if of == kind)


def counting(array, counts):
    found = np.asarray(array, np.float32).view(Counting)
    found.counts, found.last = counts, {}
    return found


@pytest.fixture
def on_gpu(monkeypatch):
    """on_gpu(kernel, grid, threads, (M, N, K)) -> traffic per element of out, of ones, in the simulator."""

    def run(kernel, grid, threads, shape, *scalars, transposed=False):
        (M, N, K), of_device, of_shared = shape, Counter(), Counter()

        def array(self, shape, dtype, alignment=None):
            caller = sys._getframe(1)
            return self._allocations.setdefault(caller.f_lineno, counting(np.zeros(shape), of_shared))

        monkeypatch.setattr(FakeCUDAShared, "array", array)
        operands = np.ones((M, K)), np.ones((N, K) if transposed else (K, N)), np.zeros((M, N))
        a, b, out = (FakeCUDAArray(counting(x, of_device)) for x in operands)
        kernel[grid, threads](a, b, out, EMPTY, EMPTY_2D, *scalars)
        assert (out._ary.view(np.ndarray) == K).all()
        return Traffic(
            *(total(counts, kind) / (M * N) for counts in (of_device, of_shared) for kind in ("reads", "writes"))
        )

    return run


def said(name, K, N, **options):
    return FORMULAS[name](K, N, ladder.rungs[name].options | options)


@pytest.mark.parametrize("name", ["memory", "register", "coalesced"])
def test_one_thread_per_element(on_gpu, name):
    block = (4, 8) if name == "coalesced" else (8, 4)  # 8 rows, 4 columns of out
    assert on_gpu(getattr(naive, name)(None), (2, 4), block, (16, 16, 4)) == said(f"simt.{name}", 4, 16)


@pytest.mark.parametrize("name", ["shared", "unrolled"])
def test_tiles_in_shared_memory(on_gpu, name):
    found = on_gpu(getattr(shared, name)(None, 4), (2, 1), (4, 4), (8, 4, 8))
    assert found == said(f"simt.{name}", 8, 4, tile=4)


def test_strips(on_gpu):
    assert on_gpu(blocks.strip(None, 8, 4), (1, 1), (16,), (8, 8, 16)) == said("simt.strip", 16, 8, tile=8, wpt=4)


def test_columns_of_sums(on_gpu):
    assert on_gpu(blocks.registers(None, 4, 2), (1, 1), (8,), (4, 8, 8)) == said("simt.registers", 8, 8, T=4, V=2)


def test_outer_products(on_gpu):
    assert on_gpu(blocks.outer(None), (1, 1), (64,), (64, 64, 8)) == said("simt.outer", 8, 64)


@pytest.mark.parametrize("name", ["vectors", "buffered"])
def test_padded_tiles(on_gpu, name):
    found = on_gpu(getattr(warps, name)(None), (1, 1), (warps.THREADS,), (128, 128, 16), 16, 128)
    assert found == said(f"simt.{name}", 16, 128)


def test_few_columns(on_gpu):
    found = on_gpu(narrow.narrow(None, 2), 1, narrow.THREADS, (4, 2, 64), transposed=True)
    assert found[:2] == said("simt.narrow", 64, 2)[:2]  # the simulator's shuffles use shared memory


@pytest.mark.parametrize("name", ["memory", "register", "reordered", "blocked"])
def test_loops_of_the_cpu(monkeypatch, name):
    monkeypatch.setattr(loops, "finish", lambda total, *epilogue: total)
    monkeypatch.setattr(loops, "add_rows", loops.add_rows.py_func)
    monkeypatch.setattr(loops, "finish_all", loops.finish_all.py_func)
    counts, (M, N, K) = Counter(), (3, 8, 5)
    a, b, out = (counting(x, counts) for x in (np.ones((M, K)), np.ones((K, N)), np.zeros((M, N))))
    loops.LOOPS[name].function(a, b, out, EMPTY, EMPTY_2D, 0)
    assert (out.view(np.ndarray) == K).all()
    assert Traffic(total(counts, "reads") / (M * N), total(counts, "writes") / (M * N)) == pytest.approx(
        said(f"cpu.{name}", K, N)
    )


def test_every_rung_but_those_of_short_formats_has_a_formula():
    assert ladder.rungs.keys() - FORMULAS.keys() == {"cpu.widened", "cpu.dot_pairs", "cpu.amx", "cpu.limbs"}

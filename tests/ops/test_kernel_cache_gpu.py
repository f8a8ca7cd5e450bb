"""Compiled numba-cuda kernels on disk: what tells two kernels apart, and, on a GPU, that they are read again."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpu import ON_GPU
from tilewright.ops.core.gpu.kernel_cache import described

FACTOR = 3

RUN = """
import sys, torch
from tilewright.ops.core.gpu.simt import inline, kernel, launch
from numba import cuda

def made(factor, step):
    def raise_(x, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = step(x[i]) * factor
    raise_.__module__ = "tilewright.ops.test"
    return kernel(raise_)

def step(x):
    return x + 1
step.__module__ = "tilewright.ops.test"
add = inline(step)
x = torch.arange(100, dtype=torch.float32, device="cuda")
for factor in map(int, sys.argv[1:]):
    out, run = torch.empty_like(x), made(factor, add)
    launch(run, 1, 128, (x, out))
    assert torch.equal(out, (x + 1) * factor), factor
    print(sum(run._cache_hits.values()), sum(run._cache_misses.values()))
"""


def made(factor, step=None):
    def run(x):
        return step(x) * factor if step else x * factor * FACTOR

    run.__module__ = "tilewright.ops.test"
    return run


def test_a_kernel_is_known_by_what_its_factory_gave_it():
    assert described(made(2)) == described(made(2))
    assert described(made(2)) != described(made(3))
    assert described(made(2)) != described(made(2.0))
    assert described(made((1, 2))) != described(made((1, 3)))


def test_a_kernel_is_known_by_the_functions_that_it_calls():
    assert described(made(2, made(1))) == described(made(2, made(1)))
    assert described(made(2, made(1))) != described(made(2, made(5)))


def test_a_kernel_is_known_by_the_constants_of_its_module(monkeypatch):
    before = described(made(2))
    monkeypatch.setitem(globals(), "FACTOR", 4)
    assert described(made(2)) != before


def test_a_kernel_with_a_value_of_an_unknown_type_is_not_saved():
    with pytest.raises(TypeError, match="SimpleNamespace"):
        described(made(SimpleNamespace(a=1)))


@pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: TILEWRIGHT_GPU=1")
def test_a_second_process_reads_the_kernels_of_the_first_gpu(tmp_path):
    def run(*factors):
        script, environment = tmp_path / "run.py", os.environ | {"TILEWRIGHT_CACHE": str(tmp_path / "cache")}
        script.write_text(RUN)
        done = subprocess.run([sys.executable, str(script), *map(str, factors)], env=environment, capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:-1]

    assert run(2) == ["0 1"]
    assert run(2, 3) == ["1 0", "0 1"]  # another factor is another kernel
    assert run(2, 3) == ["1 0", "1 0"]
    first, _second = sorted((tmp_path / "cache").rglob("gpu-*.kernel"))
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    assert sorted(run(2, 3)) == ["0 1", "1 0"]  # the damaged file is ignored and written again
    assert run(2, 3) == ["1 0", "1 0"]

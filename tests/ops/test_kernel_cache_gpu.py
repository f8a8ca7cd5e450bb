"""Compiled numba-cuda kernels on disk: what tells two kernels apart, and, on a GPU, that they are read again."""

import os
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from numba.extending import intrinsic

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


FORMS = """
from tilewright.ops.conv1d.operands import Window
from tilewright.ops.conv1d.simt.form import form_for
from tilewright.ops.conv1d.simt.rows import rows
from tilewright.ops.core.gpu.kernel_cache import described

windows = Window(1, 0, 1), Window(1, 1, 2)  # x (1, 1, 10): the second one has a dilation of 2
kernels = [rows(form_for(10, 3, window, True, 8, 16)).py_func for window in windows]
print(described(kernels[0]) != described(kernels[1]))
"""


def times(form):
    """An intrinsic that multiplies by the first element of its factory's value."""

    def generated(typing, x):
        def generate(context, builder, signature, args):
            return builder.mul(args[0], args[0].type(form[0]))

        return x(x), generate

    generated.__module__ = "tilewright.ops.test"
    return intrinsic(generated)


@dataclass(frozen=True)
class Form:
    """Parameters of a kernel."""

    sizes: tuple[int, ...]


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


def test_a_kernel_is_known_by_what_its_intrinsics_generate():
    assert described(made(2, times([3]))) == described(made(2, times([3])))
    assert described(made(2, times([3]))) != described(made(2, times([4])))


def test_a_kernel_is_known_by_the_fields_of_a_record():
    assert described(made(Form((1, 2)))) == described(made(Form((1, 2))))
    assert described(made(Form((1, 2)))) != described(made(Form((1, 3))))


def test_a_function_that_calls_itself_is_described():
    def run(x):
        return run(x - 1) if x else x

    run.__module__ = "tilewright.ops.test"
    assert described(run)[:3] == ("function", "tilewright.ops.test", run.__qualname__)


def test_conv1d_kernels_of_two_dilations_keep_apart():
    """They differ in an intrinsic alone. The second was loaded from the first's file, and its results were wrong."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    done = subprocess.run([sys.executable, "-c", FORMS], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


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

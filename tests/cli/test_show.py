"""`tilewright show`: a kernel as its reader sees it."""

import os
import subprocess
import sys

import pytest

from tilewright.bench.kernels.compiled import Compiled
from tilewright.bench.kernels.loops import Loop
from tilewright.bench.roofs.limits import Roofs

KERNEL = Compiled("made.up", Loop(("x:", "jmp x"), 8, True, 512, 10, 8))


@pytest.fixture(autouse=True)
def roofs(monkeypatch):
    """No roof is measured."""
    monkeypatch.setattr(
        "tilewright.bench.roofs.measured_roofs", lambda count: Roofs(count, 10.0, {"float32": 100.0, "bfloat16": 1.0})
    )


def test_a_kernel_of_the_cpu_shows_its_inner_loop(tmp_path):
    """In a process of its own: the kernels of this one may come from the cache."""
    words = [sys.executable, "-m", "tilewright", "show", "matmul", "cpu.register", "--code", "--size", "N=8,K=8"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, env=os.environ)
    assert "kernel: matmul.register\n  inner loop: " in done.stdout and "1 of them for sums" in done.stdout
    assert "without the cache" in done.stderr


def test_idea_cost_and_source(run):
    code, out, _ = run("show", "matmul", "simt.strip", "--size", "M=64,N=64,K=64")
    assert code == 0 and "  idea: one thread per 8 elements of a column" in out
    assert "  stands on: simt.unrolled" in out and "  options: tile=64, wpt=8" in out
    assert "  0.001 GFLOP; 0.049 MB if each operand is read or written once, 10.7 operations per byte" in out
    assert "  per element of the result: device memory 2 read, 1 written\n  shared memory 72 read, 2 written" in out
    assert "source: strip, tilewright/ops/matmul/simt/blocks.py, lines " in out
    assert "machine code: simt.strip is not compiled here" in out


def test_the_roof_names_the_limit(run):
    _, out, _ = run("show", "softmax", "cpu.vectors", "--size", "shape=4x1000")
    assert "equal at 10.0 operations per byte" in out and "  memory is the limit: at least 0.003 ms" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("matmull", "cpu.packed"), "there is no operation 'matmull' (did you mean matmul?); the operations are "),
        (("matmul", "cpu.pack"), "matmul has no rung 'cpu.pack' (did you mean cpu.packed?); it has cpu.memory, "),
        (("matmul", "cpu.packed", "--size", "Q=3"), "names no size of matmul; it has M, N, K"),
        (("matmul", "simt.narrow", "--size", "N=500"), "matmul.simt.narrow refuses N=500, K=4096"),
        (("softmax", "cpu.vectors", "--dtype", "tf32"), "softmax has no size in --dtype tf32 for cpu.vectors"),
    ],
)
def test_refusals_name_what_there_is(run, words, message):
    code, _, errors = run("show", *words)
    assert code == 2 and message in errors


def test_a_drawing_is_svg_and_follows_the_kernel(run):
    code, out, _ = run("show", "matmul", "simt.strip", "--drawing")
    assert code == 0 and out.startswith("<svg ") and "A thread has a strip of 8 in a block of 64 x 64" in out
    code, _, errors = run("show", "matmul", "cpu.amx", "--drawing")
    assert code == 2 and "matmul.cpu.amx has no drawing; there is one for cpu.memory, " in errors


def test_the_table_of_all_kernels(run, monkeypatch):
    """Nothing is compiled: each kernel is a row without a loop."""
    monkeypatch.setattr("tilewright.bench.kernels.table.compiled_kernels", lambda op, rung, case: [KERNEL])
    code, out, errors = run("show", "softmax", "--save")
    assert ["cpu.naive", "made.up", "512", "bits", "8", "10", "8"] in map(str.split, out.splitlines())
    assert code == 0 and "kernels_softmax.csv" in out
    assert "simt.naive: this machine has no NVIDIA driver" in errors or "GPU" in errors
    code, _, errors = run("show", "softmax", "--code")
    assert code == 2 and "--code is for one kernel" in errors
    code, _, errors = run("show", "softmax", "cpu.naive", "--save")
    assert code == 2 and "leave RUNG out" in errors

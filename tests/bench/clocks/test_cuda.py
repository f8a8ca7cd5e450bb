"""Measuring on a GPU: what can be said of it without one."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from compare import compare
from tilewright.bench import results
from tilewright.bench.clocks import cuda
from tilewright.bench.report.tables import ladder_tables
from tilewright.bench.results import Row
from tilewright.bench.sizes import matmul as spec
from tilewright.cli import main
from tilewright.errors import ResourceError
from tilewright.ops.core.ladder import Ladder, Rung

torch = pytest.importorskip("torch")
vendor = pytest.importorskip("tilewright.bench.peers.matmul")
ROW = Row("matmul", "cpu.packed", "8x8x8-float32", "float32", 2, 8, 0.5, 0.4, 0.6, 3, gflops=1.0, machine="here")


@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh"])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_vendor_computes_the_same_function(activation, transposed, rng, monkeypatch):
    monkeypatch.setattr(vendor, "CHECKED", 8)  # fewer than there are columns
    case = spec.Case(7, 9, 33, bias=True, residual=True, activation=activation)
    inputs = spec.make(case, rng)
    tensors = {name: torch.from_numpy(x) for name, x in inputs.items() if isinstance(x, np.ndarray)}
    reference = spec.reference(case, inputs)
    out = vendor.vendor(case, tensors, transposed=transposed)()
    compare(out.numpy(), reference, spec.bound(case, inputs, reference))
    exact, allowed = vendor.truth(case, tensors)
    assert np.allclose(exact.numpy(), reference, rtol=1e-12, atol=1e-12)
    assert np.allclose(allowed(2.0).numpy(), spec.bound(case, inputs, reference, 2.0), rtol=1e-12)


def test_without_a_gpu_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ResourceError, match="there is no GPU to measure"):
        cuda.torch_on_a_gpu()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("ladder", "matmul", "--device", "cuda", "--m", "8"), 4, "there is no GPU to measure"),
        (("ladder", "correlate", "--device", "cuda"), 2, "correlate has no kernels for a GPU"),
        (
            ("ladder", "matmul", "--device", "cpu", "--dtype", "tf32"),
            2,
            "matmul has no size in --dtype tf32",
        ),
    ],
)
def test_the_command_line_says_why_not(monkeypatch, capsys, words, code, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        main([*words])
    assert stopped.value.code == code
    assert said in capsys.readouterr().err


def test_rows_of_a_gpu_have_a_machine_of_their_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tilewright.hardware.machine_name", lambda: "some-cpu")
    monkeypatch.setattr("tilewright.hardware.gpu_name", lambda: "some-gpu")
    results.save_here([ROW, replace(ROW, rung="simt.warps", threads=0)])
    rows = {row.machine: row.rung for row in results.read(tmp_path / "results")}
    assert rows == {"some-cpu": "cpu.packed", "some-gpu": "simt.warps"}


def test_a_machine_is_not_told_what_another_kind_lacks():
    names = ("cpu.packed", "cpu.amx", "simt.warps", "tile.limbs")
    ladder = Ladder("matmul", *(Rung(name, "it", "none:none", chosen=name == "cpu.packed") for name in names))
    (table,) = ladder_tables([ROW], ladder)
    assert table.notes[-1] == "Not measured on this machine: cpu.amx (it)."
    (table,) = ladder_tables([replace(ROW, rung="simt.warps", threads=0)], ladder)
    assert table.notes[-1] == "Not measured on this machine: tile.limbs (it)."
    assert "GFLOP/s, GPU" in table.header


def test_a_process_that_leaves_has_said_all_and_frees_nothing():
    script = "import atexit\nfrom tilewright.bench.workloads.gpt2_profile import leave\n"
    script += "atexit.register(print, 'late')\nprint('said')\nleave()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "said\n", "")

"""The DCGAN bench at a small size: checked, beside its peer, and without one."""

import sys

import numpy as np
import pytest

from dcgan_models import SMALL
from tilewright.bench.clocks import cpu as clock
from tilewright.bench.report.tables import bench_tables
from tilewright.bench.roofs.limits import Roofs
from tilewright.bench.workloads import dcgan, dcgan_peers
from tilewright.bench.workloads.dcgan_peers import LAYOUTS, torch_generator
from tilewright.errors import InternalError, UsageError

ROOF = Roofs(threads=1, copy_gbytes_s=10.0, gflops={"float32": 50.0, "bfloat16": 50.0})


@pytest.fixture
def run(monkeypatch):
    """run(against, ...) -> (rows, the lines that were said)."""
    monkeypatch.setattr(dcgan, "DCGANConfig", lambda: SMALL)
    monkeypatch.setattr(clock, "SPIN_S", 0.0)
    monkeypatch.setattr(dcgan, "measured_roofs", lambda count: ROOF)

    def call(*against, **options):
        said: list[str] = []
        parts = dcgan.bench(40, against=against, rounds=1, say=said.append, **({"dtype": "float32"} | options))
        return [row for part in parts for row in part], said

    return call


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_beside_pytorch(run, dtype):
    pytest.importorskip("torch")
    rows, said = run("torch", dtype=dtype)
    assert [row.rung for row in rows[:3]] == ["tilewright", "PyTorch, channels last", "PyTorch"]
    assert rows[0].peer in ("PyTorch", "PyTorch, channels last") and rows[0].peer_ratio > 0
    layers = rows[3:]
    assert [row.op for row in layers] == ["dcgan_profile"] * (1 + len(SMALL.layers))
    assert sum(float(row.label.rstrip("%")) for row in layers) == pytest.approx(100, abs=0.5)
    assert any(line.startswith("checked 8 images against float64") for line in said)
    assert "conv_transpose2d 2x2x8 -> 5" in "".join(table.text() for table in bench_tables(rows))


def test_the_peer_draws_the_same_images(run):
    torch = pytest.importorskip("torch")
    weights, z = dcgan.random_weights(SMALL, 1), dcgan.noise(1, 0, 5, SMALL.z_size)
    wanted = dcgan.reference_images(SMALL, weights, z)
    for layout in LAYOUTS:
        images = torch_generator(SMALL, weights, "float32", "cpu", layout)(torch.from_numpy(z)).numpy()
        assert np.abs(images - wanted).max() < 1e-5
    assert wanted.std() > 0.2


def test_without_pytorch(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    rows, said = run("torch")
    assert [(row.rung, row.peer) for row in rows[:1]] == [("tilewright", None)]
    assert "no peer: torch is not installed; pip install torch puts PyTorch beside ours" in said


def test_wrong_images_are_not_reported(run, monkeypatch):
    monkeypatch.setattr(dcgan, "reference_images", lambda config, weights, z: np.full((len(z), 11, 11, 3), np.nan))
    with pytest.raises(InternalError, match=r"off by nan; 0\.0001 is allowed, nothing is reported"):
        run()


def test_images_that_change_are_not_reported(run, monkeypatch):
    draw, calls = dcgan.DCGAN.generate, []

    def unsteady(self, z, *, out=None):
        images = draw(self, z, out=out)
        calls.append(images)
        images[-1] += len(calls) > 1
        return images

    monkeypatch.setattr(dcgan.DCGAN, "generate", unsteady)
    with pytest.raises(InternalError, match="different bits"):
        run()


def test_an_unknown_peer_is_refused(run):
    with pytest.raises(UsageError, match="no peer is called jax; torch, openvino can be named"):
        run("jax")


@pytest.mark.parametrize(
    ("given", "found"),
    [((), []), (("torch",), ["PyTorch, channels last", "PyTorch"]), (("openvino",), ["OpenVINO"])],
    ids=["none", "torch", "openvino"],
)
def test_only_named_peers_are_timed(monkeypatch, given, found):
    pytest.importorskip("torch")
    monkeypatch.setattr(dcgan_peers, "find_spec", lambda name: True)
    monkeypatch.setattr(dcgan_peers, "torch_generator", lambda *given: None)
    monkeypatch.setattr(dcgan_peers, "openvino_generator", lambda *given: None)
    monkeypatch.setattr(dcgan_peers, "_fastest", lambda name, *given: name)
    engines = dcgan_peers.cpu_engines(SMALL, {}, np.zeros((1, 4), np.float32), "float32", given, print)
    assert list(engines) == found
